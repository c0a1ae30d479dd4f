"""Caps in the reading of requests: each has today's number, a policy opens and narrows it, and the refusal says so."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import check_caps, interpret
from policies.caps import USUAL_CAPS, RequestCaps

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PART = {"type": "text", "text": "x"}


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels > 1 else {}


def read(endpoint: Endpoint, fields: dict[str, Any], caps: RequestCaps = USUAL_CAPS) -> Ask:
    base: dict[Endpoint, dict[str, Any]] = {Endpoint.CHAT: CHAT, Endpoint.COMPLETIONS: {"model": "m", "prompt": "x"}}
    return interpret(endpoint, json.dumps({**base.get(endpoint, {"model": "m"}), **fields}).encode(), caps=caps)


LARGER: list[tuple[str, int, Endpoint, dict[str, Any]]] = [
    ("choices", 17, Endpoint.CHAT, {"n": 17}),
    ("choices", 17, Endpoint.COMPLETIONS, {"best_of": 17}),
    ("output_tokens", 1_000_001, Endpoint.CHAT, {"max_completion_tokens": 1_000_001}),
    ("logprobs", 21, Endpoint.CHAT, {"logprobs": True, "top_logprobs": 21}),
    ("logprobs", 21, Endpoint.COMPLETIONS, {"logprobs": 21}),
    ("messages", 4097, Endpoint.CHAT, {"messages": CHAT["messages"] * 4097}),
    ("parts", 1025, Endpoint.CHAT, {"messages": [{"role": "user", "content": [PART] * 1025}]}),
    ("tools", 257, Endpoint.CHAT, {"tools": [TOOL] * 257}),
    ("tools", 257, Endpoint.CHAT, {"functions": [TOOL["function"]] * 257}),
    ("tool_calls", 129, Endpoint.CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL] * 129}]}),
    ("prompts", 257, Endpoint.COMPLETIONS, {"prompt": ["x"] * 257}),
    ("inputs", 2049, Endpoint.EMBEDDINGS, {"input": ["x"] * 2049}),
    ("schema_bytes", 65_537, Endpoint.CHAT, {"response_format": {"type": "text", "a": "x" * (65_537 - 22)}}),
    ("schema_depth", 33, Endpoint.CHAT, {"guided_json": nested(33)}),
    ("grammar_chars", 8193, Endpoint.CHAT, {"guided_regex": "x" * 8193}),
    ("grammar_chars", 8193, Endpoint.CHAT, {"tools": [{"type": "custom", "a": "x" * (8193 - 24)}]}),
    ("stops", 17, Endpoint.CHAT, {"stop": ["x"] * 17}),
    ("stop_chars", 1025, Endpoint.CHAT, {"stop": "x" * 1025}),
    ("bad_words", 257, Endpoint.CHAT, {"bad_words": ["x"] * 257}),
    ("structured_choices", 1025, Endpoint.CHAT, {"guided_choice": ["x"] * 1025}),
    ("token_ids", 1025, Endpoint.CHAT, {"stop_token_ids": [1] * 1025}),
    ("biases", 1025, Endpoint.CHAT, {"logit_bias": {str(at): 1 for at in range(1025)}}),
    ("documents", 257, Endpoint.CHAT, {"documents": [{}] * 257}),
    ("suffix_chars", 1024**2 + 1, Endpoint.COMPLETIONS, {"suffix": "x" * (1024**2 + 1)}),
    ("template_variables", 17, Endpoint.CHAT, {"chat_template_kwargs": {f"v{at}": 1 for at in range(17)}}),
    ("variable_chars", 1025, Endpoint.CHAT, {"chat_template_kwargs": {"v": "x" * 1025}}),
    ("name_chars", 257, Endpoint.CHAT, {"tools": [{"type": "function", "function": {"name": "f" * 257}}]}),
    ("name_chars", 257, Endpoint.CHAT, {"functions": [{"name": "f" * 257}]}),
    ("top_k", 1_000_001, Endpoint.CHAT, {"top_k": 1_000_001}),
    ("dimensions", 65_537, Endpoint.EMBEDDINGS, {"input": "x", "dimensions": 65_537}),
    ("temperature", 3, Endpoint.CHAT, {"temperature": 2.5}),
    ("temperature", 3, Endpoint.COMPLETIONS, {"temperature": 3}),
    ("repetition_penalty", 11, Endpoint.CHAT, {"repetition_penalty": 10.01}),
    ("samplers", 33, Endpoint.COMPLETIONS, {"samplers": ["top_k"] * 33}),
    ("samplers", 33, Endpoint.COMPLETIONS, {"dry_sequence_breakers": ["x"] * 33}),
    ("sampler_chars", 65, Endpoint.CHAT, {"samplers": ["x" * 65]}),
    ("sampler_chars", 65, Endpoint.CHAT, {"dry_sequence_breakers": ["x" * 65]}),
    ("sampler_order_chars", 1025, Endpoint.CHAT, {"samplers": "x" * 1025}),
    ("media_kwargs_bytes", 4097, Endpoint.CHAT, {"mm_processor_kwargs": {"a": "x" * (4097 - 8)}}),
]
"""A cap, the least value above its default, and a request that has it."""

NARROWED: list[tuple[str, int, Endpoint, dict[str, Any]]] = [
    ("user_chars", 512, Endpoint.CHAT, {"user": "x" * 512}),
    ("user_chars", 512, Endpoint.EMBEDDINGS, {"input": "x", "user": "x" * 512}),
    ("depth", 64, Endpoint.CHAT, {"unknown": nested(63)}),
    ("depth", 64, Endpoint.COMPLETIONS, {"unknown": nested(63)}),
    ("depth", 5, Endpoint.CHAT, {"messages": [{"role": "user", "content": [PART]}]}),
]
"""A cap that a policy can only lower, the least value under which a request passes, and the request."""

IDS = [f"{name}-{endpoint.word}-{next(iter(fields))}" for name, _, endpoint, fields in LARGER]


@pytest.mark.parametrize(("name", "size", "endpoint", "fields"), LARGER, ids=IDS)
def test_a_policy_opens_the_cap_and_the_refusal_names_it(name: str, size: int, endpoint: Endpoint, fields: dict[str, Any]) -> None:
    with pytest.raises(Fault) as refused:
        read(endpoint, fields)
    assert refused.value.kind is Kind.INVALID_VALUE
    assert refused.value.message.endswith(f" The policy of your tenant sets this bound (caps.{name}).")
    assert str(size - 1) in refused.value.message
    ask = read(endpoint, fields, RequestCaps.model_validate({name: size}))
    with pytest.raises(Fault, match=f"caps.{name}"):
        read(endpoint, fields, RequestCaps.model_validate({name: size - 1}))
    check_caps(ask, RequestCaps.model_validate({name: size}))
    with pytest.raises(Fault, match=f"caps.{name}"):
        check_caps(ask, USUAL_CAPS)  # a model, project or rule with narrower caps than those that it was read with


@pytest.mark.parametrize(("name", "size", "endpoint", "fields"), NARROWED)
def test_a_policy_narrows_what_the_gateway_itself_bounds(name: str, size: int, endpoint: Endpoint, fields: dict[str, Any]) -> None:
    ask = read(endpoint, fields)
    check_caps(read(endpoint, fields, RequestCaps.model_validate({name: size})), RequestCaps.model_validate({name: size}))
    narrower = RequestCaps.model_validate({name: size - 1})
    for refused in (lambda: read(endpoint, fields, narrower), lambda: check_caps(ask, narrower)):
        with pytest.raises(Fault) as caught:
            refused()
        assert caught.value.kind is Kind.INVALID_VALUE
        assert str(size - 1) in caught.value.message
        assert caught.value.message.endswith(f" The policy of your tenant sets this bound (caps.{name}).")


def test_every_cap_of_what_a_body_holds_is_in_the_table() -> None:
    assert {name for name, *_ in LARGER + NARROWED} == RequestCaps.model_fields.keys() - {"body_bytes"}


def test_a_value_below_the_range_is_not_the_policys() -> None:
    for fields in ({"n": 0}, {"messages": []}, {"guided_choice": []}):
        with pytest.raises(Fault) as refused:
            read(Endpoint.CHAT, fields)
        assert "caps." not in refused.value.message


@pytest.mark.parametrize("endpoint", Endpoint)
def test_a_second_check_of_a_request_that_may_pass_says_nothing(endpoint: Endpoint) -> None:
    fields: dict[str, Any] = {"n": 2, "stream": True, "stop": None} if endpoint.generates else json.loads(endpoint.probe)
    check_caps(read(endpoint, fields), RequestCaps(choices=2))
