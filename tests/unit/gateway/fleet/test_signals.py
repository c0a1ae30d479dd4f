import asyncio
import random

import pytest
from structlog.testing import capture_logs

from backends.fetch import FetchError
from backends.health import Health
from backends.load_reports import Pushed
from backends.ports import PollResult
from backends.signals import Signals
from gateway.deps import Live
from gateway.fleet.signals import BUDGET_SHARE, LONGEST_PAUSE_S, SignalBoard, SignalWatch, pause_s, rest_pause_s
from gateway.placement.pool_state import STALE_S
from gateway.placement.rest import AT_REST_S
from tests.pool_states import charged, grounds_of, released, requests_on


class Engine:
    """Answers with what it is given next."""

    def __init__(self) -> None:
        self.next: Signals | Exception = Signals(read_at=0.0)
        self.takes_s = 0.0
        self.now = 0.0
        self.pool_states = grounds_of("a")
        self.meanwhile = 0

    async def __call__(self) -> Signals:
        self.now += self.takes_s
        for _ in range(self.meanwhile):
            charged(self.pool_states, "a", 7.0 + self.now)
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


def watched() -> tuple[Live, SignalWatch, Engine]:
    engine = Engine()
    live = Live(None, None, None)  # type: ignore[arg-type]  # only signals and health are looked at
    live.health["a"] = Health(10.0)
    live.health["a"].polled(PollResult(""), 0.0)
    watch = SignalWatch(live, SignalBoard(live, engine.pool_states), 0.1, lambda: 7.0 + engine.now, random.Random(1))
    watch.add("a", engine)
    return live, watch, engine


@pytest.mark.parametrize("error", [FetchError("no answer within 1 s"), ValueError("no list of loads")])
async def test_a_reading_that_fails_leaves_the_last_one_with_its_age(error: Exception) -> None:
    live, watch, engine = watched()
    engine.next = Signals(read_at=5.0, running=3)
    await watch.read_once("a")
    engine.next = error
    await watch.read_once("a")
    assert live.signals == {"a": Signals(read_at=5.0, running=3)}


@pytest.mark.req("ROUTERS-6")
async def test_missing_signals_are_alarmed_once_and_their_return_too() -> None:
    _, watch, engine = watched()
    with capture_logs() as said:
        for missing in (("waiting",), ("waiting",), ("waiting", "kv_usage"), (), ()):
            engine.next = Signals(read_at=1.0, missing=missing)
            await watch.read_once("a")
    assert [(line["log_level"], line.get("reason")) for line in said] == [
        ("warning", "no series for waiting: taken for unknown"),
        ("warning", "no series for waiting, kv_usage: taken for unknown"),
        ("info", None),
    ]


@pytest.mark.req("R43")
async def test_a_restart_seen_in_the_counters_starts_the_backend_slowly() -> None:
    live, watch, engine = watched()
    for prefilled, up_since in ((500, None), (900, None), (20, 7.0)):
        engine.next = Signals(read_at=6.0, prefill_tokens=prefilled)
        await watch.read_once("a")
        assert live.health["a"].up_since == up_since


@pytest.mark.req("R3")
async def test_counters_that_move_are_a_sign_of_progress_and_counters_that_stand_still_are_none() -> None:
    for step, expected in ((1, False), (0, True)):
        live, watch, engine = watched()
        for n in range(10):
            engine.next = Signals(read_at=float(n), generated_tokens=100 + n * step)
            await watch.read_once("a")
        assert live.health["a"].wants_probe(12.0) is expected


def test_a_slow_engine_is_read_less_often() -> None:
    for took_s in (0.02, 0.05, 0.2):
        for draw in (0.0, 1.0):
            assert took_s / (took_s + pause_s(0.1, took_s, draw)) <= BUDGET_SHARE + 1e-9
    assert [pause_s(0.1, 0.002, draw) for draw in (0.0, 0.5, 1.0)] == pytest.approx([0.075, 0.1, 0.125])


async def test_an_engine_that_stood_still_is_looked_at_soon_again() -> None:
    _, watch, engine = watched()
    engine.takes_s, engine.next = 1.0, FetchError("no answer within 1 s")
    assert await watch.read_once("a") == LONGEST_PAUSE_S


