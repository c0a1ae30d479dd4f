"""The law of the shipper: a segment is removed after all of its events are booked, and not before."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenancy.stores import shipper as shipping
from tenancy.stores.shipper import BATCH, TOGETHER_BYTES, UNCHANGED_LOOKS, LedgerShipper
from tenancy.stores.wal import SEALED, claim_new, segment_path
from tenancy.usage import LedgerAway, UsageEvent, WriteResult
from tenancy.wal_frames import frame
from tests.usage_events import event


class AwayAtFirst:
    """A store that is away for its first writes, and says at each later one which segments are still on the disk."""

    def __init__(self, directory: Path, away: int) -> None:
        self.directory = directory
        self.away = away
        self.booked: list[str] = []
        self.there: list[int] = []

    async def write(self, events: Sequence[UsageEvent]) -> WriteResult:
        if self.away:
            self.away -= 1
            raise LedgerAway("switched off")
        self.there.append(len(list(self.directory.glob("*" + SEALED))))
        self.booked += [each.request_id for each in events]
        return WriteResult(len(events), 0)

    async def prepare(self, today: Any) -> None: ...

    async def sum_up_blocks(self, now_unix: float) -> int:
        return 0

    async def prune(self, first_kept: Any) -> int:
        return 0


async def test_a_segment_is_on_the_disk_until_all_its_events_are_booked(tmp_path: Path) -> None:
    claim = claim_new(tmp_path / "wal", "w")
    large = b"".join(frame(event(f"{number}-large")) for number in range(TOGETHER_BYTES // len(frame(event("0-large")))))
    for number, data in ((1, frame(event(2)) + frame(event(3))), (2, frame(event(4)) + frame(event(5))), (3, large)):
        segment_path(claim.path, number, SEALED).write_bytes(data)
    store = AwayAtFirst(claim.path, away=2)
    shipper = LedgerShipper(tmp_path / "wal", store, lambda: 0.0)
    for _ in range(2):
        assert not await shipper.ship() and shipper.away
        assert len(claim.sealed()) == 3
    assert await shipper.ship() and not shipper.away
    assert store.booked[:4] == ["req-2", "req-3", "req-4", "req-5"]
    assert len(set(store.booked)) == len(store.booked) == 4 + large.count(b"-large")
    assert store.there[:2] == [3, 1], "small segments are booked in one transaction, and those are removed behind it"
    assert set(store.there[1:]) == {1} and claim.sealed() == []
    claim.release()
    assert await shipper.close()


async def test_ten_times_the_events_take_ten_times_the_transactions_at_most(tmp_path: Path) -> None:
    """Segments of one second, as a worker leaves them while the database is away, are booked in full transactions."""
    claim = claim_new(tmp_path / "wal", "w")
    for number in range(1, 41):
        segment_path(claim.path, number, SEALED).write_bytes(b"".join(frame(event(f"{number}-{n}")) for n in range(100)))
    store = AwayAtFirst(claim.path, away=0)
    shipper = LedgerShipper(tmp_path / "wal", store, lambda: 0.0)
    assert await shipper.ship()
    assert len(set(store.booked)) == 4000 and len(store.there) == 1 <= 4000 / BATCH + 1
    claim.release()
    await shipper.close()


class Looks:
    """Counts the looks into directories, and ends the shipper's loop after so many turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.turns = 0
        real = shipping.wal_directories

        def counted(folder: Path) -> Any:
            self.count += 1
            return real(folder)

        monkeypatch.setattr(shipping, "wal_directories", counted)

    async def turn(self, shipper: LedgerShipper, turns: int) -> int:
        """Looks into directories in so many turns of the loop."""
        before, self.turns = self.count, turns
        with pytest.raises(TimeoutError):
            await shipper.run()
        return self.count - before

    async def sleep(self, _seconds: float) -> None:
        self.turns -= 1
        if not self.turns:
            raise TimeoutError


async def test_at_rest_directories_are_looked_into_every_fourth_turn_and_at_the_first_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claim_new(tmp_path / "wal", "w")
    store, looks = AwayAtFirst(claim.path, away=0), Looks(monkeypatch)
    shipper = LedgerShipper(tmp_path / "wal", store, lambda: 0.0, sleep=looks.sleep)
    await looks.turn(shipper, 4)  # what is there is known
    assert await looks.turn(shipper, 10 * (UNCHANGED_LOOKS + 1)) == 10
    segment_path(claim.path, 1, SEALED).write_bytes(frame(event(1)))
    assert await looks.turn(shipper, 1) == 1
    assert store.booked == ["req-1"], "no turn passes before a sealed segment is booked"
    claim.release()  # a process that ends changes no file
    await looks.turn(shipper, 2 * (UNCHANGED_LOOKS + 1))
    assert not claim.path.exists(), "and is seen at the next look into its directory"
    await shipper.close()
