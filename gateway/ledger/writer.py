"""A worker's part of the ledger: writes every finished request that had a hold to the write-ahead log.

`UsageWriter` also writes the requests in flight to a log of their own until they finish. `usage_event` turns one finished request into one
row of the ledger. `gateway/ledger/bookkeeper.py` moves both logs to SQL.
"""

import asyncio
from typing import Final, Protocol

import msgspec

from gateway.record import Record
from gateway.request.holds import OpenHold
from tenancy.ports import UsageLog
from tenancy.usage import GuardBlock, UsageEvent


def usage_event(record: Record) -> UsageEvent | None:
    """The row, or None for a request that never had a hold: it was refused before it could use anything."""
    if not record.closing:
        return None
    return UsageEvent(
        record.engine_request_id or record.request_id,
        int(record.at_unix * 1000),
        record.tenant,
        record.project,
        record.key_id,
        record.user,
        record.endpoint,
        record.model,
        record.pool,
        record.revision,
        record.lora,
        record.outcome,
        record.closing,
        record.usage,
        record.units,
        record.cost_nanousd,
        record.price_id,
        int(record.duration_s * 1000),
        record.organisation,
        record.priority_class,
        record.asked_model,
        ", ".join(record.steps),
        record.reported,
        _block(record),
    )


def _block(record: Record) -> GuardBlock | None:
    """The block by a guard rule of the model that the Record is of, or else of the first one that another model answered for; None where
    no rule of that mode refused anything."""
    if record.guards is None and not record.fell_back:
        return None
    judged = [("", record.guards), *[(step.model, step.guards) for step in record.fell_back]]
    model, said = next(((model, said) for model, said in judged if said is not None and said.word == "block"), ("", None))
    if said is None:
        return None
    kinds = sorted({found.kind for found in said.counts if found.rule == said.by and found.direction == said.direction})
    return GuardBlock(said.by, ",".join(kinds), said.direction, said.version, said.late, model)


CLOSE_WITHIN_S: Final = 5.0
"""The longest wait for the disk at the end of a worker."""
LOOK_DURABLE_S: Final = 0.01
"""Between two looks at whether events are on the disk; a sync takes milliseconds, and comes every `ledger.fsync_ms`."""
END_WITHIN_S: Final = 2.0
"""The longest wait for the end of the log of requests in flight."""


class UsageLogState(msgspec.Struct, frozen=True):
    """The state of one worker's usage log. Counts since the worker started."""

    written: int = 0
    """Events durable on disk."""
    dropped: int = 0
    """Events lost, because neither disk nor memory had space."""
    full: bool = False
    """Whether the disk accepts no events now."""


class DurableLog(UsageLog, Protocol):
    """The write-ahead log, as a worker needs it."""

    written: int
    dropped: int
    full: bool

    def close(self, timeout_s: float) -> None:
        """Make all events durable; blocks."""
        ...


class UnderWayLog(Protocol):
    """The log of requests in flight on disk, as a worker needs it."""

    def open(self, request_id: str, one: OpenHold) -> None:
        """Write a request that begins; never waits."""
        ...

    def close(self, request_id: str) -> None:
        """Mark a request that needs no entry any more."""
        ...

    def end(self, timeout_s: float) -> None:
        """Close the log; blocks."""
        ...


class UsageWriter:
    """Writes the usage of one worker to its two logs."""

    def __init__(self, log: DurableLog, under_way: UnderWayLog) -> None:
        self._log = log
        self._under_way = under_way
        self._appended = 0

    def opened(self, open_hold: OpenHold) -> None:
        """Log a hold that was opened: from now on the request is billed even when the process dies."""
        self._under_way.open(open_hold.hold.id, open_hold)

    def dropped(self, open_hold: OpenHold) -> None:
        """Drop a hold whose request goes on under another hold, which is billed instead."""
        self._under_way.close(open_hold.hold.id)

    def observe(self, record: Record) -> None:
        """Write the usage of a finished request; costs microseconds, never waits and never raises."""
        event = usage_event(record)
        if event is not None:
            self._log.append(event)
            self._appended += 1
            self._under_way.close(event.request_id)

    async def durable(self) -> None:
        """Wait until every event that was written so far is on the disk, or was dropped for want of room; as long as that takes."""
        appended = self._appended
        while self._log.written + self._log.dropped < appended:
            await asyncio.sleep(LOOK_DURABLE_S)

    @property
    def full(self) -> bool:
        """Whether the disk accepts no events now: usage may never be billed."""
        return self._log.full

    def state(self) -> UsageLogState:
        """The state and counts, for metrics."""
        return UsageLogState(self._log.written, self._log.dropped, self._log.full)

    async def close(self) -> None:
        """Make all events durable and release the logs to the bookkeeper; called after the last Record."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._under_way.end(END_WITHIN_S)
        self._log.close(CLOSE_WITHIN_S)
