"""Request bodies: taken exactly where a plain strict reader takes them, and forwarded as what was read (R29, R30)."""

import json
import random
from pathlib import Path
from typing import Any, NoReturn

import pytest

from backends.dialects import DIALECTS, body_for
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.controls import FAMILIES, REMOVED
from gateway.http.openai.json_guard import INT_MAX, INT_MIN, MAX_DEPTH, MAX_DIGITS, parse_object
from tests.fuzz.mutation import Target

PIECES = [
    *(
        sign.encode()
        for sign in ("{", "}", "[", "]", ":", ",", '"', "\\", '""', "{}", "[]", "null", "true", "1", " ", "\n", "\0", "\ufeff", "é", "😀")
    ),
    *(b"\\u%b" % code for code in (b"003a", b"003A", b"0022", b"005c", b"d83d", b"de00", b"D83D\\uDE00", b"0000", b"12")),
    b'"a":1,',
    b'"a":{"a":1},',
    b',"model":"other"',
    b'"messages":[]',
    b'"stream":true,',
    b'"n":2,',
    b'"cache_salt":"x",',
    b'"bootstrap_x":1,',
    b'"stream_options":{"include_usage":false},',
    b'"mod\\u0065l":"m",',
    b"[" * 64,
    b"]" * 64,
    b'{"a":' * 40,
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
]
JSON = Target("json", PIECES)
REFUSALS = {Kind.INVALID_JSON, Kind.MISSING_PARAMETER, Kind.INVALID_VALUE, Kind.UNSUPPORTED_PARAMETER}


class Unread(Exception):
    """The plain reader does not take it."""


def plainly(body: bytes) -> dict[str, Any]:
    """What the standard library reads, where it means one thing only. Raises Unread."""

    def never(text: str) -> NoReturn:
        raise Unread(text)

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise Unread("a key twice")
        return dict(pairs)

    def whole(text: str) -> int:
        if len(text) > MAX_DIGITS or not INT_MIN <= int(text) <= INT_MAX:
            raise Unread("too large")
        return int(text)

    def fraction(text: str) -> float:
        if len(text) > MAX_DIGITS or float(text) in (float("inf"), float("-inf")):
            raise Unread("too large")
        return float(text)

    try:
        text = body.decode()
        found = json.loads(text, object_pairs_hook=distinct, parse_constant=never, parse_int=whole, parse_float=fraction)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair cannot be
    except (ValueError, RecursionError) as error:
        raise Unread(str(error)) from None
    if type(found) is not dict or depth_of(found) > MAX_DEPTH:
        raise Unread("no object, or too deep")
    return found


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def guard(body: bytes) -> str:
    try:
        expected: Any = plainly(body)
    except Unread:
        expected = None
    try:
        found = parse_object(body)
    except Fault as fault:
        assert fault.kind is Kind.INVALID_JSON
        assert fault.message.isprintable()
        assert len(fault.message) < 300
        assert expected is None, fault.message
        return fault.message
    assert repr(found) == repr(expected)
    return "ok " + forwarded(body, found)


def forwarded(body: bytes, found: dict[str, Any]) -> str:
    """What an engine is sent is what was read, without what steers engines."""
    outcome = ""
    for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS):
        try:
            ask = interpret(endpoint, body)
        except Fault as fault:
            assert fault.kind in REFUSALS
            assert len(fault.message) < 1000
            outcome += f" {fault.kind.name} {fault.param}"[:60]
            continue
        expected = {
            k: v for k, v in found.items() if k not in REMOVED and not k.startswith(FAMILIES) and k not in ("model", "stream_options")
        }
        if endpoint is Endpoint.CHAT:
            expected = as_engines_take_it(expected)
        if ask.stream:
            expected["stream_options"] = {"include_usage": True}
        assert as_sets(plainly(ask.fields)) == as_sets(expected)
        sent = plainly(body_for(DIALECTS["vllm"], ask.fields, "served", cache_salt="ours"))
        assert as_sets(sent) == as_sets({**expected, "model": "served", "cache_salt": "ours"})
        outcome += " forwarded"
    return outcome


def as_engines_take_it(chat: dict[str, Any]) -> dict[str, Any]:
    """The chat with a cap of 0 as 1, and turns without text in the one form that all engines take."""
    caps = {name: 1 for name in ("max_tokens", "max_completion_tokens") if type(chat.get(name)) is int and chat[name] == 0}
    messages = []
    for message in chat["messages"]:
        turn = {name: value for name, value in message.items() if name != "tool_calls" or value is not None}
        if message.get("content") is None:
            turn["content"] = "" if message["role"] == "tool" else None
        messages.append(turn)
    return {**chat, **caps, "messages": messages}


def as_sets(document: dict[str, Any]) -> list[tuple[str, str]]:
    """For comparison by type too, in any order of the top level: 1, 1.0 and true are three things to an engine."""
    return sorted((key, repr(value)) for key, value in document.items() if value is not None)


@pytest.mark.req("R29", "R30")
@pytest.mark.parametrize("path", JSON.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    guard(path.read_bytes())


def grown(rng: random.Random) -> bytes:
    """An object grown at random, written as oddly as JSON allows."""

    def word() -> str:
        text = rng.choice(("a", "b", "model", "messages", ":", '"', "\\", "é", "😀", "", "content", "role", "\u2028"))
        escaped = rng.randrange(3) == 0
        return (
            '"' + "".join(f"\\u{ord(c):04x}" for c in text) + '"'
            if escaped and text.isascii()
            else json.dumps(text, ensure_ascii=rng.random() < 0.5)
        )

    def value(room: int) -> str:
        gap = rng.choice(("", "", " ", "\n\t"))
        match rng.randrange(6 if room > 0 else 4):
            case 0:
                return word()
            case 1:
                return rng.choice(
                    ("0", "-0", "1", "1.0", "1e5", "-1E-3", "18446744073709551615", "0.1", "123456789012345678901.5", "true", "null")
                )
            case 2:
                return '"say something"'
            case 3:
                return rng.choice(('[{"role":"user","content":"hi"}]', "[1,2,3]", '["a"]'))
            case 4:
                return "[" + gap + f",{gap}".join(value(room - 1) for _ in range(rng.randrange(4))) + gap + "]"
            case _:
                return "{" + gap + f"{gap},".join(f"{word()}{gap}:{value(room - 1)}" for _ in range(rng.randrange(4))) + gap + "}"

    keys = rng.sample(("messages", "prompt", "input", "stream", "n", "stop", "tools", "user", "top_k", "cache_salt", "stream_options"), 3)
    fields = ['"model":"m"', *(f'"{key}":{value(3)}' for key in keys), f"{word()}:{value(5)}"]
    rng.shuffle(fields)
    return ("{" + ",".join(fields) + "}").encode()


@pytest.mark.req("R29", "R30")
def test_bodies_are_read_as_a_plain_strict_reader_reads_them_and_so_forwarded(record_property: Any) -> None:
    record_property("figure", JSON.run(guard, 4_000, grown))
