"""A first token that is late is asked of a second engine: who answers, what is counted, and what is given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.record import Record
from tests.gateway_harness import Gateway, Stream, gateway, stream
from tests.pool_states import charged, released

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), speed=200)
BY_COUNT = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "routing": "least_load"}


def slow(delay_s: float) -> FaultRule:
    return FaultRule("slow_start", delay_s=delay_s)


@asynccontextmanager
async def hedging(first: SimEngine, second: SimEngine) -> AsyncIterator[Gateway]:
    """A gateway that has seen enough first tokens, and tries the first engine first."""
    async with gateway(first.url, second.url, policies=[BY_COUNT], pool={"hedge": {}}) as running:
        async with running.client() as client:
            await asyncio.gather(*(stream(client, max_tokens=2) for _ in range(50)))
        await running.recorded(50)
        assert running.deps.hedges["chat"].delay_s is not None
        running.records.clear()
        charge = charged(running.deps.pool_states, "e1", running.deps.clock(), tokens=0)
        yield running
        released(running.deps.pool_states, charge)
        async with asyncio.timeout(2):  # both are given back, by the engines and by us
            while running.deps.pool_states.total() or first.in_flight or second.in_flight:
                await asyncio.sleep(0.01)
        assert running.open_holds == 0


@pytest.mark.parametrize(
    ("delays_s", "winner"), [((1.5, 0.0), "e1"), ((0.4, 1.5), "e0")], ids=["the second answers", "the first is faster after all"]
)
async def test_the_first_token_decides_and_the_other_engine_is_stopped(delays_s: tuple[float, float], winner: str) -> None:
    async with SimEngine(SIM) as first, SimEngine(SIM) as second, hedging(first, second) as running, running.client() as client:
        for engine, delay_s in zip((first, second), delays_s, strict=True):
            engine.misbehave([slow(delay_s)] if delay_s else [])
        seen: Stream = await stream(client, max_tokens=5, ignore_eos=True)
        assert (seen.done, seen.clean, seen.errors) == (True, True, [])
        assert seen.last_s < 1.2
        (record,) = await running.recorded(1)
        assert (record.outcome, record.backend, record.hedged) == ("ok", winner, ("e0", "e1"))
        assert (record.attempts, record.failed, record.usage.completion_tokens) == (2, (), 5)
        assert len([event for event in seen.events if event["choices"]]) == record.events, "nothing of the other one reached the caller"


async def test_a_second_engine_that_fails_changes_nothing_and_a_first_one_that_fails_is_made_good() -> None:
    async with SimEngine(SIM) as first, SimEngine(SIM) as second, hedging(first, second) as running, running.client() as client:
        first.misbehave([slow(0.3)])
        second.misbehave([FaultRule("status_500")])
        assert (await stream(client, max_tokens=3)).done
        first.misbehave([FaultRule("status_500")])
        second.misbehave([])
        assert (await stream(client, max_tokens=3)).done
        one, two = await running.recorded(2)
        assert (one.backend, one.failed, one.hedged) == ("e0", (), ("e0", "e1"))
        assert (two.backend, two.failed, two.hedged) == ("e1", ("e0",), ()), "that is a retry"


async def test_a_caller_that_leaves_stops_both_engines() -> None:
    async with SimEngine(SIM) as first, SimEngine(SIM) as second, hedging(first, second) as running:
        for engine in (first, second):
            engine.misbehave([FaultRule("frozen")])
        async with running.client() as client:
            call = asyncio.create_task(stream(client, max_tokens=3))
            async with asyncio.timeout(2):
                while running.deps.pool_states.in_flight("e1") < 2:
                    await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        (record,) = await running.recorded(1)
        assert (record.outcome, record.attempts) == ("client_gone", 2)


async def test_where_everything_is_slow_few_are_sent_twice() -> None:
    async with SimEngine(SIM) as first, SimEngine(SIM) as second, hedging(first, second) as running, running.client() as client:
        for engine in (first, second):
            engine.misbehave([slow(0.2)])
        await asyncio.gather(*(stream(client, max_tokens=2) for _ in range(100)))
        records: list[Record] = await running.recorded(100)
        assert sum(record.hedged != () for record in records) <= 2 + 0.02 * 100
        assert {record.outcome for record in records} == {"ok"}
