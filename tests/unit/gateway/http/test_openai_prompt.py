"""The prompt that is forwarded is the checked one's encoding, whether it was cut out of the body's or encoded again."""

import json

import msgspec
import pytest

from domain.ask import Endpoint
from gateway.http import openai
from gateway.http.openai import interpret

LONG = "line\n" * 50
MESSAGES: list[list[dict[str, object]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "user", "content": LONG + '"],"max_tokens":7}'}, {"role": "assistant", "content": None, "tool_calls": None}],
    [{"role": "user", "content": "ä€😀 , ]"}, {"role": "tool"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}],
]
MORE: list[dict[str, object]] = [
    {},
    {"max_tokens": 7},
    {"max_tokens": None, "temperature": 0.5},
    {"max_tokens": 0},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True}, "stream": True, "n": 2},
    {"cache": {"no-cache": True}, "user": '","max_tokens":7'},
    {"metadata": {"a": [1, {"messages": []}]}, "guardrails": []},
]


@pytest.fixture(autouse=True, params=[0, 10**9], ids=["cut out", "encoded again"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "CUT_BYTES", request.param)


def orders(pairs: dict[str, object]) -> list[dict[str, object]]:
    """The same members as they may be ordered: as given, messages first, model last, reversed."""
    first = {"messages": pairs["messages"], **pairs}
    last = {name: pairs[name] for name in pairs if name != "model"} | {"model": pairs["model"]}
    return [pairs, first, last, dict(reversed(pairs.items()))]


@pytest.mark.parametrize("more", MORE, ids=range(len(MORE)))
@pytest.mark.parametrize("messages", MESSAGES, ids=range(len(MESSAGES)))
def test_the_prompt_is_the_encoding_of_the_checked_messages(messages: list[dict[str, object]], more: dict[str, object]) -> None:
    for pairs in orders({"model": "m", "messages": messages, **more}):
        for body in (
            msgspec.json.encode(pairs),
            json.dumps(pairs).encode(),
            json.dumps(pairs, indent=1, ensure_ascii=False).encode(),
        ):
            ask = interpret(Endpoint.CHAT, body)
            forwarded = msgspec.json.decode(ask.fields)
            assert ask.prompt == msgspec.json.encode(forwarded["messages"])
            assert ask.fields == msgspec.json.encode(forwarded)
            for written, sent in zip(messages, forwarded["messages"], strict=True):
                assert sent.get("content") == (written.get("content") or ("" if written["role"] == "tool" else None))
                assert "tool_calls" not in sent


def test_a_prompt_of_text_is_cut_out_too() -> None:
    for prompt in ('a",", "b', [1, 2, 3], [[1], [2]], ["a", "b"]):
        for pairs in ({"model": "m", "prompt": prompt, "max_tokens": 5}, {"prompt": prompt, "model": "m"}):
            ask = interpret(Endpoint.COMPLETIONS, json.dumps(pairs).encode())
            assert ask.prompt == msgspec.json.encode(prompt)


def test_a_long_prompt_in_a_usual_body_is_cut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    def encode(value: object) -> bytes:
        encoded.append(value)
        return msgspec.json.encode(value)

    monkeypatch.setattr(openai, "_encode", encode)
    monkeypatch.setattr(openai, "CUT_BYTES", 0)
    messages = [{"role": "user", "content": "long " * 2000}]
    for pairs in ({"model": "m", "messages": messages, "stream": False}, {"messages": messages, "model": "m"}):
        assert interpret(Endpoint.CHAT, json.dumps(pairs).encode()).prompt == msgspec.json.encode(messages)
    assert messages not in encoded
