"""What is under way, on a real disk: there soon and as it is by now, gone at the end, and booked once when its process is killed."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from domain.usage import Usage
from tenancy.stores import under_way as under_way_module
from tenancy.stores.shipper import LedgerShipper
from tenancy.stores.under_way import InFlightLog, left_under_way
from tenancy.stores.wal import UNDER_WAY, Claim, claim_new, segment_path
from tenancy.usage import UsageEvent
from tenancy.wal_frames import frame
from tests.contract.test_wal import Store
from tests.small_disk import no_syncs
from tests.timing import until
from tests.usage_events import event


class Request:
    """One that delivers."""

    def __init__(self, name: str) -> None:
        self.name, self.delivered = name, 0

    def lost(self) -> UsageEvent:
        return event(self.name, closing="lost", usage=Usage(5, self.delivered))


def found(claim: Claim) -> dict[str, int]:
    """Output tokens by request, as a shipper would find it."""
    return {one.request_id: one.usage.completion_tokens for one in left_under_way(claim.path) if isinstance(one, UsageEvent)}


@pytest.mark.req("R9")
async def test_it_is_on_disk_soon_and_as_far_as_it_came(tmp_path: Path) -> None:
    claim = claim_new(tmp_path, "w")
    under_way = InFlightLog(claim.path, time.monotonic, every_s=0.02)
    requests = [Request(str(n)) for n in range(100)]
    for one in requests:
        under_way.open(f"req-{one.name}", one)
    await until(lambda: len(found(claim)) == 100)
    for delivered in (3, 70):
        for one in requests:
            one.delivered = delivered
        await until(lambda delivered=delivered: set(found(claim).values()) == {delivered})
    for one in requests[1:]:
        under_way.close(f"req-{one.name}")
    await until(lambda: found(claim) == {"req-0": 70})
    late = Request("late")
    under_way.open("req-late", late)
    await until(lambda: set(found(claim)) == {"req-0", "req-late"})
    under_way.close("req-0")
    under_way.close("req-late")
    await until(lambda: not found(claim))
    under_way.end()
    assert [path.name for path in claim.path.iterdir()] == ["lock"]
    claim.release()


async def test_a_new_request_is_there_before_the_next_writing_of_all(tmp_path: Path) -> None:
    claim = claim_new(tmp_path, "w")
    under_way = InFlightLog(claim.path, time.monotonic, every_s=60.0)
    under_way.open("req-1", Request("1"))
    await until(lambda: found(claim) == {"req-1": 0})
    under_way.open("req-2", Request("2"))
    under_way.open("req-3", Request("3"))
    under_way.close("req-3")  # sooner than anybody wrote it down
    await until(lambda: set(found(claim)) == {"req-1", "req-2"})
    under_way.end()
    assert set(found(claim)) == {"req-1", "req-2"}, "they had no row at the end"
    claim.release()


@pytest.mark.req("R9")
async def test_what_a_dead_process_left_is_booked_once_and_never_in_place_of_a_row(tmp_path: Path) -> None:
    store = Store()
    claim = claim_new(tmp_path, "dead")
    segment_path(claim.path, 1).write_bytes(frame(event("done", closing="settle")))
    lost = [event("done", closing="lost"), event("cut", closing="lost"), event("cut", closing="lost", usage=Usage(5, 9))]
    (claim.path / UNDER_WAY).write_bytes(b"".join(map(frame, lost)) + frame(event("torn"))[:-3])
    shipper = LedgerShipper(tmp_path, store, time.time)
    assert await shipper.ship()
    assert store.rows == {}, "it lives"
    claim.release()
    store.away = True
    assert not await shipper.ship()
    store.away = False
    assert await shipper.ship()
    assert {name: row.closing for name, row in store.rows.items()} == {"req-done": "settle", "req-cut": "lost"}
    assert store.rows["req-cut"].usage == Usage(5, 9)
    counts = shipper.counts
    assert (counts.booked, counts.lost, counts.repeated, counts.damaged) == (2, 1, 1, 1)
    assert not claim.path.exists()
    again = claim_new(tmp_path, "again")  # as after a crash between booking and removing
    (again.path / UNDER_WAY).write_bytes(frame(msgspec.structs.replace(lost[1])))
    again.release()
    assert await shipper.ship()
    assert (len(store.rows), counts.lost) == (2, 1)


async def test_a_disk_that_fails_is_tried_again_and_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_way_module, "AT_MOST_EVERY_S", 0.02)
    failing = no_syncs(monkeypatch, under_way_module)
    claim = claim_new(tmp_path, "w")
    under_way = InFlightLog(claim.path, time.monotonic, every_s=0.01)
    under_way.open("req-1", Request("1"))
    await asyncio.sleep(0.2)
    assert found(claim) == {}
    failing.clear()
    await until(lambda: found(claim) == {"req-1": 0})
    under_way.end()
    claim.release()


async def test_writing_takes_a_hundredth_of_a_core_at_most(tmp_path: Path) -> None:
    now, worked = [0.0], [0.0]

    def cpu() -> float:
        worked[0] += 0.01  # so much each time it is asked, and it is asked before and after
        return worked[0]

    def clock() -> float:
        return now[0]

    claim = claim_new(tmp_path, "w")
    under_way: Any = InFlightLog(claim.path, clock, cpu=cpu)
    under_way.open("req-1", Request("1"))
    await until(lambda: under_way._next_at > 0)
    assert under_way._next_at == pytest.approx(1.0)
    now[0] = 10.0
    under_way.end()
    claim.release()
