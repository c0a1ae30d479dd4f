"""Requests of other APIs of callers: each becomes a chat, which the chat's own check judges, or it is refused by the path of a field."""

import itertools
from pathlib import Path

import pytest

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.anthropic import MessagesTranslation
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.openai import interpret
from gateway.http.responses import ResponsesTranslation
from tests.fuzz.mutation import Target

KINDS = {Kind.INVALID_JSON, Kind.INVALID_VALUE, Kind.MISSING_PARAMETER, Kind.UNSUPPORTED_PARAMETER, Kind.BODY_TOO_LARGE}
PIECES = [
    *(b'"type"', b'"text"', b'"image"', b'"source"', b'"tool_use"', b'"tool_result"', b'"thinking"', b'"signature"', b'"document"'),
    *(b'"role"', b'"user"', b'"assistant"', b'"system"', b'"content"', b'"messages"', b'"input"', b'"message"', b'"function_call"'),
    *(b'"custom"', b'"namespace"', b'"additional_tools"', b'"arguments"', b'"output"', b'"format"', b'"tools"', b'"tool_choice"'),
    *(b"[]", b"{}", b"null", b"true", b"false", b'""', b"0", b'"\\ud800"', b"[" * 70, b",", b":", b'"a":', b"[1]"),
]
TARGET = Target("callers_apis", PIECES)
SHORT = 3_000


def judged(body: bytes) -> str:
    """How both translations judge a body."""
    said = []
    new_id = map("{:032x}".format, itertools.count()).__next__
    for made in (MessagesTranslation(ThinkingSigner(b"fuzz"), lambda: 0.0), ResponsesTranslation(lambda: 0, new_id)):
        try:
            chat = made.request(body)
        except Fault as fault:
            assert fault.kind in KINDS, fault
            assert fault.kind is Kind.INVALID_JSON or fault.param, "a refusal names its field"
            said.append(f"{fault.kind.value} {fault.param}")
            continue
        try:
            ask = interpret(Endpoint.CHAT, chat)
        except Fault as fault:
            assert fault.kind in KINDS - {Kind.INVALID_JSON}, fault
            rendered = made.refusal(fault, "req-1")
            assert 400 <= rendered.status < 500
            said.append(f"chat: {fault.kind.value}")
        else:
            said.append(f"a chat of {len(ask.names)} fields")
    return ("ok " if "a chat of" in str(said) else "") + "; ".join(said)


@pytest.mark.parametrize("path", TARGET.corpus, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    judged(path.read_bytes())


def test_each_of_the_corpus_is_a_chat_of_its_api() -> None:
    said = [judged(path.read_bytes()) for path in TARGET.corpus]
    assert [one.count("a chat of") for one in said] == [1] * len(said)


def test_damaged_requests(record_property: pytest.FixtureRequest) -> None:
    record_property("figure", TARGET.run(judged, SHORT))  # type: ignore[operator]