@pytest.mark.req("ROUTERS-5")
async def test_what_is_sent_while_an_engine_answers_is_not_taken_for_counted() -> None:
    _, watch, engine = watched()
    engine.takes_s, engine.meanwhile = 0.01, 3
    engine.next = Signals(read_at=7.02, running=0, waiting=0)
    await watch.read_once("a")
    assert requests_on(engine.pool_states, "a") == 3
    engine.meanwhile, engine.now = 0, 1.0
    engine.next = Signals(read_at=8.02, running=3, waiting=0)
    await watch.read_once("a")
    assert requests_on(engine.pool_states, "a") == 3


@pytest.mark.req("ROUTERS-10")
async def test_a_restart_seen_in_the_counters_empties_what_the_backend_is_taken_to_hold() -> None:
    _, watch, engine = watched()
    index = engine.pool_states.index
    index.touch("a", [1, 2, 3], 7.0)
    for prefilled, held in ((500, 3), (20, 0)):
        engine.next = Signals(read_at=6.0, prefill_tokens=prefilled)
        await watch.read_once("a")
        assert index.match([1, 2, 3], 7.0).held("a") == held


async def test_the_prefill_rate_is_kept_between_readings() -> None:
    live, watch, engine = watched()
    for tokens, busy_s in ((0, 0.0), (1000, 0.5), (1000, 0.5)):
        engine.next = Signals(read_at=0.0, prefill_tokens=tokens, prefill_busy_s=busy_s)
        await watch.read_once("a")
    assert live.prefill["a"].tokens_per_s == 2000.0


async def test_whatever_a_page_does_to_its_reader_the_worker_lives() -> None:
    live, watch, engine = watched()
    engine.next = OverflowError("cannot convert float infinity to integer")
    with capture_logs() as said:
        assert await watch.read_once("a") > 0
    assert [line["reason"] for line in said] == ["cannot be read: OverflowError"]
    assert live.signals == {}


async def test_an_engine_that_pushes_its_load_is_read_once_a_second_and_its_counters_still_tell_restarts() -> None:
    engine, live = Engine(), Live(None, None, None)  # type: ignore[arg-type]  # only signals and health are looked at
    live.health["a"] = Health(10.0)
    live.health["a"].polled(PollResult(""), 0.0)
    signal_board = SignalBoard(live, engine.pool_states)
    watch = SignalWatch(live, signal_board, 0.1, lambda: 7.0, random.Random(1))
    watch.add("a", engine)
    engine.next = Signals(read_at=6.0, running=9, waiting=9, prefill_tokens=500)
    assert await watch.read_once("a") < 0.2
    signal_board.push("a", Pushed(7.0, 1, 0), 6.7)
    assert 0.75 <= await watch.read_once("a") <= 1.25
    assert (live.signals["a"].running, live.health["a"].up_since) == (1, None)
    engine.next = Signals(read_at=7.0, running=0, waiting=0, prefill_tokens=20)
    await watch.read_once("a")
    assert live.health["a"].up_since == 7.0
    assert (live.signals["a"].running, live.signals["a"].prefill_tokens) == (1, 20)
    signal_board.silent("a")
    assert await watch.read_once("a") < 0.2
    await watch.remove("a")
    assert live.signals == {}


async def test_a_pool_at_rest_is_read_every_two_seconds_and_its_first_request_has_it_read_at_once() -> None:
    _, watch, engine = watched()
    (pool_state,) = engine.pool_states.values()
    assert pool_state.rest.at_rest(7.0), "nobody has asked yet"
    resting = asyncio.create_task(watch.pause("a", 0.0))
    await asyncio.sleep(0)
    assert not resting.done()
    assert 1.5 < rest_pause_s(0.0) < rest_pause_s(1.0) <= 2.0 < STALE_S
    assert pool_state.rest.asked(7.0) == 0.0, "there was no request before"
    await resting
    engine.now = 2.0
    await watch.pause("a", 0.0)  # no rest: it would not end
    assert pool_state.rest.asked(9.0) == 0.0


async def test_a_pool_whose_answers_run_is_not_at_rest() -> None:
    _, watch, engine = watched()
    (pool_state,) = engine.pool_states.values()
    pool_state.rest.asked(7.0)
    charge = charged(engine.pool_states, "a", 7.0)
    engine.now = 60.0
    await watch.pause("a", 0.0)
    assert pool_state.rest.asked(67.0) == 0.0
    released(engine.pool_states, charge)
    assert pool_state.rest.asked(67.0 + AT_REST_S + 5.0) == AT_REST_S + 5.0
