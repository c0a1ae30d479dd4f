"""One constraint on an answer's form reaches every kind of engine in the field that it follows, or is refused by its path."""

import json
from typing import Any

import pytest

from backends.dialects import DIALECTS, fit
from backends.dialects.structure import MAX_GRAMMAR_CHARS, STRUCTURE
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHOICES = ["yes", 'n"o\\', "a\nb\u2028"]
CHOICE_GRAMMAR = 'root ::= "yes" | "n\\"o\\\\" | "a\\nb\\u2028"'
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}}
GENERATING = [Endpoint.CHAT, Endpoint.COMPLETIONS]

SPELLINGS: dict[str, list[dict[str, Any]]] = {
    "json": [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA, "regex": None, "disable_any_whitespace": False}},
        {"json_schema": SCHEMA},
        {"json_schema": json.dumps(SCHEMA)},
    ],
    "regex": [{"guided_regex": "[ab]+"}, {"structured_outputs": {"regex": "[ab]+"}}, {"regex": "[ab]+"}],
    "choice": [{"guided_choice": CHOICES}, {"structured_outputs": {"choice": CHOICES}}],
    "grammar": [
        {"guided_grammar": 'root ::= "a"'},
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        {"ebnf": 'root ::= "a"'},
        {"grammar": 'root ::= "a"'},
    ],
    "json_object": [{"structured_outputs": {"json_object": True}}],
}
TARGETS: dict[str, dict[str, dict[str, Any] | None]] = {
    "sglang": {
        "json": FORMAT,
        "regex": {"regex": "[ab]+"},
        "choice": {"ebnf": CHOICE_GRAMMAR},
        "grammar": {"ebnf": 'root ::= "a"'},
        "json_object": {"response_format": {"type": "json_object"}},
    },
    "llamacpp": {
        "json": {"json_schema": SCHEMA},
        "regex": None,
        "choice": {"grammar": CHOICE_GRAMMAR},
        "grammar": {"grammar": 'root ::= "a"'},
        "json_object": {"json_schema": {"type": "object"}},
    },
    "dynamo": {
        "json": {"guided_json": SCHEMA},
        "regex": {"guided_regex": "[ab]+"},
        "choice": {"guided_choice": CHOICES},
        "grammar": {"guided_grammar": 'root ::= "a"'},
        "json_object": {"guided_json": {"type": "object"}},
    },
}


def fitted(dialect: str, endpoint: Endpoint, fields: dict[str, Any]) -> dict[str, Any]:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if endpoint is Endpoint.CHAT else {"prompt": "hi"}
    ask = interpret(endpoint, json.dumps({"model": "m", **prompt, **fields}).encode())
    sent: dict[str, Any] = json.loads(ask.fields if DIALECTS[dialect].fields.leaves(ask.names) else fit(DIALECTS[dialect].fields, ask))
    return {name: value for name, value in sent.items() if name not in prompt}


def refused(dialect: str, endpoint: Endpoint, fields: dict[str, Any]) -> Fault:
    with pytest.raises(Fault) as caught:
        fitted(dialect, endpoint, fields)
    return caught.value


CASES = [(kind, fields) for kind, spelled in SPELLINGS.items() for fields in spelled]


@pytest.mark.parametrize("endpoint", GENERATING)
@pytest.mark.parametrize(("kind", "fields"), CASES)
def test_vllm_gets_structured_outputs(endpoint: Endpoint, kind: str, fields: dict[str, Any]) -> None:
    made = fitted("vllm", endpoint, fields)["structured_outputs"]
    value = made[kind]
    assert (json.loads(value) if kind == "json" and isinstance(value, str) else value) == (SPELLED[kind])


SPELLED: dict[str, Any] = {"json": SCHEMA, "regex": "[ab]+", "choice": CHOICES, "grammar": 'root ::= "a"', "json_object": True}


@pytest.mark.parametrize("endpoint", GENERATING)
@pytest.mark.parametrize(("kind", "fields"), CASES)
@pytest.mark.parametrize("dialect", TARGETS)
def test_every_spelling_reaches_the_engine_in_its_own_field(dialect: str, endpoint: Endpoint, kind: str, fields: dict[str, Any]) -> None:
    expected = TARGETS[dialect][kind]
    if expected is None:
        fault = refused(dialect, endpoint, fields)
        assert fault.kind is Kind.UNSUPPORTED_PARAMETER
        assert fault.param in (next(iter(fields)), f"structured_outputs.{kind}")
        assert "send 'response_format', 'json_schema' or 'grammar'" in fault.message
    elif dialect == "dynamo" and "guided_json" in fields:
        assert fitted(dialect, endpoint, fields) == fields, "its own field stays as it is"
    else:
        assert fitted(dialect, endpoint, fields) == expected


