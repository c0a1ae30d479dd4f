"""What it costs to set calendar counters from the ledger, and to compare them: `python -m bench.reconcile [--limits N] [--days N]`.

N keys with a limit each, of which every tenth used something on every day, in a SQLite file; counters in memory, and in a Valkey of this
script's own. Prints seconds, and the longest time that the event loop of a worker could do nothing else.
"""

import argparse
import asyncio
import datetime as dt
import gc
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.identity import KeyId, ProjectId, TenantId
from gateway.ledger.reconcile import Reconciler
from tenancy.accounts import Contents, Organisation, Project, Tenant
from tenancy.counter_url import parse_counter_url
from tenancy.directory import Directory
from tenancy.keys import KeyRecord, Pepper
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.seeds import Tallies
from tenancy.stores.memory import MemoryCounters
from tenancy.stores.sql import SqlSpendReader, migrate, open_engine
from tenancy.stores.sql.schema import USAGE_AMOUNTS, USAGE_LABELS, usage_total
from tenancy.stores.valkey import ValkeyCounters
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.embedded import EmbeddedServer
from tenancy.usage import UsageEvent

ACTIVE = 10
TENANTS = 100
KINDS = ((Meter.TOKENS, Window.DAY), (Meter.COST_NANOUSD, Window.MONTH), (Meter.COST_NANOUSD, Window.EVER))


class NothingWaits:
    """No write-ahead log."""

    async def events(self) -> list[UsageEvent]:
        """None."""
        return []

    async def oldest_s(self) -> float:
        """Nothing is late."""
        return 0.0


def directory(limits: int) -> Directory:
    """So many keys with a limit each."""
    tenants = [TenantId(f"t{n}") for n in range(TENANTS)]
    keys = [
        KeyRecord(id=KeyId(f"k{n}"), tenant=tenants[n % TENANTS], project=ProjectId("p"), kid="k", digests=(b"d" * 32,), created_unix=0.0)
        for n in range(limits)
    ]
    contents = Contents(
        organisations=(Organisation("default"),),
        tenants=tuple(Tenant(tenant) for tenant in tenants),
        projects=tuple(Project(tenant, ProjectId("p")) for tenant in tenants),
        keys=tuple(keys),
        limits=tuple(Limit(Scope(Level.KEY, f"k{n}"), *KINDS[n % 3], 10**12) for n in range(limits)),
    )
    return Directory(contents, Pepper("k", b"p" * 32))


async def fill(engine: AsyncEngine, limits: int, days: int) -> int:
    """Totals of so many days; returns the rows."""
    today, rows = dt.datetime.now(dt.UTC).date(), 0
    for day in range(days):
        some = [
            {
                "day": today - dt.timedelta(days=day),
                "bucket": secrets.token_bytes(16),
                **dict.fromkeys(USAGE_LABELS, ""),
                "tenant": f"t{n % TENANTS}",
                "key_id": f"k{n}",
                "requests": 10,
                "free_requests": 0,
                **dict.fromkeys(USAGE_AMOUNTS, 1000),
            }
            for n in range(day % ACTIVE, limits, ACTIVE)
        ]
        async with engine.begin() as connection:
            await connection.execute(sa.insert(usage_total), some)
        rows += len(some)
    return rows


async def timed(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Seconds taken, and the longest stall of the loop."""
    longest, done = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not done:
            at = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - at - 0.001)

    watching = asyncio.create_task(watch())
    begun = time.perf_counter()
    await work()
    took = time.perf_counter() - begun
    done = True
    await watching
    return took, longest


async def measure(name: str, engine: AsyncEngine, known: Directory, tallies: Tallies) -> None:
    """Print what one kind of counters takes."""

    async def turn(late: bool) -> tuple[bool, bool]:
        return True, late

    reconciler = Reconciler(SqlSpendReader(engine), lambda: known, tallies, NothingWaits(), turn, time.time, time.monotonic)
    for what, work in (("begin", reconciler.begin), ("compare", reconciler.compare), ("compare again", reconciler.compare)):
        took, stall = await timed(work)
        print(f"{name:8} {what:14} {took:6.3f} s   longest stall {stall * 1e3:6.1f} ms   unread {reconciler.state().unread}")


async def main(limits: int, days: int) -> None:
    """Fill, then measure both."""
    with TemporaryDirectory() as folder:
        engine = open_engine(f"sqlite:///{folder}/t.db")
        await migrate(engine)
        print(f"{limits} limits, {await fill(engine, limits, days)} rows of totals")
        known = directory(limits)
        gc.collect()
        gc.freeze()  # as a worker does
        gc.set_threshold(20_000, 20, 50)
        await measure("memory", engine, known, MemoryCounters(time.time))
        path = Path(folder) / "c.sock"
        server = EmbeddedServer(Path(folder) / "c", path)
        await asyncio.to_thread(server.start)
        scripts = ValkeyScripts(parse_counter_url(f"unix://{path}"))
        try:
            assert await scripts.start(5.0), scripts.why
            await measure("valkey", engine, known, ValkeyCounters(scripts))
        finally:
            await scripts.close()
            await asyncio.to_thread(server.stop)
        await engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--limits", type=int, default=10_000)
    parser.add_argument("--days", type=int, default=90)
    wanted = parser.parse_args()
    asyncio.run(main(wanted.limits, wanted.days))
