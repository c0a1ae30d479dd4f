"""Detectors over answers: what waits for them, what does not, and what their word does."""

import asyncio
import random
from typing import Any

import pytest

from domain.ask import Endpoint
from domain.faults import Kind
from gateway.guards.reply_detectors import ReplyDetectors
from gateway.http.edge.reply_chain import ReplyChain
from guardrails.policy import Direction
from guardrails.ports import DetectorAway
from guardrails.verdict import GuardVerdict
from tests.guarded_replies import (
    CONTENT,
    DONE,
    FakeDetector,
    Guarded,
    arguments,
    as_plain,
    asked,
    event,
    guards,
    plain,
    plain_body,
    role,
    settled,
    streamed,
    usage_event,
)

CHAT = Endpoint.CHAT
ASK: dict[str, Any] = {
    "id": "safe",
    "kind": "detector",
    "detector": "guard",
    "on_error": "closed",
    "window_chars": 100,
    "overlap_chars": 20,
}
BLOCK = {**ASK, "mode": "block", "on": ["output"]}
REDACT = {**ASK, "mode": "redact", "on": ["output"]}
FLAG = {**ASK, "mode": "flag", "on": ["output"], "on_error": None}
SAFE = "the sea is wide and quiet. " * 9


def guarded(detector: FakeDetector | None, *rules: dict[str, Any], stream: bool = True, held_bytes: int = 65536, **more: Any) -> Guarded:
    reported: list[tuple[Direction, GuardVerdict]] = []
    by_name = {} if detector is None else {"guard": detector}
    found = ReplyDetectors(by_name, asyncio.get_running_loop(), lambda: 7.0, lambda *one: reported.append(one))
    made = Guarded(asked(stream=stream, **more), guards(*rules, held_bytes=held_bytes), detectors=found)
    made.reported = reported  # type: ignore[attr-defined]
    return made


def answer(text: str, size: int = 7, path: Any = CONTENT) -> bytes:
    return b"".join([event(CHAT, 0, path, text[at : at + size]) for at in range(0, len(text), size)])


WHOLE_END = event(CHAT, 0, finish="stop") + usage_event(3, 4) + DONE


async def test_text_goes_on_once_the_detector_has_seen_its_window_and_the_end_waits_for_the_last_one() -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    made = guarded(detector, BLOCK, usage=True)
    assert await made.drive(role() + answer(SAFE) + WHOLE_END) == b""
    assert (made.story.attempt.begun, made.chain.over, made.chain.pending) == (False, False, True)
    assert detector.asked == [(SAFE[:100], "output", "")], "one question at a time"
    detector.let.set()
    await settled()
    assert streamed(made.out)[0].texts == {CONTENT: SAFE}
    assert made.out.startswith(role())
    assert made.out.endswith(event(CHAT, 0, CONTENT, SAFE[200:], finish="stop") + usage_event(3, 4) + DONE)
    assert made.chain.over
    assert detector.asked[1][0] == SAFE[80:200], "with what stands in front, for context"
    assert detector.most_under_way == 1
    assert made.story.attempt.released_at == 7.0


async def test_a_finding_cuts_the_answer_before_its_text_goes_on() -> None:
    made = guarded(FakeDetector("kraken"), BLOCK)
    out = await made.drive(role() + answer(SAFE + "a kraken " + SAFE + SAFE), end=False)
    assert (streamed(out)[0].texts, streamed(out)[0].finish) == ({CONTENT: (SAFE + "a ")}, "content_filter")
    assert out.endswith(DONE)
    assert made.chain.over
    assert made.story.attempt.cut is not None
    facts = made.story.guarded
    assert (facts.ended, facts.by, facts.late) == ("block", "safe", False)
    assert facts.counts == {("safe", "harm", "block", "output"): 1}


@pytest.mark.parametrize("size", [1, 7, 90, 400])
async def test_what_is_redacted_is_the_same_in_streams_and_plain_replies(size: int) -> None:
    rng = random.Random(size)
    text = " ".join(rng.choices(["the sea", "Ann Lee", "a ship"], weights=[5, 1, 5], k=90))
    live, whole = guarded(FakeDetector("Ann Lee", "PERSON"), REDACT), guarded(FakeDetector("Ann Lee", "PERSON"), REDACT, stream=False)
    seen = streamed(await live.drive(answer(text, size) + WHOLE_END))[0].texts[CONTENT]
    assert seen == text.replace("Ann Lee", "[PERSON]") != text
    assert plain(await whole.drive(plain_body(CHAT, [{CONTENT: text}])))[0].texts[as_plain(CONTENT)] == seen
    assert live.story.guarded.counts == whole.story.guarded.counts
    assert live.story.guarded.word == "changed"


async def test_without_hold_text_goes_on_at_once_and_the_cut_is_late() -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    made = guarded(detector, {**BLOCK, "hold": False})
    events = role() + answer("a kraken " + SAFE)
    assert await made.drive(events, end=False) == events
    detector.let.set()
    await settled()
    assert streamed(made.out)[0].finish == "content_filter"
    assert made.out.endswith(DONE)
    assert (made.story.guarded.ended, made.story.guarded.late) == ("block", True)


