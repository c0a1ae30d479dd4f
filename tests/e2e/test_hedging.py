"""A first token that is late is asked of a second engine: who answers, what is counted, and what is given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from backends.hedge import ENOUGH, Hedge
from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.record import Record
from tests.gateway_harness import Gateway, Stream, gateway, stream
from tests.pool_states import charged, released
from tests.timing import until

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), speed=200)
BY_COUNT = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "routing": "least_load"}


AT_ONCE_S = 0.02
NEVER_S = 3600.0
"""Delays until the second backend is asked, far from all that a busy machine adds."""
LATE = FaultRule("slow_start", delay_s=0.4)
"""Begins, after the second backend was asked."""
SILENT = FaultRule("frozen")
"""Never begins."""
MUTE = FaultRule("frozen_mid_stream", after=0)
"""Computes the answer, and sends none of it."""


@asynccontextmanager
async def hedging(first: SimEngine, second: SimEngine) -> AsyncIterator[tuple[Gateway, Hedge]]:
    """A gateway that has seen enough first tokens, and tries the first engine first. How long it then waits for a first token depends on
    the machine; the test sets the delay instead.

    The engines' load is not read meanwhile: a reading from before the end of those requests says that the first engine is as busy as the
    second, and either is tried first. There are just enough of those requests, so that none of them spends a hedge."""
    async with gateway(first.url, second.url, poll=False, policies=[BY_COUNT], pool={"hedge": {}}) as running:
        async with running.client() as client:
            await asyncio.gather(*(stream(client, max_tokens=2) for _ in range(ENOUGH)))
        await running.recorded(ENOUGH)
        hedge = running.deps.hedges["chat"]
        assert hedge.delay_s is not None
        hedge.delay_s = AT_ONCE_S
        running.records.clear()
        await until(lambda: not running.deps.pool_states.total())
        charge = charged(running.deps.pool_states, "e1", running.deps.clock(), tokens=0)
        yield running, hedge
        released(running.deps.pool_states, charge)
        await until(lambda: not (running.deps.pool_states.total() or first.in_flight or second.in_flight))
        assert running.open_holds == 0, "both are given back, by the engines and by us"


@pytest.mark.parametrize(
    ("first_rule", "second_rule", "winner"),
    [(SILENT, None, "e1"), (LATE, SILENT, "e0")],
    ids=["the second answers", "the first is faster after all"],
)
async def test_the_first_token_decides_and_the_other_engine_is_stopped(
    first_rule: FaultRule, second_rule: FaultRule | None, winner: str
) -> None:
    async with SimEngine(SIM) as first, SimEngine(SIM) as second, hedging(first, second) as (running, _), running.client() as client:
        first.misbehave([first_rule])
        second.misbehave([second_rule] if second_rule else [])
        seen: Stream = await stream(client, max_tokens=5, ignore_eos=True)
        assert (seen.done, seen.clean, seen.errors) == (True, True, [])
        (record,) = await running.recorded(1)
        assert (record.outcome, record.backend, record.hedged) == ("ok", winner, ("e0", "e1"))
        assert (record.attempts, record.failed, record.usage.completion_tokens) == (2, (), 5)
        assert len([event for event in seen.events if event["choices"]]) == record.events, "nothing of the other one reached the caller"


async def test_a_second_engine_that_fails_changes_nothing_and_a_first_one_that_fails_is_made_good() -> None:
    async with SimEngine(SIM) as first, SimEngine(SIM) as second, hedging(first, second) as (running, hedge), running.client() as client:
        first.misbehave([LATE])
        second.misbehave([FaultRule("status_500")])
        assert (await stream(client, max_tokens=3)).done
        hedge.delay_s = NEVER_S
        first.misbehave([FaultRule("status_500")])
        second.misbehave([])
        assert (await stream(client, max_tokens=3)).done
        one, two = await running.recorded(2)
        assert (one.backend, one.failed, one.hedged) == ("e0", (), ("e0", "e1"))
        assert (two.backend, two.failed, two.hedged) == ("e1", ("e0",), ()), "that is a retry"


async def test_a_caller_that_leaves_stops_both_engines() -> None:
    async with SimEngine(SIM) as first, SimEngine(SIM) as second, hedging(first, second) as (running, _):
        for engine in (first, second):
            engine.misbehave([MUTE])
        async with running.client() as client:
            call = asyncio.create_task(stream(client, max_tokens=100_000, ignore_eos=True))
            await until(lambda: first.in_flight and second.in_flight)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        (record,) = await running.recorded(1)
        assert (record.outcome, record.attempts, record.hedged) == ("client_gone", 2, ("e0", "e1"))
        assert record.failed == (), "no engine has failed where the caller left"
        await until(lambda: not (first.in_flight or second.in_flight))
        assert (first.counters.aborted, second.counters.aborted) == (1, 1)


async def test_where_everything_is_slow_few_are_sent_twice() -> None:
    async with SimEngine(SIM) as first, SimEngine(SIM) as second, hedging(first, second) as (running, _), running.client() as client:
        for engine in (first, second):
            engine.misbehave([LATE])
        load = running.deps.pool_states["chat"].load_table
        for row in load.row_of.values():
            load.prefill_s_token[row] = 0.0  # no backend looks too busy for a second attempt: what one costs alone keeps them few
        await asyncio.gather(*(stream(client, max_tokens=2) for _ in range(100)))
        records: list[Record] = await running.recorded(100)
        assert 0 < sum(record.hedged != () for record in records) <= 2 + 0.02 * 100
        assert {record.outcome for record in records} == {"ok"}
