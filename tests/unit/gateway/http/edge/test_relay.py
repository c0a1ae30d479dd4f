import tracemalloc
from typing import Any

import pytest

from backends.ports import Loss
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.edge.exchange import AFTER_COMMENT
from gateway.http.edge.relay import FROM_MEMORY, MAX_ERROR_BODY_BYTES, Heartbeat, ReplyRelay, ReplySource
from gateway.http.edge.reply_chain import ReplyChain, Tap
from gateway.http.edge.taps import DONE, HEARTBEAT, PlainTap, RenameTap, StreamTap
from gateway.http.edge.timeouts import AttemptTimeouts, Timeouts
from gateway.story import AttemptFacts, Story
from tests.stories import with_facts

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = EVENT.replace(b"null", b'"stop"')
SSE = {b"content-type": b"text/event-stream; charset=utf-8"}


class FakeExchange:
    """What a relay needs of an exchange, written down."""

    def __init__(self) -> None:
        self.started = self.finished = self.gone = self.commented = False
        self.out: list[bytes] = []
        self.how = ""

    def start(self, headers: bytes) -> None:
        self.started = True

    def write(self, data: bytes) -> None:
        self.out.append(data)

    def end(self) -> None:
        self.finished, self.how = True, "ended"

    def abandon(self) -> None:
        self.finished, self.how = True, "abandoned"

    def reply(self, status: int, headers: bytes, body: bytes) -> None:
        self.started = self.finished = True
        self.out.append(body)


class FakeFlight:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def abort(self) -> None:
        self.calls.append("abort")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


class Bench:
    """A relay between fakes, on a clock that is moved by hand."""

    def __init__(self, *, stream: bool = True) -> None:
        self.now = 100.0
        self.story = with_facts(Story("r", self.now, 0.0, self.now), stream=stream)
        self.exchange, self.flight = FakeExchange(), FakeFlight()
        self.tap: Any = (
            StreamTap(self.story.attempt, self.clock, choices=1, include_usage=False)
            if stream
            else PlainTap(self.story.attempt, self.clock, Endpoint.CHAT, choices=1)
        )
        self.relay = ReplyRelay(
            self.exchange,  # type: ignore[arg-type]  # the fake has what the relay uses
            self.story,
            self.tap,
            ReplySource("b", Endpoint.CHAT, ("served",), AttemptTimeouts(10.0, 10.0 if stream else 600.0)),
            headers=lambda: b"",
            timeouts=Timeouts(10, 2000, 120, token_gap_s=30, plain_timeout_s=600, heartbeat_s=15, slow_reader_s=30),
            clock=self.clock,
        )
        self.relay.flight = self.flight

    def clock(self) -> float:
        return self.now

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.relay.check(self.now)

    @property
    def fault(self) -> Fault | None:
        return self.relay.outcome.result()


async def test_a_whole_stream_is_handed_on_and_ended() -> None:
    bench = Bench()
    bench.relay.on_head(200, SSE)
    bench.relay.on_data(EVENT)
    bench.relay.on_data(LAST + DONE)
    bench.relay.on_end()
    assert b"".join(bench.exchange.out) == EVENT + LAST + DONE
    assert (bench.exchange.how, bench.fault) == ("ended", None)
    assert bench.relay.over


async def test_an_error_body_takes_bounded_memory_however_long_it_is() -> None:
    bench, part = Bench(), b"x" * MAX_ERROR_BODY_BYTES
    bench.relay.on_head(500, {})
    tracemalloc.start()
    try:
        for _ in range(64):
            bench.relay.on_data(part)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept <= 2 * MAX_ERROR_BODY_BYTES
    bench.relay.on_end()
    assert bench.fault is not None and bench.fault.kind is Kind.ENGINE_ERROR


async def test_nothing_is_sent_before_the_first_good_byte() -> None:
    bench = Bench()
    bench.relay.on_head(200, SSE)
    bench.relay.on_data(EVENT[:20])
    assert not bench.exchange.started
    bench.relay.on_loss(Loss.CUT, "gone")
    assert not bench.exchange.started
    assert bench.fault is not None


