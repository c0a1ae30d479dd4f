"""Counters that fail in a way nobody foresaw: the request is over all the same, and in the ledger."""

import time

import pytest

from backends.simengine import SimEngine, SimSettings
from tenancy.hold import Hold
from tenancy.limits import Amounts, Level, Limit, Meter, Scope, Window
from tenancy.stores.memory import MemoryCounters
from tests.gateway_harness import chat, gateway

pytestmark = pytest.mark.slow

LIMIT = Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 10**6)


class Broken(MemoryCounters):
    async def settle(self, hold: Hold, actual: Amounts) -> None:
        raise OverflowError("a defect")


async def test_a_request_is_recorded_when_it_cannot_be_settled() -> None:
    engine_settings = SimSettings(models=("sim",), speed=2000)
    async with SimEngine(engine_settings) as engine, gateway(engine.url, limits=[LIMIT], counters=Broken(time.time)) as running:
        async with running.client() as client:
            answer = await client.post("/v1/chat/completions", json=chat(max_tokens=2))
        (record,) = await running.recorded(1)
        assert (answer.status_code, record.closing, record.usage.completion_tokens) == (200, "settle", 2)
        assert (running.deps.budget.active, running.open_holds) == (0, 0)
        assert [type(defect) for defect in running.defects] == [OverflowError]
        running.defects.clear()
