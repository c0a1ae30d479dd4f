"""Every refusal text of the pinned vLLM and SGLang packages: callers get the engine's words, and nothing of the deployment.

`refusal_texts.py` says how the tables were made. The values that an engine puts in are the worst ones: a model's name and path, hosts.
"""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from backends.dialects.errors import fault_from_reply
from domain.ask import Endpoint
from domain.faults import Fault, Kind, Source
from tests.wire.refusal_texts import FOLDERS, LEFT_OUT, table, unlisted

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path(__file__).parent / "engine_refusals"
TABLES: Final = {path.stem: path.read_text("utf-8").splitlines() for path in sorted(FOLDER.glob("*.jsonl"))}
TEXTS: Final = {name: [tuple(json.loads(line)) for line in lines] for name, lines in TABLES.items()}

NO_REQUEST: Final = {"processor_config.{key} must be set for MiMo-V2"}
"""Texts about a model's files, of which hardly a word is left: no request causes them."""

PATH, MODEL, ADAPTER, HOSTS = "/models/covert-base/part.safetensors", "covert-base", "covert-lora", "['covert.internal']"
INTERNALS: Final = re.compile(r"covert|safetensors|vllm|sglang|--[a-z]|\bVLLM_|\bSGLANG_|\.py\b|Traceback|0x[0-9a-f]|<class", re.IGNORECASE)
GENERAL: Final = "The engine serving this model refused the request."
WORDLESS: Final = {
    "question {self.id!r}: {e}",
    "{template_error}{suffix}",
    "Regex uses unsupported feature for structured outputs: {e}. Only basic matching constructs are supported\u2014lookarounds, "
    "backreferences, and unicode boundaries are not.",
}
"""Texts whose words are all put in, and one with a character that is not ASCII."""


def filled(text: str) -> str:
    """The text with a value for each placeholder."""
    return re.sub(r"\{(?!\{)([^{}]+)\}", lambda match: value_for(match[1]), text.replace("{{", "\0")).replace("\0", "{")


def value_for(expression: str) -> str:
    name = expression.lower()
    if "path" in name or "file" in name:
        value = PATH
    elif "served_names" in name or "loaded" in name:
        value = f"{MODEL}, {ADAPTER}"
    elif "model_name" in name or "request.model" in name or "architecture" in name:
        value = MODEL
    elif "lora" in name or "adapter" in name:
        value = ADAPTER
    elif "domains" in name:
        return HOSTS
    else:
        value = "5" if re.search(r"len|count|num|max|min|size|limit|tokens|seed|dim|_p\b|penalty|temperature|top_", name) else "x"
    return repr(value) if name.endswith("!r") else value


def refused(text: str, **more: object) -> Fault:
    body = json.dumps({"error": {"message": text, "type": "BadRequestError", "param": None, "code": 400, **more}}).encode()
    return fault_from_reply(400, body, endpoint=Endpoint.CHAT, served=(MODEL, ADAPTER))


@pytest.mark.parametrize("name", TEXTS)
def test_the_words_of_every_refusal_reach_the_caller(name: str) -> None:
    lost, thin = [], []
    for _, text in TEXTS[name]:
        fault = refused(filled(text))
        assert fault.source is Source.CALLER or fault.kind is Kind.MODEL_NOT_SERVED, text
        if fault.message.startswith(GENERAL):
            lost.append(text)
        elif fault.kind is Kind.REFUSED_BY_ENGINE:
            first = re.split(r"\n|(?<=[a-z)`'\"\]0-9}][.!?]) +(?=[A-Z])", text)[0]
            words = [
                word for word in re.findall(r"[A-Za-z]{3,}", re.sub(r"\{[^{}]*\}|--[a-z][\w=-]+", " ", first)) if not INTERNALS.search(word)
            ]
            kept = sum(word.lower() in fault.message.lower() for word in words)
            if kept < 0.6 * len(words) and text not in NO_REQUEST:
                thin.append((text, fault.message))
    assert set(lost) <= WORDLESS
    assert not thin
    assert len(TEXTS[name]) > 250


