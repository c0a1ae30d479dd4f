"""A worker's end of the ledger: every closed Record that had a hold goes to the write-ahead log, and what is under way stands beside
it for as long as it has no Record. `bookkeeper.py` does the rest."""

import asyncio
from typing import Final, Protocol

import msgspec

from gateway.open_holds import OpenHold
from gateway.record import Record
from gateway.usage_events import usage_event
from tenancy.ports import UsageLog

CLOSE_WITHIN_S: Final = 5.0
"""At the end of a worker: longest wait for the disk."""
END_WITHIN_S: Final = 2.0
"""The same for what says that nothing is under way any more."""


class UsageLogState(msgspec.Struct, frozen=True):
    """How the log of one worker stands. Counts since the worker started."""

    written: int = 0
    """Events durable on disk."""
    dropped: int = 0
    """Events lost: neither disk nor memory had room."""
    full: bool = False
    """Whether the disk takes nothing now."""


class DurableLog(UsageLog, Protocol):
    """The write-ahead log, as a worker needs it."""

    written: int
    dropped: int
    full: bool

    def close(self, timeout_s: float) -> None:
        """Make everything durable; blocks."""
        ...


class UnderWayLog(Protocol):
    """What is under way, on disk, as a worker needs it."""

    def open(self, request_id: str, one: OpenHold) -> None:
        """Never waits."""
        ...

    def close(self, request_id: str) -> None:
        """It has a row now."""
        ...

    def end(self, timeout_s: float) -> None:
        """Nothing more comes; blocks."""
        ...


class UsageWriter:
    """One per worker."""

    def __init__(self, log: DurableLog, under_way: UnderWayLog) -> None:
        self._log = log
        self._under_way = under_way

    def opened(self, one: OpenHold) -> None:
        """A hold is open: from now on there is something to bill should the process die."""
        self._under_way.open(one.hold.id, one)

    def dropped(self, one: OpenHold) -> None:
        """Its request goes on under another hold, which is the one to bill."""
        self._under_way.close(one.hold.id)

    def observe(self, record: Record) -> None:
        """Write a finished request down; costs microseconds, never waits and never raises."""
        event = usage_event(record)
        if event is not None:
            self._log.append(event)
            self._under_way.close(event.request_id)

    @property
    def full(self) -> bool:
        """Whether the disk takes nothing now: what is used may never be billed."""
        return self._log.full

    def state(self) -> UsageLogState:
        """Numbers for metrics."""
        return UsageLogState(self._log.written, self._log.dropped, self._log.full)

    async def close(self) -> None:
        """After the last Record: everything durable, and free to be booked."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._under_way.end(END_WITHIN_S)
        self._log.close(CLOSE_WITHIN_S)
