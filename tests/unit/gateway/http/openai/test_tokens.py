"""Requests for the tokens of a text and for the text of tokens: one prompt in the shape of one engine, and token ids that are such."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import check_caps, interpret
from guardrails.messages import texts
from policies.caps import RequestCaps

CHAT = [{"role": "user", "content": "hi"}]


def tokenize(**fields: Any) -> Ask:
    return interpret(Endpoint.TOKENIZE, json.dumps({"model": "m", **fields}).encode())


def detokenize(**fields: Any) -> Ask:
    return interpret(Endpoint.DETOKENIZE, json.dumps({"model": "m", **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": "a"}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"messages": CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}, "messages"),
        ({"content": "a", "with_pieces": True}, "content"),
    ],
)
def test_the_prompt_stands_in_one_of_three_fields(fields: dict[str, Any], field: str) -> None:
    ask = tokenize(**fields)
    assert (ask.prompt_field, ask.choices, ask.items, ask.token_ids) == (field, 0, 1, None)
    assert json.loads(ask.fields) == fields


def test_token_ids_count_as_such_and_hold_no_text() -> None:
    assert detokenize(tokens=[1, 2, 3]).token_ids == 3
    assert detokenize(tokens=[[1, 2], [3]]).token_ids == 3
    assert detokenize(tokens=[]).fields == b'{"tokens":[]}'
    assert texts(detokenize(tokens=[1, 2]).fields).readable == ()


def test_strings_in_a_member_of_that_name_are_read_like_any_other() -> None:
    assert [text.text for text in texts(b'{"prompt":"a","tokens":[1,{"b":"c"}]}').readable] == ["a", "c"]


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({}, "prompt", Kind.MISSING_PARAMETER),
        ({"prompt": 5}, "prompt", Kind.INVALID_VALUE),
        ({"prompt": []}, "prompt", Kind.INVALID_VALUE),
        ({"prompt": [1, 2]}, "prompt[0]", Kind.INVALID_VALUE),
        ({"prompt": "a", "messages": CHAT}, "messages", Kind.INVALID_VALUE),
        ({"prompt": "a", "content": "a"}, "content", Kind.INVALID_VALUE),
        ({"content": ["a"]}, "content", Kind.INVALID_VALUE),
        ({"messages": []}, "messages", Kind.INVALID_VALUE),
        ({"messages": [{"role": 1}]}, "messages[0].role", Kind.INVALID_VALUE),
        ({"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", Kind.INVALID_VALUE),
        ({"messages": CHAT, "tools": [{}]}, "tools[0].type", Kind.INVALID_VALUE),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens", Kind.INVALID_VALUE),
        ({"prompt": "a", "return_token_strs": "yes"}, "return_token_strs", Kind.INVALID_VALUE),
        ({"content": "a", "with_pieces": 0}, "with_pieces", Kind.INVALID_VALUE),
        ({"messages": CHAT, "chat_template": "x"}, "chat_template", Kind.UNSUPPORTED_PARAMETER),
        ({"messages": CHAT, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize", Kind.UNSUPPORTED_PARAMETER),
        ({"prompt": "a", "stream": True}, "stream", Kind.UNSUPPORTED_PARAMETER),
    ],
)
def test_what_tokenize_refuses(fields: dict[str, Any], param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        tokenize(**fields)
    assert (caught.value.param, caught.value.kind) == (param, kind)


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({}, "tokens", Kind.MISSING_PARAMETER),
        ({"tokens": "a"}, "tokens", Kind.INVALID_VALUE),
        ({"tokens": [1, -1]}, "tokens[1]", Kind.INVALID_VALUE),
        ({"tokens": [1, 2**31]}, "tokens[1]", Kind.INVALID_VALUE),
        ({"tokens": [True]}, "tokens[0]", Kind.INVALID_VALUE),
        ({"tokens": [1, "a"]}, "tokens[1]", Kind.INVALID_VALUE),
        ({"tokens": [[1], 2]}, "tokens[1]", Kind.INVALID_VALUE),
        ({"tokens": [[1], ["a"]]}, "tokens[1][0]", Kind.INVALID_VALUE),
        ({"tokens": [[1]] * 2049}, "tokens", Kind.INVALID_VALUE),
        ({"tokens": [1], "skip_special_tokens": 1}, "skip_special_tokens", Kind.INVALID_VALUE),
        ({"tokens": [1], "stream": True}, "stream", Kind.UNSUPPORTED_PARAMETER),
    ],
)
def test_what_detokenize_refuses(fields: dict[str, Any], param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        detokenize(**fields)
    assert (caught.value.param, caught.value.kind) == (param, kind)


def test_a_policys_caps_bound_the_texts() -> None:
    with pytest.raises(Fault, match=r"caps\.inputs"):
        check_caps(tokenize(prompt=["a", "b"]), RequestCaps(inputs=1))