async def test_heartbeats_come_before_and_between_events_and_never_inside() -> None:
    bench = Bench()
    bench.after(9.0)
    assert bench.exchange.out == []
    bench.relay.on_head(200, SSE)
    bench.relay.on_data(EVENT + EVENT[:30])
    bench.after(16.0)
    bench.after(1.0)
    bench.relay.on_data(EVENT[30:])
    assert bench.exchange.out == [EVENT, HEARTBEAT, AFTER_COMMENT + EVENT]


@pytest.mark.parametrize("beats", [(1, 0), (0, 1), (2, 1)], ids=["before", "between", "several"])
async def test_events_after_heartbeats_are_found_by_readers_that_strip_their_reads(beats: tuple[int, int]) -> None:
    """`vllm bench serve` strips each read of white space before it looks for blank lines: a heartbeat that comes alone has no end then, and
    the event behind it must not begin in the comment's line."""
    bench = Bench()
    heartbeat = Heartbeat(bench.exchange, lambda: b"", 1.0, bench.now)  # type: ignore[arg-type]  # that of the queue
    for at in range(beats[0]):
        heartbeat.beat(bench.now + 2.0 * (at + 1))
    bench.relay.on_head(200, SSE)
    bench.relay.on_data(EVENT)
    for _ in range(beats[1]):
        bench.after(16.0)
    bench.relay.on_data(EVENT)
    bench.relay.on_data(LAST + DONE)
    assert bench.exchange.out.count(HEARTBEAT) == sum(beats)
    comment_open, found = False, []
    for read in bench.exchange.out:
        blocks = read.strip().split(b"\n\n")
        found += blocks[1:] if comment_open else blocks  # what is glued to the comment belongs to it
        comment_open = blocks[-1].startswith(b":") and len(blocks) == 1
    events = [block for block in found if not block.startswith(b":")]
    assert events == [event for event in (EVENT * 2 + LAST + DONE).split(b"\n\n") if event]


@pytest.mark.parametrize(
    ("events", "wait_s", "kind"), [(0, 10.5, Kind.FIRST_TOKEN_TIMEOUT), (1, 30.5, Kind.TOKEN_GAP_TIMEOUT)], ids=["first token", "gap"]
)
async def test_silence_is_bounded(events: int, wait_s: float, kind: Kind) -> None:
    bench = Bench()
    bench.relay.on_head(200, SSE)
    if events:
        bench.relay.on_data(EVENT)
    bench.after(wait_s - 1.0)
    assert not bench.relay.outcome.done()
    bench.after(1.0)
    assert bench.fault is not None
    assert bench.fault.kind is kind
    assert bench.flight.calls == ["abort"]


async def test_a_drip_that_keeps_every_gap_is_still_too_slow() -> None:
    bench = Bench()
    bench.relay.on_head(200, SSE)
    for _ in range(7):
        bench.relay.on_data(EVENT)
        bench.after(10.0)
    assert bench.fault is not None
    assert bench.fault.kind is Kind.TOKEN_GAP_TIMEOUT


async def test_a_slow_reader_pauses_the_engine_and_is_cut_off() -> None:
    bench = Bench()
    bench.relay.on_head(200, SSE)
    bench.relay.on_data(EVENT)
    bench.relay.full()
    bench.after(29.0)
    bench.relay.drained()
    bench.after(29.0)  # the pause is not held against the engine
    assert not bench.relay.outcome.done()
    bench.relay.full()
    bench.after(30.5)
    assert bench.flight.calls == ["pause", "resume", "pause", "abort"]
    assert (bench.exchange.how, bench.fault and bench.fault.kind) == ("abandoned", Kind.SLOW_READER)


async def test_an_engine_that_hangs_after_done_is_dropped_a_second_later() -> None:
    bench = Bench()
    bench.relay.on_head(200, SSE)
    bench.relay.on_data(LAST + DONE)
    assert bench.fault is None
    assert not bench.relay.over
    bench.after(0.5)
    assert bench.flight.calls == []
    bench.after(1.0)
    assert bench.flight.calls == ["abort"]
    assert bench.relay.over


