"""The write-ahead log on a real disk: durable, in order, one owner per segment, and honest when it is full."""

import asyncio
import os
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenancy.stores import wal as wal_module
from tenancy.stores.shipper import BATCH, LedgerShipper
from tenancy.stores.wal import SEALED, Wal, claim_new, segment_path, wal_directories
from tenancy.usage import LedgerAway, RowsRefused, UsageEvent, WriteResult
from tenancy.wal_frames import frame, read_frames
from tests.small_disk import no_syncs
from tests.timing import until
from tests.usage_events import event


class Store:
    """A store of rows in memory that can be away, or refuse some."""

    def __init__(self) -> None:
        self.rows: dict[str, UsageEvent] = {}
        self.away = False
        self.refuses: set[str] = set()
        self.batches: list[int] = []

    async def write(self, events: Sequence[UsageEvent]) -> WriteResult:
        if self.away:
            raise LedgerAway("switched off")
        if self.refuses & {e.request_id for e in events}:
            raise RowsRefused("not that one")
        self.batches.append(len(events))
        new = {e.request_id: e for e in events if e.request_id not in self.rows}
        self.rows |= new
        return WriteResult(len(new), len(events) - len(new))

    async def prepare(self, today: Any) -> None: ...

    async def sum_up_blocks(self, now_unix: float) -> int:
        return 0

    async def prune(self, first_kept: Any) -> int:
        return 0


def opened(folder: Path, name: str = "w", **options: Any) -> Wal:
    return Wal(folder, name, time.monotonic, **options)


def segments(wal: Wal) -> list[Path]:
    return sorted(wal.claim.path.glob("0*"))


def held(wal: Wal) -> list[str]:
    return [e.request_id for path in segments(wal) for e in read_frames(path.read_bytes()) if isinstance(e, UsageEvent)]


