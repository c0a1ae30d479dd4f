"""What pydantic finds wrong is said in words of our own: over all models, all typical mistakes, and all ways that a message takes."""

import importlib
import json
import pkgutil
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel, ValidationError

import backends
import cache
import domain
import gateway
import policies
import routing
from backends.launch.catalogue import parse
from backends.launch.resolve import LaunchError
from domain.mistakes import words
from domain.strict import Strict
from gateway.admin.access import ROLE_TABLE
from gateway.importing.litellm import _no_default
from policies.yaml.located import parse_yaml
from policies.yaml.validate import checked
from tests.admin_harness import API, OWNER, Admin, admin_port
from tests.scale import scaled

WRONG: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1, 1.5, -0.5, 10**30, 1e300, float("inf"), "", "x", "!", " ", "4k", "-1", "a" * 70_000,
    [], [None], [1], ["x", "x"], [[]], [{}], ["x"] * 3000, {}, {"x": 1}, {"": None}, {"a": "b"}, {"policy": "x"}, {"file": 1},
)  # fmt: skip
"""Values that are wrong in one field or another: other types, beyond bounds, too short, too long, of no such form."""
WRITTEN: Final = tuple(value for value in WRONG if value != float("inf") and len(json.dumps(value)) < 4000)
"""Those that JSON, and so YAML, can hold, and that are short."""

PHRASES: Final = re.compile(
    r"input should|should (be|have|match)|extra inputs|value error|assertion failed|field required|unable to|valid (string|integer|dict)"
    r"|\btype=|input_(value|type)|dictionary|instance of|pydantic|validation error|got a number|after validation|discriminator",
    re.IGNORECASE,
)


def models() -> dict[str, type[BaseModel]]:
    """Every model of the product by its name; those of answers are among them, which does no harm."""
    for package in (backends, cache, domain, gateway, policies, routing):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(("__main__", "smollm2_server", "smollm2_weights")):
                importlib.import_module(module.name)
    found: dict[str, type[BaseModel]] = {}
    waiting: list[type[BaseModel]] = [BaseModel]
    while waiting:
        for model in waiting.pop().__subclasses__():
            waiting.append(model)
            whole = not (model.__name__.startswith("_") and model.__subclasses__())  # private ones may be parts of others
            if whole and model.__module__.partition(".")[0] in ("backends", "cache", "domain", "gateway", "policies", "routing"):
                found[f"{model.__module__}.{model.__qualname__}"] = model
    return found


MODELS: Final = models()
STRICT: Final = {name: model for name, model in MODELS.items() if issubclass(model, Strict)}
CLASSES: Final = re.compile("|".join({m.__name__ for m in MODELS.values() if re.fullmatch(r"_?[A-Z]\w+[A-Z]\w+", m.__name__)}))


def mistakes(model: type[BaseModel], values: Sequence[Any] = WRONG) -> Iterator[Any]:
    """Documents that are wrong somewhere, or happen to be right.

    One with a wrong value in every field has all that is said of the value in each of them. A field in which it is right has it alone too,
    because the model as a whole is judged only where all of its fields are right.
    """
    yield from ({}, {"no_such_key": 1}, [], None, 5, "x", {name: None for name in model.model_fields})
    names = [field.alias or name for name, field in model.model_fields.items()]
    for value in values:
        document = dict.fromkeys(names, value)
        yield document
        wrong = refused(model, document)
        yield from ({name: value} for name in names if name not in wrong)


def refused(model: type[BaseModel], document: Any) -> set[Any]:
    """The fields of a document that are wrong."""
    try:
        model.model_validate(document)
    except ValidationError as error:
        return {detail["loc"][0] for detail in error.errors(include_url=False) if detail["loc"]}
    return set()


def is_plain(message: str) -> bool:
    return not PHRASES.search(message) and not CLASSES.search(message) and message != ""


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_no_message_has_a_phrase_of_the_library(model: type[BaseModel]) -> None:
    said = set()
    for document in mistakes(model):
        try:
            model.model_validate(document)
        except ValidationError as error:
            said |= {(detail["type"], words(detail)) for detail in error.errors(include_url=False)}
    assert said
    assert [(kind, message) for kind, message in sorted(said) if not is_plain(message)] == []


@pytest.mark.parametrize("model", STRICT.values(), ids=STRICT)
def test_no_message_of_check_has_one(model: type[Strict]) -> None:
    said = set()
    for document in mistakes(model, WRITTEN):
        # a document that is no mapping is refused before it gets here
        if isinstance(document, dict):
            text = json.dumps(document)
            said |= {str(problem) for problem in checked(model, parse_yaml(text.encode(), "a.yaml", {}))[1]}
    assert said
    assert [message for message in sorted(said) if not is_plain(message)] == []


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


async def test_no_answer_of_the_admin_api_has_one(admin: Admin) -> None:
    """The messages of all values are those of the forms above; here a few of them take each field's way to an answer, others in each."""
    document = (await admin.client.get(f"{API}/openapi.json", headers=OWNER)).json()
    said, values = set(), cycle(WRITTEN)
    for method, template in ROLE_TABLE:
        if template == "/requests/live":
            continue  # a stream does not end, and its parameters are those of /requests
        path = re.sub(r"{\w+(:path)?}", "x", template)
        operation = document["paths"].get(template.replace(":path", ""), {}).get(method.lower(), {})
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "query":
                for wrong in ("", "x", "-1", "1.5", "9" * 30, "!" * 300):
                    reply = await admin.client.request(method, API + path, params={parameter["name"]: wrong}, headers=OWNER)
                    said.add(reply.text if reply.status_code >= 400 else "{}")
        if "requestBody" in operation:
            schema = next(iter(operation["requestBody"]["content"].values()))["schema"]
            form = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
            rest = dict.fromkeys(form.get("required", []), "x")
            bodies: list[Any] = [{}, {"no_such_key": 1}]
            bodies += [{**rest, name: wrong} for name in form.get("properties", ()) for wrong in islice(values, scaled(4, len(WRITTEN)))]
            headers = OWNER | {"content-type": "application/json", "if-match": "*"}
            for body in bodies:
                reply = await admin.client.request(method, API + path, content=json.dumps(body), headers=headers)
                said.add(reply.text if reply.status_code >= 400 else "{}")
    assert len(said) > 100
    assert [answer for answer in sorted(said) if not is_plain(answer)] == []


def test_no_message_about_a_launch_configuration_has_one() -> None:
    for text in ("engine: vllm\nflags: 3\n", "engine: vllm\n", "engine: sglang\nflags: {}\ncolour: red\n"):
        with pytest.raises(LaunchError) as caught:
            parse(text, "mine.yaml")
        assert is_plain(str(caught.value)), str(caught.value)


def test_no_note_of_the_import_has_one() -> None:
    for value in WRONG:
        why = _no_default("temperature", value)
        assert why is None or is_plain(why), why
