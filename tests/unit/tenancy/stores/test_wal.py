"""The write-ahead log and its directory: the name of a segment is as durable as the events in it."""

import os
import time
from pathlib import Path

import pytest

from tenancy.stores.wal import Wal
from tenancy.wal_frames import frame
from tests.usage_events import event


def test_a_segment_s_name_is_durable_before_its_events_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure loses a file whose directory was not synced after the file was made, however often the file itself was synced."""
    folder = tmp_path / "wal"
    durable: set[str] = set()
    early: list[str] = []
    sync, sync_data = os.fsync, os.fdatasync

    def noted_sync(handle: int) -> None:
        sync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        durable.update(f"{path.name}/{name}" for name in os.listdir(path))

    def checked_sync(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if f"{path.parent.name}/{path.name}" not in durable:
            early.append(path.name)
        sync_data(handle)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "fdatasync", checked_sync)
    # a segment takes one event, so that the second event is in a second segment
    wal = Wal(folder, "w", time.monotonic, fsync_s=0.001, segment_bytes=len(frame(event(1))))
    assert "wal/w" in durable, "the directory itself has a name that must last"
    for number in (1, 2):
        wal.append(event(number))
        wal.close() if number == 2 else _until_written(wal, number)
    assert (wal.written, early) == (2, [])
    assert {"w/00000001.open", "w/00000002.open"} <= durable


def _until_written(wal: Wal, count: int) -> None:
    give_up_at = time.monotonic() + 60.0
    while wal.written < count and time.monotonic() < give_up_at:
        time.sleep(0.001)