class Waits(threading.Event):
    """An event that keeps for how long it was waited for, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.asked_s.append(timeout)
        return super().wait(timeout)


def ids(count: int, first: int = 0) -> list[str]:
    return [f"req-{n}" for n in range(first, first + count)]


async def test_what_is_appended_is_durable_within_the_interval_and_in_order(tmp_path: Path) -> None:
    wal = opened(tmp_path / "wal", fsync_s=0.05)
    wal._closing = waits = Waits()
    for n in range(1000):
        wal.append(event(n))
    await until(lambda: wal.written == 1000)
    assert held(wal) == ids(1000)
    assert waits.asked_s and all(0.0 < wait_s <= 0.05 for wait_s in waits.asked_s), "events wait for each other no longer than that"
    wal.close()
    assert held(wal) == ids(1000)


async def test_only_the_owner_may_read(tmp_path: Path) -> None:
    wal = opened(tmp_path / "a" / "wal")
    wal.append(event())
    wal.close()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "wal").rglob("*")}
    assert modes == {0o600, 0o700}
    assert stat.S_IMODE((tmp_path / "a" / "wal").stat().st_mode) == 0o700


async def test_segments_are_sealed_by_size_and_by_age(tmp_path: Path) -> None:
    wal = opened(tmp_path / "wal", segment_bytes=len(frame(event(1000))) * 10, segment_s=3600.0, fsync_s=0.001)
    for n in range(1000, 1100):
        wal.append(event(n))
        if n % 10 == 9:
            await until(lambda n=n: len(wal.claim.sealed()) == (n - 999) // 10)
    wal.append(event("late"))
    await until(lambda: wal.written == 101)
    assert (len(wal.claim.sealed()), held(wal)) == (10, [*ids(100, 1000), "req-late"])
    wal.close()
    aged = opened(tmp_path / "aged", segment_s=0.1, fsync_s=0.001)
    aged.append(event("old"))
    await until(lambda: aged.written == 1)
    await until(lambda: segments(aged) and aged.claim.sealed() == segments(aged))  # nobody appends any more: age alone seals
    assert held(aged) == ["req-old"]
    aged.close()


async def test_the_open_segment_of_a_living_process_is_let_alone(tmp_path: Path) -> None:
    folder = tmp_path / "wal"
    one = opened(folder, "one", segment_s=60.0)
    one.append(event(1))
    await until(lambda: one.written == 1)
    assert wal_directories(folder) == [wal_directories(folder)[0]]
    assert (wal_directories(folder)[0].is_dead, wal_directories(folder)[0].segments) == (False, ())
    os.close(one.claim._lock)  # what the kernel does when a process is killed
    assert (wal_directories(folder)[0].is_dead, len(wal_directories(folder)[0].segments)) == (True, 1)
    with pytest.raises(OSError):
        opened(folder, "one")
    one.claim._lock = -1
    one.close()


async def test_one_process_ships_for_all_and_another_takes_over_when_it_ends(tmp_path: Path) -> None:
    folder, stores = tmp_path / "wal", [Store(), Store()]
    shippers = [LedgerShipper(folder, store, time.time) for store in stores]
    wal = opened(folder)
    wal.append(event(1))
    wal.close()
    assert [await shipper.ship() for shipper in shippers] == [True, False]
    wal = opened(folder, "next")
    wal.append(event(2))
    wal.close()
    assert not await shippers[1].ship()
    assert await shippers[0].close()
    wal = opened(folder, "third")
    wal.append(event(3))
    wal.close()
    assert await shippers[1].close()
    assert [sorted(store.rows) for store in stores] == [["req-1", "req-2"], ["req-3"]]


async def test_segments_of_the_living_and_the_dead_are_shipped_and_go(tmp_path: Path) -> None:
    folder, store = tmp_path / "wal", Store()
    dead = claim_new(folder, "dead")
    whole = b"".join(frame(event(n)) for n in range(BATCH + 700))
    segment_path(dead.path, 1, SEALED).write_bytes(whole)
    segment_path(dead.path, 2).write_bytes(frame(event(BATCH + 700)) + frame(event("torn"))[:-3])
    dead.release()
    wal = opened(folder, "alive", segment_s=0.01)
    wal.append(event("mine"))
    wal.append(event(5))
    await until(lambda: wal.written == 2 and wal.claim.sealed() == segments(wal))
    shipper = LedgerShipper(folder, store, time.time)
    assert await shipper.ship()
    assert sorted(store.rows) == sorted([*ids(BATCH + 701), "req-mine"])
    assert (shipper.counts.booked, shipper.counts.repeated, shipper.counts.damaged) == (BATCH + 702, 1, 1)
    assert max(store.batches) == BATCH
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["alive"]
    wal.close()
    assert await shipper.close()
    assert [path.name for path in folder.iterdir() if path.is_dir()] == []


async def test_while_sql_is_away_nothing_is_removed(tmp_path: Path) -> None:
    store = Store()
    store.away = True
    wal = opened(tmp_path / "wal", segment_s=0.01)
    shipper = LedgerShipper(wal.folder, store, time.time, every_s=0.01)
    running = asyncio.create_task(shipper.run())
    for n in range(50):
        wal.append(event(n))
        await asyncio.sleep(0.002)
    await until(lambda: wal.written == 50 and shipper.away)
    assert held(wal) == ids(50)
    await until(lambda: shipper.waiting_bytes > 0)
    store.away = False
    await until(lambda: len(store.rows) == 50)
    await until(lambda: not shipper.away and not shipper.waiting_bytes)
    assert shipper.lag_s == 0.0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    wal.close()
    assert await shipper.close()


async def test_a_row_that_sql_refuses_for_good_does_not_hold_up_the_others(tmp_path: Path) -> None:
    store = Store()
    store.refuses = {"req-17"}
    wal = opened(tmp_path / "wal")
    for n in range(100):
        wal.append(event(n))
    wal.close()
    shipper = LedgerShipper(wal.folder, store, time.time)
    assert await shipper.ship()
    assert sorted(store.rows) == sorted(set(ids(100)) - {"req-17"})
    assert shipper.counts.refused == 1


@pytest.mark.fault("disk full")
async def test_a_full_disk_keeps_the_oldest_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_module, "RETRY_S", 0.01)
    store = Store()
    wal = opened(tmp_path / "wal", max_bytes=5_000, segment_bytes=2_000, room=100)
    for n in range(60):
        wal.append(event(n))
        await until(lambda n=n: wal.written > n or wal.full)
        if wal.full:
            break
    assert wal.full
    assert 0 < wal.written < 60
    waiting = wal.waiting
    for k in range(300):
        wal.append(event(n + 1 + k))
    assert wal.waiting <= 101
    assert wal.dropped == 300 + waiting - wal.waiting
    kept = ids(wal.written + wal.waiting)
    assert held(wal) == ids(wal.written)
    shipper = LedgerShipper(wal.folder, store, time.time)
    while len(store.rows) < len(kept):
        await shipper.ship()
        await asyncio.sleep(0.01)
        wal._wake.set()
    assert sorted(store.rows) == sorted(kept)
    await until(lambda: not wal.full)
    wal.close()


@pytest.mark.fault("disk full")
async def test_a_disk_that_fails_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync the same events are written again, to another segment."""
    monkeypatch.setattr(wal_module, "RETRY_S", 0.01)
    failing = no_syncs(monkeypatch, wal_module)
    wal = opened(tmp_path / "wal")
    for n in range(10):
        wal.append(event(n))
    await until(lambda: wal.full)
    assert wal.written == 0
    failing.clear()
    await until(lambda: wal.written == 10)
    assert not wal.full
    wal.close()
    assert held(wal) == ids(10)
    assert wal.dropped == 0


async def test_events_that_no_disk_took_are_counted_at_the_end(tmp_path: Path) -> None:
    wal = opened(tmp_path / "wal", max_bytes=0)
    for n in range(5):
        wal.append(event(n))
    wal.close()
    assert (wal.written, wal.dropped) == (0, 5)
    wal.append(event(6))
    assert wal.dropped == 6


def test_a_folder_that_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        opened(tmp_path / "file" / "wal")