async def test_the_callers_leaving_stops_the_engine_at_once() -> None:
    bench = Bench()
    bench.relay.gone()
    assert bench.flight.calls == ["abort"]
    assert bench.fault is not None
    assert bench.fault.kind is Kind.CLIENT_GONE


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (Loss.CONNECT, Kind.CONNECT_FAILED),
        (Loss.CAPACITY, Kind.ENGINE_BUSY),
        (Loss.NO_REPLY, Kind.RESET_BEFORE_REPLY),
        (Loss.CUT, Kind.BROKEN_STREAM),
        (Loss.GARBLED, Kind.INVALID_REPLY),
    ],
)
async def test_every_loss_is_a_fault_without_internals(loss: Loss, kind: Kind) -> None:
    bench = Bench()
    bench.relay.on_loss(loss, "10.0.0.7:8000 refused")
    assert bench.fault is not None
    assert bench.fault.kind is kind
    assert "10.0.0.7" not in bench.fault.message


async def test_an_engines_refusal_is_read_to_its_end_and_said_again() -> None:
    bench = Bench(stream=False)
    bench.relay.on_head(503, {b"content-type": b"application/json", b"retry-after": b"7"})
    bench.relay.on_data(b'{"error":{"message":"served is busy"}}')
    bench.relay.on_end()
    assert bench.fault is not None
    assert (bench.fault.kind, bench.fault.retry.after_s) == (Kind.ENGINE_BUSY, 7.0)
    assert "served" not in bench.fault.message


@pytest.mark.req("R3")
@pytest.mark.parametrize(("at_once", "waited_s", "over"), [(False, 9.0, False), (False, 11.0, True), (True, 1.0, True)])
async def test_a_backend_that_was_taken_out_is_not_waited_for(at_once: bool, waited_s: float, over: bool) -> None:
    bench = Bench(stream=False)
    bench.after(waited_s)
    bench.relay.abandon_unanswered(bench.now, at_once=at_once)
    assert bench.relay.outcome.done() is over
    assert bench.flight.calls == (["abort"] if over else [])
    if over:
        assert bench.fault is not None
        assert bench.fault.kind is Kind.BACKEND_LOST


async def test_an_answer_that_has_begun_is_left_to_its_own_deadlines() -> None:
    bench = Bench()
    bench.relay.on_head(200, SSE)
    bench.relay.on_data(EVENT)
    bench.after(11.0)
    bench.relay.abandon_unanswered(bench.now, at_once=True)
    assert not bench.relay.outcome.done()


async def test_where_too_many_are_slow_the_first_is_cut_off_before_its_time() -> None:
    bench = Bench()
    bench.relay.on_head(200, SSE)
    bench.relay.on_data(EVENT)
    bench.relay.full()
    bench.relay.cut()
    assert bench.flight.calls == ["pause", "abort"]
    assert (bench.exchange.how, bench.fault and bench.fault.kind) == ("abandoned", Kind.SLOW_READER)


async def test_an_engine_that_says_busy_and_hangs_up_is_busy() -> None:
    """The connection may end inside an error's text; its status stands, and is no failure of the engine."""
    for status, kind in ((503, Kind.ENGINE_BUSY), (400, Kind.RESET_BEFORE_REPLY)):
        bench = Bench(stream=False)
        bench.relay.on_head(status, {b"content-type": b"application/json"})
        bench.relay.on_data(b'{"error":{"mess')
        bench.relay.on_loss(Loss.CUT, "gone")
        assert bench.fault is not None
        assert bench.fault.kind is kind


async def test_when_its_time_is_over_an_answer_is_ended_whatever_it_does() -> None:
    silent, streaming, paused, whole = Bench(), Bench(), Bench(), Bench(stream=False)
    for bench in (silent, streaming, paused, whole):
        bench.story.asked.end_at = bench.now + 5.0
    streaming.relay.on_head(200, SSE)
    streaming.relay.on_data(EVENT)
    paused.relay.full()
    for bench in (silent, streaming, paused, whole):
        bench.after(4.9)
        assert not bench.relay.outcome.done()
        assert bench.relay.look_at <= bench.story.asked.end_at
        bench.after(0.2)
        assert bench.fault is not None
        assert (bench.fault.kind, bench.fault.retry.should, bench.flight.calls[-1]) == (Kind.DEADLINE_PASSED, False, "abort")


