"""Parameters that make one request cost as much as many are refused before an engine is called."""

import json
from typing import Any

import pytest

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret

DEEP: Any = {}
for _ in range(40):
    DEEP = {"properties": DEEP}
WIDE = {"type": "object", "properties": {f"field_{i}": {"type": "string"} for i in range(3000)}}

BOTH: list[tuple[dict[str, Any], str]] = [
    ({"n": 17}, "n"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 16_384}, "n"),
    ({"n": 1.0}, "n"),
    ({"n": "2"}, "n"),
    ({"n": True}, "n"),
    ({"best_of": 17}, "best_of"),
    ({"max_tokens": 1_000_001}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 10.5}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 1025}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["ok", "x" * 1025]}, "stop[1]"),
    ({"stop": [5]}, "stop[0]"),
    ({"stop": 5}, "stop"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"bad_words": ["x"] * 257}, "bad_words"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"user": "u" * 513}, "user"),
    ({"user": 5}, "user"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias['5']"),
    ({"logit_bias": {"5": None}}, "logit_bias['5']"),
    ({"logit_bias": []}, "logit_bias"),
    ({"echo": "yes"}, "echo"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": WIDE}}}, "response_format"),
    ({"structured_outputs": {"regex": "a" * 8193}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": "a" * 8193}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"json": DEEP}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"guided_json": WIDE}, "guided_json"),
    ({"guided_json": "x" * 8193}, "guided_json"),
    ({"guided_regex": "a" * 8193}, "guided_regex"),
    ({"guided_grammar": "a" * 8193}, "guided_grammar"),
    ({"guided_choice": ["a"] * 1025}, "guided_choice"),
    ({"regex": "a" * 8193}, "regex"),
    ({"ebnf": "a" * 8193}, "ebnf"),
    ({"grammar": "a" * 8193}, "grammar"),
    ({"json_schema": DEEP}, "json_schema"),
]

UNSUPPORTED: list[dict[str, Any]] = [
    {"chat_template": "{% for x in range(10**9) %}{% endfor %}"},
    {"chat_template_kwargs": {"chat_template": "x"}},
    {"chat_template_kwargs": {"tokenize": True}},
    {"custom_logit_processor": "gASV"},
    {"logits_processors": ["os.system"]},
    {"prompt_embeds": "AAAA"},
]

GOOD: list[dict[str, Any]] = [
    {"n": 16, "best_of": 16, "max_tokens": 1_000_000, "min_tokens": 0},
    {"temperature": 0, "top_p": 1, "presence_penalty": -2, "frequency_penalty": 2.0},
    {"temperature": 2, "top_p": 0.0001, "seed": -1, "user": "u" * 512},
    {"stop": ["\n"] * 16, "logit_bias": {"50256": -100}},
    {"stop": "END"},
    {"prompt_logprobs": 0, "echo": True},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}},
    {"structured_outputs": {"regex": "[a-z]+"}},
    {"guided_json": '{"type":"object"}'},
    {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "skip_special_tokens": False},
]


def send(endpoint: Endpoint, fields: dict[str, Any]) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": "x"} if endpoint is Endpoint.COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    sent: dict[str, Any] = json.loads(interpret(endpoint, json.dumps({"model": "m", **prompt, **fields}).encode()).fields)
    return sent


@pytest.mark.fault("expensive parameters")
@pytest.mark.req("R57")
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize(("fields", "param"), BOTH, ids=[f"{p}-{i}" for i, (_, p) in enumerate(BOTH)])
def test_out_of_bounds(endpoint: Endpoint, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as caught:
        send(endpoint, fields)
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, param)
    assert f"'{param}'" in caught.value.message
    assert len(caught.value.message) < 250


@pytest.mark.fault("expensive parameters")
@pytest.mark.req("R57")
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize("fields", UNSUPPORTED, ids=lambda f: next(iter(f)))
def test_what_engines_would_run_or_load(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    with pytest.raises(Fault) as caught:
        send(endpoint, fields)
    assert caught.value.kind is Kind.UNSUPPORTED_PARAMETER
    assert (caught.value.param or "").partition(".")[0] == next(iter(fields))


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize("fields", GOOD)
def test_within_bounds(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    assert fields.items() <= send(endpoint, fields).items()
