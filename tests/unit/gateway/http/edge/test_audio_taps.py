"""Replies about sound: which are whole, what they report, and how guard rules see them."""

import json
from typing import Any

import pytest

from backends.simengine.sound import speech_of
from domain.ask import Ask, Endpoint
from domain.usage import Usage
from gateway.http.edge.audio_taps import TAKEN, ChoiceTranscript, SpeechTap, TranscriptChoice, TranscriptTap, body_text
from gateway.http.edge.long_reply import PASSED_FROM_BYTES
from gateway.http.openai import interpret
from gateway.story import AttemptFacts


def ask(**fields: Any) -> Ask:
    file = {"name": "audio.wav", "bytes": 80_000}
    return interpret(Endpoint.TRANSCRIPTIONS, json.dumps({"model": "m", "file": file, **fields}).encode())


def heard(body: object, **fields: Any) -> tuple[TranscriptTap, bytes, AttemptFacts]:
    facts = AttemptFacts()
    tap = TranscriptTap(ask(**fields), facts, lambda: 1.0)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    for at in range(0, len(data), 7):
        assert tap.feed(data[at : at + 7]) == b""
    return tap, tap.end(), facts


@pytest.mark.parametrize(
    ("reply", "usage"),
    [
        ({"text": "abcde", "usage": {"type": "duration", "seconds": 3}}, Usage(1024, 2, audio_seconds=3)),
        ({"text": "abcde", "duration": "2.1"}, Usage(1024, 2, audio_seconds=3)),
        ({"text": "a", "usage": {"type": "tokens", "input_tokens": 9, "output_tokens": 1, "seconds": 1.5}}, Usage(9, 1, audio_seconds=2)),
        ({"text": "a", "usage": {"prompt_tokens": 9, "completion_tokens": 1}}, Usage(9, 1)),
        ({"text": ""}, None),
        ({"text": "a", "duration": "long"}, None),
        ({"text": "a", "duration": "nan"}, None),
        ({"text": "a", "usage": {"seconds": -1}}, None),
        ({"text": "a", "usage": {"seconds": 1e300}}, Usage(1024, 1, audio_seconds=10**9)),
    ],
)
def test_usage_is_seconds_or_tokens(reply: dict[str, Any], usage: Usage | None) -> None:
    tap, out, facts = heard(reply)
    assert (tap.fault, tap.usage, json.loads(out)) == (None, usage, reply)
    assert facts.said_bytes == len(reply["text"])


@pytest.mark.parametrize("body", [b"", b"<html>", {}, {"text": None}, {"text": 5}, {"error": {"message": "x"}, "text": "a"}, [1], b"\xff"])
def test_what_is_no_transcript(body: object) -> None:
    tap, out, _ = heard(body)
    assert tap.fault is not None
    assert out == b""


@pytest.mark.parametrize("body", [b"a b", b'"a b"', b'{"text":"a b","usage":{"seconds":1}}'])
def test_a_text_is_the_text_even_from_engines_that_write_json(body: bytes) -> None:
    tap, out, facts = heard(body, response_format="text")
    assert (tap.fault, out, facts.content_type) == (None, b"a b", b"text/plain; charset=utf-8")


@pytest.mark.parametrize("body", [b'{"text":5}', b'{"error":{"message":"x"}}', b"\xff\xfe"])
def test_what_is_no_text(body: bytes) -> None:
    assert heard(body, response_format="srt")[0].fault is not None


def test_a_text_that_only_looks_like_json_is_a_text() -> None:
    assert body_text(b"{laughs} well") == "{laughs} well"


def test_a_transcript_passes_guard_rules_as_a_choice_and_back() -> None:
    reply = {"text": "a b", "segments": [{"text": "a b"}], "words": [], "usage": {"seconds": 1}}
    for text, left in (("a b", reply), ("a *", {"text": "a *", "usage": {"seconds": 1}})):
        choice = TranscriptChoice(ask(response_format="verbose_json"))
        made = json.loads(choice.feed(json.dumps(reply).encode()))
        assert made == {"choices": [{"index": 0, "text": "a b", "finish_reason": "stop"}]}
        made["choices"][0]["text"] = text
        assert json.loads(ChoiceTranscript(choice).feed(json.dumps(made).encode())) == left


def speech(content_type: bytes = b"audio/wav", **fields: str) -> SpeechTap:
    made = interpret(Endpoint.SPEECH, json.dumps({"model": "m", "input": "a", "voice": "b", **fields}).encode())
    return SpeechTap(made, AttemptFacts(content_type=content_type), lambda: 1.0)


def test_speech_is_held_for_a_while_and_then_passed_on() -> None:
    tap = speech()
    assert tap.feed(b"a" * PASSED_FROM_BYTES) == b""
    assert tap.feed(b"b") == b"a" * PASSED_FROM_BYTES + b"b"
    assert tap.feed(b"c") == b"c"
    assert (tap.end(), tap.fault, tap.over) == (b"", None, True)
    short = speech()
    short.feed(b"x")
    assert short.end() == b"x"


@pytest.mark.parametrize(
    ("form", "sound", "seconds"), [("wav", speech_of("a" * 40_000), 3), ("pcm", bytes(48_001), 2), ("mp3", b"x" * 90_000, 0)]
)
def test_the_speech_that_has_passed_is_counted(form: str, sound: bytes, seconds: int) -> None:
    tap = speech(response_format=form)
    for at in range(0, len(sound), 30_001):
        tap.feed(sound[at : at + 30_001])
    tap.end()
    assert tap._answer.speech == (seconds, len(sound))


def test_json_or_nothing_is_no_speech() -> None:
    for tap, data in ((speech(), b""), (speech(b""), b'{"error":1}')):
        tap.feed(data)
        assert tap.end() == b""
        assert tap.fault is not None
    long = speech(b"")
    assert long.feed(b"x" * (PASSED_FROM_BYTES + 1)) == b""
    assert long.fault is not None


def test_types_of_replies_are_known() -> None:
    assert {endpoint.sound for endpoint in Endpoint} == TAKEN.keys()
    assert b"audio/mpeg" in TAKEN["out"]