def relay_of(chain: Tap, *, stream: bool = True) -> tuple[ReplyRelay, FakeExchange, Story]:
    """A relay of an answer from memory: no backend, no flight and no deadline."""
    story, exchange = with_facts(Story("r", 100.0, 0.0, 100.0), stream=stream), FakeExchange()
    timeouts = Timeouts(10, 2000, 120, token_gap_s=30, plain_timeout_s=600, heartbeat_s=15, slow_reader_s=30)
    relay = ReplyRelay(
        exchange,  # type: ignore[arg-type]  # the fake has what the relay uses
        story,
        chain,
        FROM_MEMORY,
        headers=lambda: b"",
        timeouts=timeouts,
        clock=lambda: 100.0,
    )
    return relay, exchange, story


async def test_an_answer_from_memory_goes_through_the_same_chain() -> None:
    judge, kept = StreamTap(AttemptFacts(), lambda: 100.0, choices=1, include_usage=False), LAST + DONE
    relay, exchange, _ = relay_of(ReplyChain((judge, RenameTap({"served"}, "public")), judge))
    relay.on_head(200, SSE)
    relay.on_data(EVENT.replace(b'{"choices"', b'{"model":"served","choices"'))
    relay.on_data(kept)
    assert relay.outcome.result() is None
    assert exchange.how == "ended"
    assert b"".join(exchange.out) == EVENT.replace(b'{"choices"', b'{"model":"public","choices"') + kept
    assert relay.over
    relay.check(10**9)


async def test_a_plain_answer_from_memory_is_one_reply() -> None:
    body = b'{"choices":[{"index":0,"finish_reason":"stop"}]}'
    relay, exchange, _ = relay_of(PlainTap(AttemptFacts(), lambda: 100.0, Endpoint.CHAT, choices=1), stream=False)
    relay.on_head(200, {b"content-type": b"application/json"})
    relay.on_data(body)
    relay.on_end()
    assert (relay.outcome.result(), exchange.out) == (None, [body])


class Dropping:
    """A tap that lets nothing go on, and may fail at the end."""

    over = False

    def __init__(self, at_end: bytes = b"", fault: Fault | None = None) -> None:
        self.fault: Fault | None = None
        self._at_end, self._fault_at_end = at_end, fault

    def feed(self, data: bytes) -> bytes:
        return b""

    def end(self) -> bytes:
        self.fault = self._fault_at_end
        return self._at_end


@pytest.mark.parametrize("done", [DONE, b""], ids=["at the terminator", "at the end of the message"])
async def test_a_fault_of_a_later_tap_ends_the_attempt_behind_its_good_bytes(done: bytes) -> None:
    judge, fault = StreamTap(AttemptFacts(), lambda: 100.0, choices=1, include_usage=False), Fault(Kind.INVALID_REPLY, "x")
    relay, exchange, _ = relay_of(ReplyChain((judge, Dropping(b"good", fault)), judge))
    flight = relay.flight = FakeFlight()
    relay.on_head(200, SSE)
    relay.on_data(EVENT)
    assert not exchange.started
    relay.on_data(LAST + done)
    relay.on_end()
    assert (exchange.out, exchange.how, relay.outcome.result()) == ([b"good"], "", fault)
    assert flight.calls == (["abort"] if done else [])


async def test_an_answer_of_which_no_tap_lets_anything_go_on_is_an_empty_reply() -> None:
    judge = StreamTap(AttemptFacts(), lambda: 100.0, choices=1, include_usage=False)
    relay, exchange, _ = relay_of(ReplyChain((judge, Dropping()), judge))
    relay.on_head(200, SSE)
    relay.on_data(LAST + DONE)
    assert (exchange.started, exchange.out, exchange.how, relay.outcome.result()) == (True, [], "ended", None)
