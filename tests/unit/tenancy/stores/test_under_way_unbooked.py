"""What lies on disk and may not be in SQL yet."""

import math
import os
from pathlib import Path

import pytest

from tenancy.stores.under_way import UnbookedUsage
from tenancy.stores.wal import UNDER_WAY, claim_new
from tenancy.wal_frames import frame
from tests.usage_events import event


async def test_what_ended_processes_left_and_what_is_written_now_is_read(tmp_path: Path) -> None:
    waiting = UnbookedUsage(tmp_path, lambda: False, lambda: 2000.0)
    assert await waiting.events() == [] and await waiting.oldest_s() == 0.0
    for process, names in (("9-x", ("00000001.wal", "00000002.open")), ("10-y", ("00000001.open",))):
        (tmp_path / process).mkdir()
        (tmp_path / process / "lock").touch()
        for name in names:
            path = tmp_path / process / name
            path.write_bytes(frame(event(f"{process}{name}")) + b"torn")
            os.utime(path, (1990.0, 1990.0))
    assert {one.request_id for one in await waiting.events()} == {"req-9-x00000001.wal", "req-9-x00000002.open", "req-10-y00000001.open"}
    assert await waiting.oldest_s() == 10.0


async def test_what_dead_processes_had_under_way_comes_before_rows_and_of_the_living_it_does_not_count(tmp_path: Path) -> None:
    dead, alive = claim_new(tmp_path, "9-x"), claim_new(tmp_path, "10-y")
    for claim in (dead, alive):
        (claim.path / UNDER_WAY).write_bytes(frame(event(claim.path.name, closing="lost")) + frame(event("both", closing="lost")))
    (dead.path / "00000001.open").write_bytes(frame(event("both", closing="settle")))
    dead.release()
    found = await UnbookedUsage(tmp_path, lambda: False, lambda: 0.0).events()
    assert [(one.request_id, one.closing) for one in found] == [("req-9-x", "lost"), ("req-both", "lost"), ("req-both", "settle")]
    alive.release()


async def test_what_is_read_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenancy.stores.under_way.READ_BYTES", 100)
    (tmp_path / "9-x").mkdir()
    for n in range(5):
        (tmp_path / "9-x" / f"0000000{n}.wal").write_bytes(frame(event(n)))
    assert 1 <= len(await UnbookedUsage(tmp_path, lambda: False, lambda: 0.0).events()) < 5


async def test_a_full_disk_is_late_without_an_end(tmp_path: Path) -> None:
    assert await UnbookedUsage(tmp_path, lambda: True, lambda: 0.0).oldest_s() == math.inf