@pytest.mark.parametrize("dialect", ["trtllm", "tgi", "triton"])
@pytest.mark.parametrize("field", sorted(STRUCTURE))
def test_nobody_gets_free_text_where_the_engine_has_no_field(dialect: str, field: str) -> None:
    value = {"structured_outputs": {"regex": "a"}, "guided_choice": ["a"]}.get(field, "a")
    assert refused(dialect, Endpoint.CHAT, {field: value}).param == field


def test_an_unknown_engine_gets_what_the_caller_wrote() -> None:
    for fields in (fields for _, fields in CASES):
        assert fitted("openai", Endpoint.CHAT, fields) == fields


@pytest.mark.parametrize("dialect", ["llamacpp", "dynamo"])
def test_a_format_that_completions_ignore_is_translated(dialect: str) -> None:
    """llama.cpp's completions answered a `response_format` with free text and 200."""
    field = {"llamacpp": "json_schema", "dynamo": "guided_json"}[dialect]
    assert fitted(dialect, Endpoint.COMPLETIONS, FORMAT) == {field: SCHEMA}
    assert fitted(dialect, Endpoint.COMPLETIONS, {"response_format": {"type": "json_object"}}) == {field: {"type": "object"}}
    assert fitted(dialect, Endpoint.COMPLETIONS, {"response_format": {"type": "json_object", "schema": SCHEMA}}) == {field: SCHEMA}
    assert fitted(dialect, Endpoint.COMPLETIONS, {"response_format": {"type": "text"}}) == {}
    assert fitted(dialect, Endpoint.CHAT, FORMAT) == FORMAT
    fault = refused(dialect, Endpoint.COMPLETIONS, {"response_format": {"type": "structural_tag", "structures": []}})
    assert (fault.kind, fault.param) == (Kind.UNSUPPORTED_PARAMETER, "response_format")


def test_an_option_that_only_one_engine_has() -> None:
    pattern = {"guided_json": SCHEMA, "guided_whitespace_pattern": " "}
    assert fitted("vllm", Endpoint.CHAT, pattern) == {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}}
    assert fitted("dynamo", Endpoint.CHAT, pattern) == pattern
    assert refused("sglang", Endpoint.CHAT, pattern).param == "guided_whitespace_pattern"
    strict = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}
    assert refused("llamacpp", Endpoint.CHAT, strict).param == "structured_outputs.disable_any_whitespace"


def test_a_structural_tag_is_text_for_vllm_and_a_format_for_sglang() -> None:
    tag = {"type": "structural_tag", "triggers": ["<f"]}
    for fields in (
        {"structural_tag": tag},
        {"structural_tag": json.dumps(tag)},
        {"structured_outputs": {"structural_tag": json.dumps(tag)}},
    ):
        assert fitted("sglang", Endpoint.CHAT, fields) == {"response_format": tag}
        assert json.loads(fitted("vllm", Endpoint.CHAT, fields)["structured_outputs"]["structural_tag"]) == tag
        assert refused("llamacpp", Endpoint.CHAT, fields).kind is Kind.UNSUPPORTED_PARAMETER


def test_two_forms_for_one_answer_are_refused_with_both_names() -> None:
    fault = refused("sglang", Endpoint.CHAT, {"guided_regex": "a", "guided_choice": ["a"]})
    assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "guided_choice")
    assert "'guided_regex' or 'guided_choice'" in fault.message
    assert fitted("vllm", Endpoint.CHAT, {"guided_regex": "a", "response_format": {"type": "text"}, "guided_json": None}) == {
        "structured_outputs": {"regex": "a"}
    }


def test_what_cannot_be_translated_is_named() -> None:
    for text in ("{", "5", "[" * 500):
        fault = refused("llamacpp", Endpoint.CHAT, {"guided_json": text})
        assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "guided_json")
    fault = refused("sglang", Endpoint.CHAT, {"guided_choice": ["x" * 1000] * (MAX_GRAMMAR_CHARS // 1000 + 1)})
    assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "guided_choice")
