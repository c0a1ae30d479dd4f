"""Gateways under load while the counter store changes its primary, and while the database answers late."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.booked import booked
from tests.contract.test_ledger_crashes import database
from tests.e2e.test_shared_directory import Load
from tests.replicas import ADMIN, Replica, Reply, Tenancy, admin_client, replicas
from tests.scale import LONG, scaled
from tests.timing import HANG_S
from tests.valkey_servers import SERVICE, FaultProxy, SentinelSet, ask, sentinel_set
from tests.valkey_servers import until as servers_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LONG, reason="minutes: make test-faults; tests/contract has short forms")]

SIM = SimSettings(models=("sim",), instant=True)
PER_DAY = 2000
PER_S = 150
LAG_S = 1.0
"""What a replica may be behind (research, bounds of a failover)."""


def now_primary(servers: SentinelSet, before: int) -> bool:
    """Whether the Sentinels name another one that takes writes."""
    primary = servers.primary
    return primary.port != before and b"role:master" in ask(primary.port, "INFO", "replication")


async def moves(servers: SentinelSet, made: list[Replica], key: str, how: str) -> float:
    """Seconds from the loss of the primary until no gateway decides alone any more."""
    old = servers.primary
    begun = time.monotonic()
    if how == "killed":
        await asyncio.to_thread(old.stop, signal.SIGKILL)
    else:
        ask(servers.sentinels[0].port, "SENTINEL", "FAILOVER", SERVICE)
    await asyncio.to_thread(servers_until, lambda: now_primary(servers, old.port), "another primary")
    calm = 0
    async with asyncio.timeout(30):
        while calm < 5:
            said = [await one.ask(key) for one in made]
            calm = calm + 1 if not any(reply.degraded for reply in said) else 0
            await asyncio.sleep(0.1)
    return time.monotonic() - begun


async def used(one: Replica, tenant: str) -> int:
    """Of its only limit, as the counters say."""
    async with httpx.AsyncClient(trust_env=False, headers=ADMIN, timeout=HANG_S) as client:
        reply = await client.get(f"{one.admin}/limits/state", params={"name": tenant})
    return int(reply.json()["items"][0]["used"])


@asynccontextmanager
async def asked(made: list[Replica], per_s: int, *keys: str) -> AsyncIterator[list[list[Reply]]]:
    """What each key was answered."""
    loads = [Load(made, per_s, lambda _, key=key: key) for key in keys]  # type: ignore[misc]  # bound in the comprehension
    async with contextlib.AsyncExitStack() as stack:
        for load in loads:
            await stack.enter_async_context(load.running())
        yield [load.replies for load in loads]


@pytest.mark.req("R17")
@pytest.mark.fault("counter store fails over")
async def test_a_primary_that_is_lost_under_load(tmp_path: Path, record_property: Any) -> None:
    """Scripts forgotten, a failover in order (the old primary says READONLY), and one without warning."""
    tenancy = Tenancy(
        ["wide", "tight", "probe"],
        [
            Limit(Scope(Level.TENANT, "wide"), Meter.REQUESTS, Window.MINUTE, 10**7),
            Limit(Scope(Level.TENANT, "tight"), Meter.REQUESTS, Window.DAY, PER_DAY),
            Limit(Scope(Level.TENANT, "probe"), Meter.REQUESTS, Window.MINUTE, 10**7),
        ],
    )
    with sentinel_set(tmp_path) as servers:
        async with SimEngine(SIM) as engine, replicas(tmp_path, 2, tenancy, engine=engine.url, counters=servers.url) as made:
            keys = tenancy.keys
            async with asked(made, PER_S // 3, keys["wide"], keys["tight"]) as (wide, tight):
                await asyncio.sleep(3.0)
                ask(servers.primary.port, "SCRIPT", "FLUSH")
                await asyncio.sleep(1.0)
                flushed = [reply for reply in (*wide, *tight) if reply.degraded]
                in_order_s = await moves(servers, made, keys["probe"], "in order")
                await asyncio.sleep(3.0)
                late = [reply for reply in tight if reply.status == 200 and reply.at > time.monotonic() - LAG_S]
                killed_s = await moves(servers, made, keys["probe"], "killed")
                async with asyncio.timeout(120):
                    while [reply.status for reply in tight[-20:]] != [429] * 20:
                        await asyncio.sleep(0.2)
                await asyncio.sleep(2.0)
            counted = await used(made[0], "tight")
            logs = "".join(one.errors for one in made)
    admitted = sum(reply.status == 200 for reply in tight)
    alone = sum(reply.status == 200 and reply.degraded for reply in tight)
    record_property(
        "figure",
        f"all {len(wide)} requests without a tight limit answered; {admitted} of {PER_DAY} a day admitted, {alone} of them alone; "
        f"the store decided again {in_order_s:.1f} s after a failover in order, {killed_s:.1f} s after a kill; {counted} counted",
    )
    assert flushed == [], "scripts are sent again"
    assert {reply.status for reply in wide} == {200}
    assert {reply.status for reply in tight} == {200, 429}
    assert PER_DAY * 0.95 <= admitted <= PER_DAY * 1.05 + len(late)
    assert counted >= admitted * 0.95
    assert "Traceback" not in logs


async def waiting(one: Replica) -> float:
    """Bytes of usage that are not in the database yet, what is not sealed aside."""
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        text = (await client.get(f"http://127.0.0.1:{one.admin_port}/metrics")).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("tidegate_ledger_waiting_bytes "))


def slowest(replies: list[Reply], begin: float, end: float) -> tuple[float, float]:
    """Median and 99th percentile in ms of what was asked in that time."""
    took = sorted(reply.took_s * 1e3 for reply in replies if begin <= reply.at - reply.took_s < end)
    return took[len(took) // 2], took[int(len(took) * 0.99)]


@pytest.mark.req("R36")
@pytest.mark.fault("database slow")
async def test_a_database_that_is_slow_holds_nobody_up(tmp_path: Path, record_property: Any) -> None:
    tenancy, per_s, slow_s = Tenancy(["acme"]), 200, scaled(10, 120)
    async with database("postgres", tmp_path) as db, SimEngine(SIM) as engine, admin_client() as admin:
        socket = Path(db.url.rpartition("host=")[2]) / ".s.PGSQL.5432"
        async with FaultProxy(socket) as proxy:
            sql = f"postgresql://postgres@{proxy.HOST}:{proxy.port}/postgres"
            async with replicas(tmp_path, 2, tenancy, engine=engine.url, counters="memory://", sql=sql) as made:
                load = Load(made, per_s, lambda _: tenancy.keys["acme"])
                async with load.running():
                    await asyncio.sleep(1.0)
                    begun = time.monotonic()
                    await asyncio.sleep(5.0)
                    late_from = time.monotonic()
                    proxy.delay_s = 5.0
                    writes = [(await admin.post(f"{made[0].admin}/tenants", json={"name": "while-slow"})).status_code]
                    written_s = time.monotonic() - late_from
                    await asyncio.sleep(late_from + slow_s - time.monotonic())
                    proxy.delay_s = 0.0
                    healed = time.monotonic()
                    async with asyncio.timeout(60):
                        while (await admin.post(f"{made[0].admin}/tenants", json={"name": "after"})).status_code not in (201, 409):
                            await asyncio.sleep(0.5)
                    back_s = time.monotonic() - healed
                async with asyncio.timeout(60):
                    while any([await waiting(one) for one in made]):
                        await asyncio.sleep(0.5)
                booked_s = time.monotonic() - healed
                logs = "".join(one.errors for one in made)
        rows, counted = await booked(db.url)
    failed = [reply for reply in load.replies if reply.status != 200]
    usual, slow = slowest(load.replies, begun, late_from), slowest(load.replies, late_from, healed)
    record_property(
        "figure",
        f"Postgres 5 s late for {slow_s} s at {per_s}/s: {len(load.replies)} requests, {len(failed)} failed; "
        f"median {usual[0]:.1f} ms before, {slow[0]:.1f} ms then (p99 {usual[1]:.0f}, {slow[1]:.0f}); {len(rows)} rows; "
        f"an admin write {writes[0]} after {written_s:.0f} s, "
        f"201 again after {back_s:.1f} s, everything booked after {booked_s:.1f} s",
    )
    assert failed == []
    assert slow[0] <= 2 * usual[0] + 5.0
    assert writes[0] in (201, 503)
    assert sorted(rows) == sorted(reply.headers["x-request-id"] for reply in load.replies)
    assert counted == len(rows)
    assert "Traceback" not in logs
