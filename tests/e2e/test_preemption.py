"""Batch requests that nothing has come of give their places to more urgent ones, in a whole gateway: who is answered when, what is
written and what is charged."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.gateway_harness import Gateway, Stream, gateway, stream
from tests.timing import until

pytestmark = pytest.mark.slow

CAP = 4
SLOW_S = 2.5
"""How late the engine begins. What is critical is answered meanwhile, in some milliseconds of a quiet machine."""
POLICY = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "class": "critical", "expose_headers": True}
LIMITS = [Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 10**9)]


@contextlib.asynccontextmanager
async def world(preempt: str = "batch") -> AsyncIterator[tuple[SimEngine, Gateway, httpx.AsyncClient, httpx.AsyncClient]]:
    """An engine with room for a few, and who asks: for batch, and for what is critical."""
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(SimEngine(SimSettings(models=("sim",))))
        pool = {"backends": [{"id": "e0", "url": engine.url, "max_in_flight": CAP}], "limit": {"enabled": False, "kept_free": 0}}
        options: dict[str, Any] = {"policies": (POLICY,), "limits": LIMITS, "engines": {"heartbeat_s": 0.2}}
        running = await stack.enter_async_context(gateway(pool=pool, queue={"preempt": preempt}, **options))
        batch, urgent = [await stack.enter_async_context(running.client(name)) for name in ("acme", "bolt")]
        batch.headers["x-tidegate-class"] = "batch"
        yield engine, running, batch, urgent


async def begun(engine: SimEngine, client: httpx.AsyncClient, delay_s: float, **fields: Any) -> list["asyncio.Task[Stream]"]:
    """As many streams as the engine has room for, none of which it begins to answer sooner than this."""
    engine.inject([FaultRule("slow_start", delay_s=delay_s)] * CAP)
    tasks = [asyncio.create_task(stream(client, max_tokens=20, **fields)) for _ in range(CAP)]
    await until(lambda: sum(b"say something" in one.body for one in engine.received) == CAP)
    return tasks


async def charged(running: Gateway) -> tuple[int, int]:
    """Tokens that the batch tenant has used, and holds."""
    live = running.deps.live
    caller = live.directory.keys.authenticate(running.keys["acme"], 0.0)
    assert caller is not None
    groups = live.directory.grant(caller.key_id, 0.0).groups("sim")
    (state,) = [one for group in groups for one in await running.deps.counters.look(group)]
    return state.used, state.held


@pytest.mark.parametrize("preempt", ["batch", "none"])
async def test_what_is_critical_need_not_wait_for_batch_that_has_not_begun_and_batch_is_answered_all_the_same(preempt: str) -> None:
    async with world(preempt) as (engine, running, batch, urgent):
        tasks = await begun(engine, batch, SLOW_S)
        critical = await stream(urgent, max_tokens=3)
        assert critical.done
        assert any(task.done() for task in tasks) is (preempt == "none")
        replies = await asyncio.gather(*tasks)
        assert all(one.done and one.clean and not one.errors for one in replies)
        records = await running.recorded(CAP + 1)
        back = [one for one in records if one.pulled_back]
        if preempt == "none":
            assert back == []
            return
        assert (records[0].priority_class, records[0].queued, records[0].attempts) == ("critical", "served", 1)
        told = [(one.attempts, one.failed, one.outcome, one.closing, one.queued, one.priority_class) for one in back]
        assert told == [(2, (), "ok", "settle", "served", "batch")]
        assert 0.0 < back[0].queue_s < SLOW_S
        assert all(one.overhead_s < SLOW_S / 2 for one in records), "what was lost is nobody's overhead"
        taken = sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in records if one.tenant == "acme")
        assert await charged(running) == (taken, 0), "each answer once, and nothing for what was computed in vain"
        assert running.deps.budget.retrying == 0
        assert not running.deps.pool_states.total()


async def test_an_answer_that_has_begun_is_never_taken_back() -> None:
    async with world() as (engine, running, batch, urgent):
        tasks = [asyncio.create_task(stream(batch, max_tokens=100)) for _ in range(CAP)]
        await until(
            lambda: len(running.deps.watch.last_events()) == 1 and running.deps.pool_states["chat"].load_table.begun_on("e0") == CAP
        )
        critical = await stream(urgent, max_tokens=3)
        assert critical.done
        replies = await asyncio.gather(*tasks)
        assert all(one.done and one.clean for one in replies)
        records = await running.recorded(CAP + 1)
        assert not any(one.pulled_back or one.attempts != 1 for one in records)
        assert engine.in_flight == 0


async def test_who_gets_no_second_turn_in_time_is_told_as_any_other_and_who_leaves_pays_for_nothing() -> None:
    async with world() as (engine, running, batch, urgent):
        batch.headers["x-tidegate-timeout-s"] = "4"
        tasks = await begun(engine, batch, 30.0)
        engine.inject([FaultRule("slow_start", delay_s=30.0)] * 2)
        long = [asyncio.create_task(stream(urgent)) for _ in range(2)]
        await until(lambda: running.deps.queues["chat"].state().waiting == (0, 0, 0, 2))
        last = tasks[-1]  # sent last, so it gave way
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)
        (gone,) = await running.recorded(1)
        assert (gone.outcome, gone.closing, gone.pulled_back, gone.usage.prompt_tokens) == ("client_gone", "release", True, 0)
        assert 0.0 <= gone.overhead_s < SLOW_S / 2
        refused = await tasks[-2]
        assert [one["code"] for one in refused.errors] == ["overloaded"]
        record = (await running.recorded(2))[1]
        assert (record.outcome, record.queued, record.closing, record.status) == ("overloaded", "timed_out", "release", 200)
        for task in [*tasks, *long]:
            task.cancel()
        await asyncio.gather(*tasks, *long, return_exceptions=True)
        await until(lambda: not (running.open_holds or running.deps.pool_states.total() or running.deps.budget.active or engine.in_flight))
        assert (await charged(running))[1] == 0
