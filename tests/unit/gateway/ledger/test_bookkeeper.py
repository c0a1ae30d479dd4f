"""The admin process's end of the ledger, with a shipper and a store that only remember."""

import datetime as dt
from collections.abc import Sequence

from gateway.ledger.bookkeeper import BookingState, Bookkeeper
from tenancy.stores.shipper import ShipCounts
from tenancy.usage import LedgerAway, UsageEvent, WriteResult

NOW = dt.datetime(2026, 3, 1, 0, 30, tzinfo=dt.UTC).timestamp()


class Ships:
    def __init__(self, said: list[str]) -> None:
        self._said = said
        self.away, self.waiting_bytes, self.lag_s, self.all_shipped = "", 7, 1.5, True
        self.counts = ShipCounts(booked=3, repeated=4, refused=5, damaged=6, lost=1, crowded=2)

    async def run(self) -> None:
        self._said.append("runs")

    async def close(self, within_s: float) -> bool:
        self._said.append("shipped")
        return self.all_shipped


class Store:
    def __init__(self) -> None:
        self.prepared: list[dt.date] = []
        self.pruned: list[dt.date] = []
        self.summed_up: list[float] = []
        self.away = False

    async def write(self, events: Sequence[UsageEvent]) -> WriteResult:
        raise AssertionError("the shipper's business")

    async def prepare(self, today: dt.date) -> None:
        if self.away:
            raise LedgerAway("switched off")
        self.prepared.append(today)

    async def sum_up_blocks(self, now_unix: float) -> int:
        if self.away:
            raise LedgerAway("switched off")
        self.summed_up.append(now_unix)
        return 1

    async def prune(self, first_kept: dt.date) -> int:
        self.pruned.append(first_kept)
        return 1


def keeper() -> tuple[Bookkeeper, Ships, Store, list[str]]:
    said: list[str] = []
    ships, store = Ships(said), Store()

    async def close() -> None:
        said.append("connections closed")

    return Bookkeeper(ships, store, lambda: NOW, 30, close), ships, store, said


def test_the_numbers_for_metrics() -> None:
    mine, ships, _, _ = keeper()
    ships.away = "switched off"
    assert mine.state() == BookingState(3, 4, 5, 6, 7, 1.5, "switched off", 1, 2)


async def test_days_are_kept_by_the_calendar_and_a_database_that_is_away_is_asked_later() -> None:
    mine, _, store, _ = keeper()
    await mine.keep()
    assert store.prepared == [dt.date(2026, 3, 1)]
    assert store.pruned == [dt.date(2026, 1, 30)]
    store.away = True
    await mine.keep()
    assert len(store.pruned) == 1


async def test_at_the_end_what_was_written_last_is_booked_before_the_connections_go() -> None:
    for shipped in (True, False):
        mine, ships, _, said = keeper()
        ships.all_shipped = shipped
        mine.start()
        await mine.close()
        assert said[-2:] == ["shipped", "connections closed"]


async def test_blocks_are_summed_up_and_a_database_that_is_away_is_asked_later() -> None:
    mine, _, store, _ = keeper()
    store.away = True
    await mine.sum_up()
    assert store.summed_up == []
    store.away = False
    await mine.sum_up()
    assert store.summed_up == [NOW]
