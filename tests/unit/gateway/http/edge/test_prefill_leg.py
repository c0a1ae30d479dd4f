from typing import Any

import pytest

from backends.dialects.handover import MAX_REPLY_BYTES
from backends.ports import Loss
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.edge.prefill_leg import PrefillLeg
from gateway.http.edge.relay import Heartbeat, ReplySource
from gateway.http.edge.taps import HEARTBEAT
from gateway.http.edge.timeouts import AttemptTimeouts
from tests.unit.gateway.http.edge.test_relay import FakeExchange, FakeFlight

REPLY = b'{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}},"kv_transfer_params":{}}'


class Bench:
    """A leg between fakes, on a clock that is moved by hand."""

    def __init__(self, *, beat_s: float = 0.0) -> None:
        self.now = 100.0
        self.fetched = False
        self.exchange: Any = FakeExchange()
        self.flight = FakeFlight()
        self.leg = PrefillLeg(
            self.exchange,
            ReplySource("p", Endpoint.CHAT, ("m",), AttemptTimeouts(5.0, 5.0)),
            heartbeat=Heartbeat(self.exchange, lambda: b"", beat_s, self.now),
            fetched=lambda: self.fetched,
            clock=lambda: self.now,
        )
        self.leg.flight = self.flight
        self.exchange.listener = self.leg

    @property
    def fault(self) -> Fault | None:
        return self.leg.outcome.result()

    def at(self, now: float) -> None:
        self.now = now
        self.leg.check(now)


async def test_a_reply_in_pieces_is_one() -> None:
    bench = Bench()
    bench.leg.on_head(200, {})
    for at in range(0, len(REPLY), 7):
        bench.leg.on_data(REPLY[at : at + 7])
    bench.leg.on_end()
    assert bench.fault is None
    assert (bench.leg.body, bench.leg.cached_tokens) == (REPLY, 4)


@pytest.mark.parametrize("body", [b"", b"nonsense", b"{}", b'{"usage":null}', b'{"usage":{"prompt_tokens_details":null}}'])
async def test_a_reply_need_not_say_what_was_cached(body: bytes) -> None:
    bench = Bench()
    bench.leg.body = body
    assert bench.leg.cached_tokens is None


async def test_it_is_watched_until_the_kv_was_fetched() -> None:
    bench = Bench()
    bench.leg.on_head(200, {})
    bench.leg.on_end()
    bench.at(101.0)
    assert not bench.leg.over
    bench.fetched = True
    bench.at(102.0)
    assert bench.leg.over


async def test_once_closed_nothing_of_it_is_left() -> None:
    bench = Bench()
    bench.leg.close()
    assert bench.leg.over
    assert bench.flight.calls == ["abort"]
    bench.leg.close()
    assert bench.flight.calls == ["abort"]


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (Loss.CONNECT, Kind.CONNECT_FAILED),
        (Loss.CAPACITY, Kind.ENGINE_BUSY),
        (Loss.NO_REPLY, Kind.RESET_BEFORE_REPLY),
        (Loss.CUT, Kind.RESET_BEFORE_REPLY),
        (Loss.GARBLED, Kind.INVALID_REPLY),
    ],
)
async def test_losses_are_faults(loss: Loss, kind: Kind) -> None:
    bench = Bench()
    bench.leg.on_loss(loss, "why")
    assert bench.fault is not None
    assert (bench.fault.kind, bench.fault.detail) == (kind, "why")


async def test_an_engines_refusal_is_told_like_any() -> None:
    bench = Bench()
    bench.leg.on_head(503, {b"retry-after": b"3"})
    bench.leg.on_data(b'{"error":{"message":"busy"}}')
    bench.leg.on_end()
    assert bench.fault is not None
    assert bench.fault.kind is Kind.ENGINE_BUSY


async def test_what_it_may_send_is_bounded() -> None:
    bench = Bench()
    bench.leg.on_head(200, {})
    bench.leg.on_data(b"x" * (MAX_REPLY_BYTES + 1))
    assert bench.fault is not None
    assert bench.fault.kind is Kind.INVALID_REPLY
    assert bench.flight.calls == ["abort"]


async def test_the_caller_hears_heartbeats_and_the_engine_has_a_deadline() -> None:
    bench = Bench(beat_s=1.0)
    bench.at(100.5)
    assert not bench.exchange.started
    bench.at(101.0)
    bench.at(102.5)
    assert bench.exchange.out == [HEARTBEAT, HEARTBEAT]
    bench.at(105.1)
    assert bench.fault is not None
    assert bench.fault.kind is Kind.FIRST_TOKEN_TIMEOUT
    assert bench.flight.calls == ["abort"]


async def test_a_leg_that_runs_beside_a_relay_leaves_heartbeats_to_it() -> None:
    bench = Bench(beat_s=1.0)
    bench.exchange.listener = object()
    bench.at(103.0)
    assert bench.exchange.out == []


async def test_a_caller_that_leaves_stops_the_engine() -> None:
    bench = Bench()
    bench.leg.gone()
    assert bench.fault is not None
    assert bench.fault.kind is Kind.CLIENT_GONE
    assert bench.flight.calls == ["abort"]


@pytest.mark.parametrize(("at_once", "now", "ends"), [(True, 100.0, True), (False, 104.0, False), (False, 106.0, True)])
async def test_an_engine_taken_out_is_waited_for_as_long_as_it_may_take(at_once: bool, now: float, ends: bool) -> None:
    bench = Bench()
    bench.leg.abandon_unanswered(now, at_once=at_once)
    assert bench.leg.outcome.done() == ends
    assert bench.leg.last_event_at is None
