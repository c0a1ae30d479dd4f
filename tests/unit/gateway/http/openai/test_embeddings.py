"""Embeddings: inputs, no streams, and no second way to send a text."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import check_caps, interpret
from policies.caps import RequestCaps

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}]
POOLED = [Endpoint.EMBEDDINGS, Endpoint.CLASSIFY, Endpoint.POOLING]


def ask(value: object = "x", **fields: Any) -> Ask:
    return interpret(Endpoint.EMBEDDINGS, json.dumps({"model": "m", "input": value, **fields}).encode())


@pytest.mark.parametrize("value", ["x", ["x"] * 2048, [1, 2], [[1], [2, 3]]])
def test_no_answers_are_counted(value: object) -> None:
    got = ask(value, encoding_format="base64", dimensions=256, user="u")
    assert (got.choices, got.stream) == (0, False)


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"encoding_format": "bytes"}, "encoding_format", Kind.INVALID_VALUE),
        ({"dimensions": 0}, "dimensions", Kind.INVALID_VALUE),
        ({"dimensions": 10**6}, "dimensions", Kind.INVALID_VALUE),
        ({"user": 5}, "user", Kind.INVALID_VALUE),
        ({"stream": True}, "stream", Kind.UNSUPPORTED_PARAMETER),
        ({"stream": False}, "stream", Kind.UNSUPPORTED_PARAMETER),
        ({"stream_options": {}}, "stream_options", Kind.UNSUPPORTED_PARAMETER),
        ({"messages": []}, "messages", Kind.INVALID_VALUE),
        ({"messages": MESSAGES}, "messages", Kind.INVALID_VALUE),
        ({"chat_template": "x"}, "chat_template", Kind.UNSUPPORTED_PARAMETER),
    ],
)
def test_refused(fields: dict[str, Any], param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        ask(**fields)
    assert (caught.value.kind, caught.value.param) == (kind, param)


def test_too_many_inputs() -> None:
    with pytest.raises(Fault, match="2049 items"):
        ask(["x"] * 2049)


@pytest.mark.parametrize("endpoint", POOLED)
def test_a_chat_may_stand_in_place_of_the_input(endpoint: Endpoint) -> None:
    got = interpret(endpoint, json.dumps({"model": "m", "messages": MESSAGES, "user": "u"}).encode())
    assert (got.prompt_field, json.loads(got.prompt), got.items, got.media) == ("messages", MESSAGES, 1, 1)
    assert got.image_bytes > 0
    check_caps(got, RequestCaps(choices=2))


@pytest.mark.parametrize("endpoint", POOLED)
def test_links_in_such_a_chat_lead_engines_nowhere(endpoint: Endpoint) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.png"}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]}).encode()
    with pytest.raises(Fault, match="only data: URLs"):
        interpret(endpoint, body)
    assert [link.url for link in interpret(endpoint, body, links=True).image_links] == ["http://10.0.0.1/x.png"]


@pytest.mark.parametrize(("value", "items"), [("x", 1), (["x", "y"], 2), ([1, 2], 1), ([[1], [2, 3]], 2)])
@pytest.mark.parametrize("endpoint", POOLED)
def test_each_input_is_an_item(endpoint: Endpoint, value: object, items: int) -> None:
    assert interpret(endpoint, json.dumps({"model": "m", "input": value}).encode()).items == items


def test_a_plugin_of_the_engine_gets_nothing_unchecked() -> None:
    with pytest.raises(Fault) as caught:
        interpret(Endpoint.POOLING, b'{"model":"m","input":"a","data":{"x":1}}')
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED_PARAMETER, "data")


def test_fields_of_the_endpoint_that_are_unknown_here_go_on() -> None:
    body = b'{"model":"m","input":"a","use_activation":false,"task":"token_embed"}'
    assert json.loads(interpret(Endpoint.POOLING, body).fields) == {"input": "a", "use_activation": False, "task": "token_embed"}