async def test_flags_delay_nothing_and_what_they_find_after_the_end_is_reported() -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    made = guarded(detector, FLAG)
    events = role() + answer("a kraken " + SAFE) + event(CHAT, 0, finish="stop") + DONE
    assert await made.drive(events) == events
    assert made.chain.over
    assert isinstance(made.chain, ReplyChain)
    made.chain.close()
    detector.let.set()
    await settled()
    assert made.story.guarded.counts == {}
    assert [(one[0], one[1].found("flag")) for one in made.reported] == [("output", ("safe",))]  # type: ignore[attr-defined]
    assert "".join([detector.asked[0][0], *[text[20:] for text, _, _ in detector.asked[1:]]]) == "a kraken " + SAFE, "all of it was seen"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("detector", [None, "away", "broken"])
async def test_a_detector_that_is_away_refuses_or_lets_pass_as_its_rule_says(stream: bool, detector: str | None) -> None:
    away = {None: None, "away": FakeDetector("x", away=DetectorAway("open")), "broken": FakeDetector("x", away=KeyError("x"))}[detector]
    answered = answer(SAFE) + WHOLE_END if stream else plain_body(CHAT, [{CONTENT: SAFE}])
    closed = guarded(away, BLOCK, stream=stream)
    assert await closed.drive(answered) == b""
    assert closed.chain.fault is not None
    assert closed.chain.fault.kind is Kind.GUARD_UNAVAILABLE
    assert closed.story.guarded.ended == "unavailable"
    opened = guarded(away, {**BLOCK, "on_error": "open"}, stream=stream)
    out = await opened.drive(answered)
    assert (streamed(out) if stream else plain(out))[0].finish == "stop"
    assert opened.story.guarded.failed == ("safe",)


async def test_categories_and_thresholds_decide_what_is_a_finding() -> None:
    text = answer("a kraken " + SAFE) + WHOLE_END
    for more, score, finish in (
        ({"categories": ["other"]}, 1.0, "stop"),
        ({"categories": ["harm"]}, 1.0, "content_filter"),
        ({"threshold": 0.8}, 0.7, "stop"),
        ({"threshold": 0.7}, 0.7, "content_filter"),
    ):
        made = guarded(FakeDetector("kraken", score=score), {**BLOCK, **more})
        assert streamed(await made.drive(text))[0].finish == finish


async def test_a_caller_who_leaves_gives_up_the_questions_that_hold() -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    made = guarded(detector, BLOCK, {**FLAG, "id": "look"})
    await made.drive(answer(SAFE))
    assert detector.under_way == 2
    assert isinstance(made.chain, ReplyChain)
    made.chain.close()
    await settled()
    assert detector.under_way == 1, "what only flags goes on"
    detector.let.set()
    await settled()
    assert detector.under_way == 0
    assert made.out == b""


async def test_more_than_may_be_held_is_refused_by_name() -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    made = guarded(detector, BLOCK, held_bytes=300)
    await made.drive(answer(SAFE * 3))
    assert made.chain.fault is not None
    assert made.chain.fault.kind is Kind.GUARD_LIMIT


async def test_what_only_flags_and_is_too_slow_passes_over_text_it_has_not_seen() -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    made = guarded(detector, FLAG, held_bytes=300)
    events = answer(SAFE * 3)
    assert await made.drive(events) == events
    assert made.story.guarded.failed == ("safe",)


async def test_each_text_is_asked_about_by_itself_and_only_for_its_direction() -> None:
    detector = FakeDetector("kraken")
    made = guarded(detector, BLOCK)
    out = await made.drive(answer("kraken " * 20, path=arguments(0)) + answer(SAFE) + WHOLE_END)
    assert streamed(out)[0].texts == {arguments(0): "kraken " * 20, CONTENT: SAFE}
    assert {direction for _, direction, _ in detector.asked} == {"output"}


async def test_local_rules_come_first_and_detectors_see_what_is_left() -> None:
    detector = FakeDetector("kraken")
    card = {"kind": "pattern", "pattern": "[0-9]{4}-[0-9]{4}", "mode": "redact"}
    made = guarded(detector, card, BLOCK)
    assert streamed(await made.drive(answer("pay 1234-5678 " + SAFE) + WHOLE_END))[0].texts == {CONTENT: "pay [PATTERN] " + SAFE}
    assert not any("1234" in text for text, _, _ in detector.asked)


async def test_of_a_plain_reply_a_refused_choice_ends_in_front_of_the_finding() -> None:
    body = plain_body(CHAT, [{CONTENT: "a kraken swims", arguments(0): "{}"}, {CONTENT: SAFE}])
    made = guarded(FakeDetector("kraken"), {**BLOCK, "hold": False}, stream=False, choices=2)
    seen = plain(await made.drive(body))
    assert (seen[0].finish, seen[0].texts) == ("content_filter", {as_plain(CONTENT): "a "})
    assert (seen[1].finish, seen[1].texts) == ("stop", {as_plain(CONTENT): SAFE})
    assert made.story.attempt.declined


@pytest.mark.req("R27")
async def test_a_long_plain_reply_is_judged_outside_the_loop() -> None:
    body = plain_body(CHAT, [{CONTENT: SAFE * 200 + "a kraken"}])
    made = Guarded(asked(stream=False), guards({"kind": "words", "words": ["kraken"], "mode": "block"}))
    assert await made.drive(body) == b"" or made.woken
    async with asyncio.timeout(20):
        while not made.chain.over:
            await asyncio.sleep(0.001)
    assert plain(made.out)[0].texts == {as_plain(CONTENT): SAFE * 200 + "a "}
    assert made.story.guarded.ended == "block"