@pytest.mark.parametrize("engine", FOLDERS)
def test_the_tables_are_those_of_the_installed_package(engine: str) -> None:
    """Where the engine is installed (`make test-engines` does it): every listed folder is there, the table is what the package says now,
    and no other file of it surely answers callers with a refusal."""
    package = next(ROOT.glob(f".venv-{engine}/lib/python3*/site-packages/{engine}"), None)
    if package is None:
        pytest.skip(f"{engine} is not installed in .venv-{engine}")
    assert [name for name in (*FOLDERS[engine], *LEFT_OUT[engine]) if not (package / name).exists()] == []
    (name,) = (name for name in TABLES if name.startswith(f"{engine}-"))
    assert table(package, engine) == TABLES[name]
    assert unlisted(package, engine) == []


def test_what_the_tables_hold_comes_from_the_listed_files() -> None:
    for name, pairs in TEXTS.items():
        engine = name.partition("-")[0]
        files = {file for file, _ in pairs}
        assert [file for file in files if not file.startswith(FOLDERS[engine])] == []
        assert not [file for file in files if file.startswith(tuple(LEFT_OUT[engine]))]


@pytest.mark.parametrize("raised", ["VLLMValidationError('no')", "HTTPException(400, 'no')"])
def test_a_file_that_answers_callers_and_is_not_listed_is_found(tmp_path: Path, raised: str) -> None:
    for path, line in (("new/api.py", f"raise {raised}"), ("sampling_params.py", f"raise {raised}"), ("other.py", "raise ValueError('x')")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(f"def work():\n    {line}\n")
    assert unlisted(tmp_path, "vllm") == ["new/api.py"]


@pytest.mark.parametrize("name", TEXTS)
def test_no_refusal_tells_of_the_deployment(name: str) -> None:
    told = [refused(filled(text)).message for _, text in TEXTS[name]]
    assert [message for message in told if INTERNALS.search(message)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Conversation roles must alternate user/assistant/user/assistant/...", None),
        ("When using `tool_choice`, `tools` must be set.", None),
        ("This model does not support image input", None),
        ("This model only supports single tool-calls at once!", None),
        ("'messages[0].role' does not support 'system' with this model", None),
        (
            "Image dimensions 9x9 exceed the maximum. Set VLLM_MAX_IMAGE_PIXELS to increase this limit.",
            "Image dimensions 9x9 exceed the maximum.",
        ),
        (f"Model '{MODEL}' does not support matryoshka", "This model does not support matryoshka"),
        ("You must set `--enable-mm-embeds` to input `image_embeds`", "You must set an engine option to input `image_embeds`"),
        (
            "1 validation error:\n  {'type': 'value_error', 'loc': ('body',), 'msg': 'Value error, When using `tool_choice`, `tools` "
            "must be set.', 'input': {'messages': 'the prompt'}}",
            "When using `tool_choice`, `tools` must be set.",
        ),
        (
            "2 validation errors:\n  {'type': 'string_type', 'loc': ('body', 'stop'), 'msg': 'Input should be a valid string'}\n"
            "  {'type': 'list_type', 'loc': ('body', 'stop'), 'msg': 'Input should be a valid list', 'input': 3}",
            f"{GENERAL} Check 'stop'.",
        ),
    ],
)
def test_well_known_ones(text: str, message: str | None) -> None:
    assert refused(text).message == (message or text)


def test_codes_and_fields_of_openai_like_servers_are_passed_on_where_clients_know_them() -> None:
    known = refused("Bad image.", type="invalid_request_error", code="invalid_image_format", param="messages.[0].content")
    assert (known.kind, known.code, known.message) == (Kind.REFUSED_BY_ENGINE, "invalid_image_format", "Bad image.")
    assert refused("Bad image.", code="word_of_its_own").code is None
    assert refused("It is too much.", code="context_length_exceeded").kind is Kind.CONTEXT_TOO_LONG
