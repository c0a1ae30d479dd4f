"""The ledger of a world, in memory: rows are booked the moment they are written, and a process that is killed leaves what it had under
way. Stands behind the ports that the gateway writes and reads by; the real one is proven in tests/contract."""

import datetime as dt
from collections.abc import Collection

from gateway.ledger.writer import UsageWriter
from gateway.request.holds import OpenHold
from tenancy.drift import spent_in
from tenancy.limits import Level
from tenancy.usage import MAX_SPENT, Spent, UsageEvent


class Ledger:
    """Rows by request id, of all gateways."""

    def __init__(self) -> None:
        self.rows: dict[str, UsageEvent] = {}
        self.repeated: list[str] = []

    def book(self, event: UsageEvent) -> None:
        """One row."""
        if event.request_id in self.rows:
            self.repeated.append(event.request_id)
        self.rows[event.request_id] = event

    async def spent_by(
        self, level: Level, names: Collection[str], since: dt.date | None, before: dt.date | None = None, most: int = MAX_SPENT
    ) -> list[Spent]:
        """See `tenancy.usage.SpendReader`."""
        rows = [row for row in self.rows.values() if before is None or day_of(row) < before]
        return spent_in(rows, level, None if since is None else (since - dt.date(1970, 1, 1)).days * 86_400)

    async def spent_since(self, level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT) -> list[Spent]:
        """See `tenancy.usage.SpendReader`."""
        return spent_in(self.rows.values(), level, since_s)

    async def spent_per_hour(self, level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT) -> list[Spent]:
        """See `tenancy.usage.SpendReader`."""
        return spent_in(self.rows.values(), level, since_s, per_hour=True)

    async def booked(self, request_ids: Collection[str]) -> set[str]:
        """See `tenancy.usage.SpendReader`."""
        return {one for one in request_ids if one in self.rows}


def day_of(row: UsageEvent) -> dt.date:
    """The day it is billed to."""
    return dt.datetime.fromtimestamp(row.at_unix_ms / 1000, dt.UTC).date()


class Log:
    """One worker's write-ahead log and what it has under way; both outlive it."""

    full = False
    written = dropped = 0

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._under_way: dict[str, OpenHold] = {}
        self.dead = False

    def append(self, event: UsageEvent) -> None:
        if not self.dead:
            self._ledger.book(event)

    def open(self, request_id: str, one: OpenHold) -> None:
        if not self.dead:
            self._under_way[request_id] = one

    def end(self, timeout_s: float) -> None:
        assert self.dead or not self._under_way, "a worker ended in order with requests under way"

    def close(self, what: object) -> None:
        """Of the log with the seconds it may take, of what is under way with the request's id."""
        if isinstance(what, str):
            self._under_way.pop(what, None)

    def killed(self) -> list[str]:
        """The process is gone: what it had under way becomes rows. Returns their ids."""
        self.dead = True
        for one in self._under_way.values():
            self._ledger.book(one.lost())
        return list(self._under_way)

    def writer(self) -> UsageWriter:
        """The worker's end."""
        return UsageWriter(self, self)


class NothingWaits:
    """Everything is booked at once, so nothing waits for it (`gateway.ledger.reconcile.UnbookedHere`)."""

    def __init__(self, *_: object) -> None:
        pass

    async def events(self) -> list[UsageEvent]:
        return []

    async def oldest_s(self) -> float:
        return 0.0
