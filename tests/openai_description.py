"""What in an answer differs from OpenAI's description of its API (OpenAPI), reduced to the routes that the gateway serves.

`python -m tests.openai_description FILE` reduces the whole description, `openapi.yaml` of github.com/openai/openai-openapi, and writes
`tests/openai_description.json.gz`. It keeps the schemas of the answers of `ROUTES` and what those refer to, without descriptions, titles
and examples. The file in the repository was made of commit f85dbe223d40e1a31cba812ab2d755c7e98a92a3, whose MIT licence stands beside it.
"""

import gzip
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema

FILE: Final = Path(__file__).with_name("openai_description.json.gz")
REFERENCE: Final = "#/components/schemas/"
WORDS: Final = frozenset(
    {"description", "title", "example", "examples", "x-oaiMeta", "externalDocs", "discriminator", "deprecated", "default"}
)
"""Members of a schema that decide nothing."""
ROUTES: Final = (
    "post /audio/transcriptions", "post /audio/translations", "post /batches", "get /batches", "get /batches/{batch_id}",
    "post /batches/{batch_id}/cancel", "get /chat/completions", "post /chat/completions", "get /chat/completions/{completion_id}",
    "post /chat/completions/{completion_id}", "delete /chat/completions/{completion_id}", "get /chat/completions/{completion_id}/messages",
    "post /completions", "post /embeddings", "get /files", "post /files", "delete /files/{file_id}", "get /files/{file_id}", "get /models",
    "get /models/{model}", "post /responses", "get /responses/{response_id}", "get /responses/{response_id}/input_items",
    "post /responses/input_tokens", "post /uploads", "post /uploads/{upload_id}/cancel", "post /uploads/{upload_id}/complete",
    "post /uploads/{upload_id}/parts",
)  # fmt: skip
EVENTS: Final = "text/event-stream"
JSON: Final = "application/json"
ERROR: Final = "error"
"""The route that stands for every error."""


def reduced(description: dict[str, Any]) -> dict[str, Any]:
    """The parts of a whole description that answers of `ROUTES` are checked with."""
    answers: dict[str, dict[str, Any]] = {ERROR: {JSON: {"$ref": f"{REFERENCE}ErrorResponse"}}}
    for route in ROUTES:
        method, _, path = route.partition(" ")
        content = description["paths"][path][method]["responses"]["200"]["content"]
        answers[route] = {kind: _bare(form["schema"]) for kind, form in content.items() if kind in (JSON, EVENTS)}
    schemas: dict[str, Any] = {}
    waiting = set(_references(answers))
    while waiting:
        name = waiting.pop()
        schemas[name] = _bare(description["components"]["schemas"][name])
        waiting |= set(_references(schemas[name])) - schemas.keys()
    return {"answers": answers, "components": {"schemas": dict(sorted(schemas.items()))}}


def _bare(schema: Any, *, names: bool = False) -> Any:
    """A schema without what decides nothing; `names` for an object whose members are named by the API."""
    if isinstance(schema, list):
        return [_bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _bare(value, names=key in ("properties", "schemas") and not names)
        for key, value in schema.items()
        if names or key not in WORDS
    }


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(REFERENCE)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for part in schema:
            yield from _references(part)


@cache
def description() -> dict[str, Any]:
    """The reduced description."""
    read: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return read


@cache
def _validator(route: str, kind: str) -> Any:
    read = description()
    return jsonschema.Draft202012Validator({**read["answers"][route][kind], "components": read["components"]})


def differences(route: str, answer: Any, kind: str = JSON) -> list[str]:
    """Where an answer is not as described: paths into it with what is wrong there, of alternatives those of the likeliest one.

    Args:
        route: one of `ROUTES`, or `ERROR`.
        kind: `EVENTS` for one event of a stream.
    """
    found = []
    for mistake in _validator(route, kind).iter_errors(answer):
        best = jsonschema.exceptions.best_match([mistake])
        found.append(f"{'.'.join(map(str, best.absolute_path)) or 'the answer'}: {best.message[:200]}")
    return found


if __name__ == "__main__":
    import yaml

    path = Path(sys.argv[1])
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    small = json.dumps(reduced(yaml.load(text, Loader=yaml.CSafeLoader)), separators=(",", ":"), sort_keys=True)
    FILE.write_bytes(gzip.compress(small.encode(), mtime=0))
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
