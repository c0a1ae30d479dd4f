"""The ledger never lies: random crashes and a database that goes away, over SQLite and real Postgres (R9, R36)."""

import asyncio
import random
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.limits import Level, Scope
from tenancy.stores.shipper import LedgerShipper
from tenancy.stores.sql import SqlUsageQueries, SqlUsageStore, migrate, open_engine
from tenancy.stores.wal import Wal
from tenancy.usage import BY, Filter
from tests.contract.wal_writer import EVERY_S
from tests.databases import postgres_server
from tests.scale import scaled
from tests.usage_events import grouped, random_event, sums_of

pytestmark = pytest.mark.slow

FSYNC_S = 0.05
SYNCS = 6
"""Times that an event may have to wait for the machine beside the interval: the round that is under way and its own, each of which wakes a
thread, syncs a new file's directory and syncs the file."""


class Kill(NamedTuple):
    """One crash: the first event of the process, a moment at which it still lived, and the longest this machine was late meanwhile."""

    first: int
    at: float
    late_s: float


WRITER = Path(__file__).parent / "wal_writer.py"


class Database:
    """A database of its own that can be stopped for a while."""

    def __init__(self, url: str, stop: Callable[[], None], start: Callable[[], None]) -> None:
        self.url = url
        self.stop = stop
        self.start = start
        self.engine: AsyncEngine = open_engine(url)


@asynccontextmanager
async def database(kind: str, folder: Path) -> AsyncIterator[Database]:
    """SQLite is stopped by somebody who holds its lock, Postgres by ending the server."""
    if kind == "sqlite":
        path = folder / "store.db"
        holding: list[sqlite3.Connection] = []

        def stop() -> None:
            # whoever lets go of it may be another thread
            held = sqlite3.connect(path, isolation_level=None, timeout=20, check_same_thread=False)
            held.execute("BEGIN EXCLUSIVE")
            holding.append(held)

        made = Database(f"sqlite:///{path}", stop, lambda: holding.pop().close())
        await migrate(made.engine)
        yield made
    else:
        with postgres_server() as server:
            made = Database(server.get_uri(), server._stop, server.ensure_postgres_running)
            await migrate(made.engine)
            yield made
    await made.engine.dispose()


async def everything_booked(database: Database) -> set[int]:
    """The numbers of the events in SQL; none may be there twice, and the totals must be theirs."""
    queries = SqlUsageQueries(database.engine)
    booked: list[int] = []
    after = None
    while True:
        page = await queries.events(Filter(), after, 5000)
        booked += [int(e.request_id.removeprefix("req-")) for e in page.events]
        if (after := page.next) is None:
            break
    assert len(booked) == len(set(booked))
    truth = [random_event(n, random.Random(n)) for n in booked]
    rows = (await queries.totals(BY, Filter(), None, 5000)).rows
    assert {row.labels: row.sums for row in rows} == grouped(truth, BY)
    assert await queries.spent(Scope(Level.GLOBAL, ""), None) == sums_of(truth)
    return set(booked)


@pytest.mark.fault("killed process")
@pytest.mark.req("R9")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_crashes_lose_one_sync_interval_and_book_nothing_twice(kind: str, tmp_path: Path, record_property: Any) -> None:
    count, every_us = scaled(4_000, 100_000), 500
    truth_path, wal = tmp_path / "truth", tmp_path / "wal"
    truth_path.write_bytes(bytes(8 * count + 16))
    rng = random.Random(9)
    kills: list[Kill] = []
    async with database(kind, tmp_path) as db:
        while True:
            appended = struct.unpack_from(f"{count}d", truth_path.read_bytes())
            first = next((n for n, at in enumerate(appended) if not at), count)
            if first == count:
                break
            process = subprocess.Popen(
                [sys.executable, str(WRITER), str(wal), db.url, str(truth_path), str(first), str(count), str(every_us)]
            )
            while process.poll() is None and not struct.unpack_from("d", truth_path.read_bytes(), 8 * first)[0]:
                await asyncio.sleep(0.01)
            stops = rng.random() < 0.3
            if stops:
                await asyncio.to_thread(db.stop)
            await asyncio.sleep(rng.random() * scaled(1, 8))
            killed_at = time.monotonic()
            process.kill()
            process.wait()
            begun, late = struct.unpack_from("2d", truth_path.read_bytes(), 8 * count)
            kills.append(Kill(first, killed_at, max(late, killed_at - begun - EVERY_S)))
            if stops:
                await asyncio.to_thread(db.start)
        shipper = LedgerShipper(wal, SqlUsageStore(db.engine), time.time)
        assert await shipper.close(60)
        assert not list(wal.glob("*/*"))
        booked = await everything_booked(db)
    lost = sorted(set(range(count)) - booked)
    assert kills, "nobody was killed"
    worst = late = 0.0
    for n in lost:
        kill = max((one for one in kills if one.first <= n), key=lambda one: one.first)
        window = kill.at - appended[n]
        told = f"event {n} was {window * 1e3:.0f} ms old, and the machine up to {kill.late_s * 1e3:.0f} ms late"
        assert window <= FSYNC_S + SYNCS * kill.late_s, told
        worst, late = max(worst, window), max(late, kill.late_s)
    record_property(
        "figure",
        f"{kind}: {count} events, {len(kills)} kills: 0 twice, {len(lost)} lost, all within {worst * 1000:.0f} ms on a machine "
        f"that was up to {late * 1000:.0f} ms late",
    )


@pytest.mark.fault("database away")
@pytest.mark.req("R36")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_database_that_is_away_costs_nothing(kind: str, tmp_path: Path, record_property: Any) -> None:
    away_s, per_s = scaled(8, 600), 200
    async with database(kind, tmp_path) as db:
        wal = Wal(tmp_path / "wal", "w", time.monotonic)
        shipper = LedgerShipper(wal.folder, SqlUsageStore(db.engine), time.time)
        shipping = asyncio.create_task(shipper.run())
        worst = n = 0.0
        begun = time.monotonic()
        stopped = started = False
        while (elapsed := time.monotonic() - begun) < away_s + 2:
            if elapsed > 1 and not stopped:
                stopped = True
                await asyncio.to_thread(db.stop)
            if elapsed > away_s + 1 and not started:
                started = True
                assert shipper.away
                assert shipper.waiting_bytes > 0
                assert shipper.lag_s > away_s / 2
                await asyncio.to_thread(db.start)
            while n < elapsed * per_s:
                before = time.perf_counter()
                wal.append(random_event(int(n), random.Random(int(n))))
                worst = max(worst, time.perf_counter() - before)
                n += 1
            await asyncio.sleep(0.005)
        wal.close()
        async with asyncio.timeout(60):
            while not await shipper.ship():
                await asyncio.sleep(0.2)
        shipping.cancel()
        await asyncio.gather(shipping, return_exceptions=True)
        assert await shipper.close()
        assert not shipper.away
        assert wal.dropped == 0
        assert await everything_booked(db) == set(range(int(n)))
    record_property(
        "figure", f"{kind}: away {away_s} s at {per_s}/s: {int(n)} events, 0 lost, 0 twice; longest append {worst * 1e6:.0f} us"
    )
