"""Embeddings: inputs, no streams, and no second way to send a text."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret


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
        ({"messages": []}, "messages", Kind.UNSUPPORTED_PARAMETER),
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
