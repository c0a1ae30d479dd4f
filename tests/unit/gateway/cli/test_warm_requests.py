"""The lines of a file that is to warm the cache: which are requests, and what is sent for them."""

import json
from typing import Any

import pytest

from gateway.cli.warm_requests import requests_of

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def bodies(raw: str, model: str | None = None, *, greedy: bool = False) -> list[tuple[int, str, Any]]:
    requests, wrong = requests_of(raw.encode(), model, greedy=greedy)
    assert wrong == []
    return [(request.line, request.path, json.loads(request.body)) for request in requests]


def test_bodies_and_batch_lines_are_requests_and_empty_lines_are_passed_over() -> None:
    embeddings = {"model": "e", "input": ["a"]}
    lines = [
        "\ufeff" + json.dumps(CHAT),
        "",
        json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": embeddings}) + "\r",
        json.dumps({"url": "/chat/completions", "body": CHAT}),
        json.dumps({"model": "m", "prompt": "hi"}),
        json.dumps(embeddings),
    ]
    assert bodies("\n".join(lines)) == [
        (1, "/v1/chat/completions", CHAT),
        (3, "/v1/embeddings", embeddings),
        (4, "/v1/chat/completions", CHAT),
        (5, "/v1/completions", {"model": "m", "prompt": "hi"}),
        (6, "/v1/embeddings", embeddings),
    ]


def test_values_stay_as_they_are_written() -> None:
    """The gateway compares members byte by byte."""
    written = r'{"model":"m","messages":[{"role": "user" , "content":"\u00e9 é"}],"top_p":0.90,"seed":12345678901234567890123,"x":1e2}'
    (request,), _ = requests_of(written.encode(), None, greedy=False)
    assert request.body == written.encode()


def test_streaming_is_taken_out_and_the_model_and_the_temperature_are_set() -> None:
    asked = json.dumps({**CHAT, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7})
    assert bodies(asked) == [(1, "/v1/chat/completions", {**CHAT, "temperature": 0.7})]
    assert bodies(asked, "other", greedy=True) == [(1, "/v1/chat/completions", {**CHAT, "model": "other", "temperature": 0})]
    assert bodies('{"prompt": "hi"}', "m", greedy=True) == [(1, "/v1/completions", {"model": "m", "prompt": "hi", "temperature": 0})]
    assert bodies('{"input": "hi"}', "m", greedy=True) == [(1, "/v1/embeddings", {"model": "m", "input": "hi"})]


def test_a_temperature_that_is_zero_already_stays_as_it_is_written() -> None:
    (request,), _ = requests_of(b'{"model":"m","prompt":"p","temperature":0.0}', None, greedy=True)
    assert request.body == b'{"model":"m","prompt":"p","temperature":0.0}'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("soon", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"messages": [}', "no JSON object"),
        ('{"model": "m", "messages": [' + "[" * 5_000, "no JSON object"),
        ('{"model": "m"}', "this line has none"),
        ('{"model": "m", "prompt": "p", "input": "i"}', "this line has several"),
        ('{"messages": []}', "has no model"),
        ('{"messages": [], "model": 5}', "has no model"),
        ('{"custom_id": "a", "url": "/v1/embeddings"}', "has no body"),
        ('{"body": {"model": "m", "input": "i"}}', "has no url"),
        ('{"body": {}, "url": 5}', "has no url"),
        ('{"body": 5, "url": "/v1/embeddings"}', "body is no JSON object"),
        ('{"body": {}, "url": "/v1/files"}', "url '/v1/files' is none of"),
        ('{"body": {}, "url": "/v1/embeddings", "method": "GET"}', "method is not POST"),
        ('{"body": {"model": "m"}, "url": "/v1/embeddings"}', "body has no input"),
    ],
)
def test_a_line_that_is_no_request_is_named_with_its_number(line: str, why: str) -> None:
    requests, (wrong,) = requests_of(f"\n{json.dumps(CHAT)}\n{line}\n".encode(), None, greedy=False)
    assert [request.line for request in requests] == [2]
    assert (wrong.line, why in wrong.why) == (3, True), wrong
