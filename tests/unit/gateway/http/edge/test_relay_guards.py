"""A relay whose chain has guard rules: what it does while they hold the answer, and once they have cut it."""

import asyncio

from backends.ports import Loss
from domain.faults import Kind
from gateway.guards.reply_detectors import ReplyDetectors
from gateway.http.edge.relay import ReplyRelay, ReplySource
from gateway.http.edge.reply_chain import ReplyChain
from gateway.http.edge.taps import DONE, HEARTBEAT
from gateway.http.edge.timeouts import AttemptTimeouts, Timeouts
from tests.guarded_replies import CONTENT, FakeDetector, Guarded, asked, event, guards, role, settled, streamed
from tests.unit.gateway.http.edge.test_relay import SSE, FakeExchange, FakeFlight

CHAT = asked().endpoint
ASK = {"id": "safe", "kind": "detector", "detector": "guard", "mode": "block", "on_error": "closed", "on": ["output"]}
WORD = {"kind": "words", "words": ["kraken"], "mode": "block"}
ANSWER = role() + event(CHAT, 0, CONTENT, "a quiet sea")
END = event(CHAT, 0, finish="stop")


class Relayed:
    """A relay between fakes, whose chain has a rule."""

    def __init__(self, rule: dict[str, object], detector: FakeDetector | None = None) -> None:
        self.now = 100.0
        found = ReplyDetectors({"guard": detector} if detector else {}, asyncio.get_running_loop(), self.clock, lambda *_: None)
        guarded = Guarded(asked(), guards(rule), detectors=found, clock=self.clock)
        self.story, self.exchange, self.flight = guarded.story, FakeExchange(), FakeFlight()
        self.story.asked.stream = True
        assert isinstance(guarded.chain, ReplyChain)
        self.chain = guarded.chain
        self.relay = ReplyRelay(
            self.exchange,  # type: ignore[arg-type]  # the fake has what the relay uses
            self.story,
            self.chain,
            ReplySource("b", CHAT, ("served",), AttemptTimeouts(10.0, 10.0)),
            headers=lambda: b"",
            timeouts=Timeouts(10, 2000, 120, token_gap_s=30, plain_timeout_s=600, heartbeat_s=15, slow_reader_s=30),
            clock=self.clock,
        )
        self.relay.flight = self.flight
        self.relay.on_head(200, SSE)

    def clock(self) -> float:
        return self.now

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.relay.check(self.now)


async def held() -> tuple[Relayed, FakeDetector]:
    """An answer that is whole but for its detector's word."""
    detector = FakeDetector("kraken")
    detector.let.clear()
    made = Relayed(ASK, detector)
    made.relay.on_data(ANSWER + END + DONE)
    await settled()
    assert made.exchange.out == []
    return made, detector


async def test_an_answer_ends_when_its_detector_has_answered_whatever_has_become_of_the_engine() -> None:
    for what in ("open", "ended", "lost"):
        made, detector = await held()
        if what == "ended":
            made.relay.on_end()
        elif what == "lost":
            made.relay.on_loss(Loss.CUT, "gone")
        assert not made.relay.outcome.done()
        detector.let.set()
        await settled()
        out = b"".join(made.exchange.out)
        assert streamed(out)[0].texts == {CONTENT: "a quiet sea"}
        assert out.endswith(DONE)
        assert (made.exchange.how, made.relay.outcome.result()) == ("ended", None)


async def test_the_engines_deadlines_are_over_with_its_reply_and_heartbeats_go_on() -> None:
    made, detector = await held()
    made.relay.on_end()
    for _ in range(4):
        made.after(20.0)
    assert not made.relay.outcome.done()
    assert made.exchange.out == [HEARTBEAT] * 4
    made.story.asked.end_at = made.now + 1.0
    made.after(2.0)
    fault = made.relay.outcome.result()
    assert fault is not None
    assert fault.kind is Kind.DEADLINE_PASSED
    made.chain.close()
    await settled()
    assert detector.under_way == 0


async def test_nothing_is_written_for_a_caller_who_has_left() -> None:
    made, detector = await held()
    made.relay.gone()
    detector.let.set()
    await settled()
    assert made.exchange.out == []
    assert made.flight.calls == ["abort"]


async def test_heartbeats_are_sent_while_everything_is_held_although_events_come() -> None:
    made = Relayed({**WORD, "words": ["k" * 200]})
    for _ in range(4):
        made.relay.on_data(event(CHAT, 0, CONTENT, "k"))
        made.after(8.0)
    assert made.exchange.out == [HEARTBEAT] * 2
    assert not made.story.attempt.begun


async def test_a_cut_stops_the_engine_at_once() -> None:
    made = Relayed(WORD)
    made.relay.on_data(role() + event(CHAT, 0, CONTENT, "a kraken ") + event(CHAT, 0, CONTENT, "." * 90) * 2)
    assert b"".join(made.exchange.out).endswith(DONE)
    assert made.flight.calls == ["abort"]
    assert (made.exchange.how, made.relay.outcome.result(), made.relay.over) == ("ended", None, True)
