"""The disk of the ledger is full: what money limits is refused clearly, nothing else notices, and no row is lost."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import Price, TokenRates
from tests.booked import booked
from tests.replicas import Reply, Tenancy, replicas
from tests.scale import scaled
from tests.small_disk import fill, small_disk
from tests.timing import HANG_S, timely, until

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), instant=True)
FULL_S = scaled(1, 60)
BACK_S = 10.0
"""The longest that an official client is told to wait."""
LIMITS = [
    Limit(Scope(Level.TENANT, "money"), Meter.COST_NANOUSD, Window.EVER, 10**15),
    Limit(Scope(Level.TENANT, "rate"), Meter.REQUESTS, Window.MINUTE, 10**6),
]
PRICE = Price("p", "sim", "*", 0.0, TokenRates(10**9, 10**9, 10**9))


@pytest.mark.fault("disk full")
@pytest.mark.req("R9")
async def test_money_waits_for_room_and_everything_else_goes_on(tmp_path: Path, record_property: Any) -> None:
    tenancy = Tenancy(["money", "rate", "free"], LIMITS, [PRICE])
    seen: dict[str, list[Reply]] = {name: [] for name in tenancy.tenants}
    with small_disk(tmp_path / "g0" / "tidegate-ledger", 24) as disk:
        async with SimEngine(SIM) as engine, replicas(tmp_path, 1, tenancy, engine=engine.url, counters="memory://") as (one,):

            async def caller(name: str) -> None:
                while True:
                    seen[name].append(await one.ask(tenancy.keys[name]))
                    await asyncio.sleep(0.02)

            async def gauge() -> str:
                async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
                    text = (await client.get(f"http://127.0.0.1:{one.admin_port}/metrics")).text
                return next(line.split()[-1] for line in text.splitlines() if line.startswith("tidegate_ledger_full"))

            tasks = [asyncio.create_task(caller(name)) for name in seen]
            await until(lambda: all(len(replies) >= 10 for replies in seen.values()))
            assert {reply.status for replies in seen.values() for reply in replies} == {200}
            assert await gauge() == "0.0"
            ballast = fill(disk)
            filled = time.monotonic()
            async with asyncio.timeout(HANG_S):
                while seen["money"][-1].status == 200:
                    await asyncio.sleep(0.01)
            noticed_s = time.monotonic() - filled
            refused = seen["money"][-1]
            await asyncio.sleep(FULL_S)
            assert {reply.status for reply in seen["money"] if reply.at > filled + noticed_s + 0.1} == {503}
            assert await gauge() == "1.0"
            ballast.unlink()
            freed = time.monotonic()
            async with asyncio.timeout(HANG_S):
                while seen["money"][-1].status != 200:
                    await asyncio.sleep(0.01)
            back_s = timely(time.monotonic() - freed, BACK_S)
            assert await gauge() == "0.0"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.2)
            logs = one.errors
        rows, counted = await booked(f"sqlite:///{tmp_path / 'shared.db'}")
    assert refused.json["error"]["code"] == "quota_unavailable"
    assert "written down" in refused.json["error"]["message"]
    assert refused.headers["x-should-retry"] == "true" and int(refused.headers["retry-after"]) >= 5
    assert {reply.status for name in ("rate", "free") for reply in seen[name]} == {200}
    assert "the write-ahead log takes no events" in logs and "takes events again" in logs and "Traceback" not in logs
    served = [reply.headers["x-request-id"] for replies in seen.values() for reply in replies if reply.status == 200]
    lost, unknown = set(served) - set(rows), set(rows) - set(served)
    record_property(
        "figure",
        f"full for {FULL_S} s: money refused after {noticed_s:.1f} s, served again {back_s:.1f} s after there was room; "
        f"{len(served)} others answered, {len(lost)} rows lost",
    )
    assert lost == set() and len(rows) == len(set(rows)) == counted
    assert len(unknown) <= len(seen), "only what was under way when the callers stopped"
