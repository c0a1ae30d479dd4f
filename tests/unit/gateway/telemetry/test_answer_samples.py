"""What some answers say of their model: read out of what passes, in a thread beside, and no answer is changed or waits."""

import asyncio
import json
import random
import threading
from typing import Any

import msgspec
import pytest

from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.story import Story
from gateway.telemetry.answer_samples import KEPT_BYTES, MOST_WAITING, AnswerSamples, AnswerTap, judged
from tests.stories import with_facts

STORY = with_facts(Story("r", 0.0, 0.0, 0.0), model="m", pool="p")


def event(text: str, *logprobs: float) -> bytes:
    said = {"content": [{"token": "x", "logprob": number} for number in logprobs]} if logprobs else None
    choice = {"index": 0, "delta": {"content": text}, "logprobs": said, "finish_reason": None}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


def said_letters(text: str) -> str:
    return text[:2]


def asked(**fields: Any) -> Ask:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return interpret(Endpoint.CHAT, msgspec.json.encode(body))


def samples(share: float = 0.0, counted: list[Any] | None = None, language: Any = said_letters) -> AnswerSamples:
    kept = [] if counted is None else counted
    return AnswerSamples(
        share,
        language if share else None,
        random.Random(1),
        count_language=lambda *said: kept.append(said),
        count_surprisal=lambda *said: kept.append(said),
        count_not_judged=lambda: kept.append("not judged"),
    )


def test_events_are_read_across_their_pieces_and_a_cut_one_is_left_out() -> None:
    stream = event("Bon", -0.5) + event("jour", -1.5) + b"data: [DONE]\n\n" + event("never")[:20]
    assert judged([stream[at : at + 7] for at in range(0, len(stream), 7)], said_letters) == ("Bo", 1.0)


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": "Hallo"}, "logprobs": {"content": [{"logprob": -0.25}, {"logprob": -0.75}]}},
        {"text": "Hallo", "logprobs": {"token_logprobs": [None, -0.25, -0.75]}},
    ],
)
def test_plain_replies_of_chats_and_completions(choice: dict[str, Any]) -> None:
    assert judged([json.dumps({"choices": [choice]}).encode()], said_letters) == ("Ha", 0.5)


@pytest.mark.parametrize("reply", [b"", b"null", b"data: \xff\n\n", b'{"choices":[{"message":{"content":null}}]}', b"[" * 5000])
def test_what_says_nothing_is_no_error(reply: bytes) -> None:
    assert judged([reply], None) == (None, None)
    assert judged([reply], said_letters) == ("", None)


def test_the_tap_changes_nothing_and_keeps_only_the_beginning() -> None:
    taken: list[list[bytes]] = []
    tap = AnswerTap(taken.append)
    piece = b"x" * 10_000
    for _ in range(20):
        assert tap.feed(piece) is piece
    assert tap.end() == b"" and tap.fault is None and not tap.over
    assert sum(map(len, taken[0])) == KEPT_BYTES


def test_only_answers_that_were_asked_for_are_tapped() -> None:
    assert samples().tap(asked(), STORY) is None
    assert samples().tap(asked(logprobs=True), STORY) is not None
    chosen = [samples_.tap(asked(), STORY) is not None for samples_ in [samples(0.25)] for _ in range(1000)]
    assert 180 < sum(chosen) < 320


async def test_an_answer_is_judged_in_a_thread_beside_and_counted_in_the_loop() -> None:
    counted: list[Any] = []
    threads: list[str] = []

    def language(text: str) -> str:
        threads.append(threading.current_thread().name)
        return "fr"

    made = samples(1.0, counted, language)
    tap = made.tap(asked(logprobs=True), STORY)
    assert tap is not None
    tap.feed(event("Bonjour", -2.0))
    tap.end()
    while len(counted) < 2:
        await asyncio.sleep(0)
    assert counted == [("m", "fr"), ("m", "p", 2.0)]
    assert threads == ["answers_0"]
    made.close()


async def test_too_many_answers_are_passed_over() -> None:
    go_on = threading.Event()

    def language(text: str) -> str:
        go_on.wait(60)
        return "fr"

    counted: list[Any] = []
    made = samples(1.0, counted, language)
    for _ in range(MOST_WAITING + 5):
        tap = made.tap(asked(), STORY)
        assert tap is not None
        tap.end()
    assert counted == ["not judged"] * 5
    go_on.set()
    while len(counted) < MOST_WAITING + 5:
        await asyncio.sleep(0)
    made.close()
