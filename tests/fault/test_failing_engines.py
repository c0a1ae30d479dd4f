"""Engines that answer with errors or hang up: what callers notice of it, and what is billed."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.e2e.test_health import failed, load
from tests.e2e.test_serve import ask, serving
from tests.fault.proxy import PASS, Proxy, proxied, reset
from tests.gateway_harness import chat, gateway
from tests.scale import scaled
from tests.timing import until

pytestmark = pytest.mark.slow

Note = Callable[[str, object], None]

SIM = SimSettings(models=("sim",), speed=200)
RESETS = scaled(20, 1000)
TWO_ENGINES = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
pools:
  - name: chat
    model: sim
    backends:
      - {{id: e0, url: "{url}"}}
      - {{id: e1, url: "{backend}"}}
"""


@pytest.mark.fault("5xx burst")
@pytest.mark.req("R11")
async def test_one_engine_of_three_that_fails_half_the_time_is_hardly_noticed(record_property: Note) -> None:
    async with SimEngine(SIM) as bad, SimEngine(SIM) as b, SimEngine(SIM) as c, gateway(bad.url, b.url, c.url) as running:
        async with running.client() as client:
            bad.misbehave([FaultRule("status_500", p=0.5)])
            async with load(client, 50, streamed=False):
                await asyncio.sleep(scaled(2, 60))
                # of fewer, the failures before its breaker opens would be more than one in a hundred
                await until(lambda: len(running.records) >= 300)
        missed, total = failed(running.records), len(running.records)
        attempts = sum(record.attempts for record in running.records)
        assert len(missed) <= 0.01 * total
        assert running.open_holds == 0
        record_property("figure", f"one of 3 at 50 %: {len(missed)} of {total} failed, {attempts / total:.2f} attempts per request")


@pytest.mark.fault("5xx burst")
@pytest.mark.req("R11")
async def test_three_engines_that_fail_half_the_time_are_not_asked_much_more(record_property: Note) -> None:
    half = SimSettings(models=("sim",), speed=2000, faults=(FaultRule("status_500", p=0.5),), seed=11)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(half)) for _ in range(3)]
        running = await stack.enter_async_context(gateway(*(engine.url for engine in engines)))
        client = await stack.enter_async_context(running.client(limits=httpx.Limits(max_connections=32)))
        sent, until_at = asyncio.Semaphore(32), time.monotonic() + scaled(1, 60)

        async def call() -> int:
            async with sent:
                return (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code

        statuses: list[int] = []
        while time.monotonic() < until_at or len(statuses) < 640:  # with fewer, the retries that are always allowed would count for much
            statuses += await asyncio.gather(*(call() for _ in range(64)))
        count = len(statuses)
        attempts = sum(engine.count for engine in engines)
    assert set(statuses) <= {200, 502, 503}
    assert attempts <= 1.25 * count
    record_property(
        "figure", f"all 3 at 50 %: {attempts / count:.2f} attempts per request, {statuses.count(200) / count:.0%} of {count} succeeded"
    )


def different(number: int) -> dict[str, object]:
    """A request like no other: one that two engines died of would be refused for that."""
    return ask(messages=[{"role": "user", "content": f"question {number}"}], max_tokens=2, ignore_eos=True)


@pytest.mark.fault("reset before headers")
@pytest.mark.req("R9", "R11")
async def test_resets_put_no_request_into_the_ledger_twice(tmp_path: Path, record_property: Note) -> None:
    """By turns one of two networks resets every reply, after its engine did the work: the worst case for counting twice."""
    async with SimEngine(SIM) as one, SimEngine(SIM) as other, proxied(one.url) as p0, proxied(other.url) as p1:
        async with serving(tmp_path, p0.url, backend=p1.url, settings=TWO_ENGINES) as served:
            turning = asyncio.create_task(_by_turns(p0, p1))
            async with httpx.AsyncClient(base_url=served.url, headers=served.headers, trust_env=False, timeout=20) as client:
                tokens: dict[str, int] = {}
                while p0.ended + p1.ended < RESETS:
                    replies = await asyncio.gather(
                        *(client.post("/v1/chat/completions", json=different(len(tokens) + n)) for n in range(8))
                    )
                    for reply in replies:
                        assert reply.status_code in (200, 502, 503)
                        usage = reply.json().get("usage", {})
                        tokens[reply.headers["x-request-id"]] = usage.get("completion_tokens", 0)
            turning.cancel()
            served.process.terminate()
            assert await asyncio.to_thread(served.process.wait, 20) == 0
    rows = sqlite3.connect(tmp_path / "tidegate.db").execute("SELECT request_id, completion_tokens FROM usage_event").fetchall()
    assert len(rows) == len({request_id for request_id, _ in rows})
    assert {request_id: count for request_id, count in rows if count} == {key: count for key, count in tokens.items() if count}
    answered = sum(count > 0 for count in tokens.values())
    record_property("figure", f"{p0.ended + p1.ended} resets, {answered} of {len(tokens)} answered, 0 in the ledger twice")


async def _by_turns(one: Proxy, other: Proxy) -> None:
    while True:
        one.fault, other.fault = reset(), PASS
        await asyncio.sleep(0.05)
        one.fault, other.fault = PASS, reset()
        await asyncio.sleep(0.05)
