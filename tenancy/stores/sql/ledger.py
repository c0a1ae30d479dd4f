"""The ledger in SQL: insert-or-ignore of events, totals that follow by a watermark, retention by partition.

Totals cannot drift from rows, because both change in one transaction under one lock. A writer first locks the row of `usage_mark`,
so writers come one after the other and numbers (`seq`) are given in the order of commits; with a database sequence a slow
transaction could commit a lower number after a higher one had been counted, and its rows would be skipped for ever. Then it inserts
the events that are not booked yet with numbers above the mark, adds exactly the rows above the mark to the totals, and moves the mark.
One database books a few thousand requests a second however many gateways there are (docs/ledger.md); the gateways' logs absorb a
higher rate for a while.
"""

import datetime as dt
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenancy.limits import MOST_LABELS, OTHER_LABEL
from tenancy.stores.sql.usage_labels import DayLabels
from tenancy.stores.sql.usage_partitions import AHEAD_DAYS, add_partition, drop_partitions, partition_days
from tenancy.stores.sql.usage_schema import AMOUNTS, LABELS, MARK, usage_event, usage_mark, usage_total
from tenancy.usage import LedgerAway, RowsRefused, Written, day_of
from tenancy.usage_event import FREE_CLOSING, FREE_OUTCOMES, UsageEvent
from tenancy.wal_frames import MAX_NUMBER, MAX_TEXT, tamed

COUNTS: Final = ("requests", "free_requests")
PRUNE_ROWS: Final = 2_000
"""Rows deleted per transaction where there are no partitions; other writers come in between."""
PRUNE_DAYS: Final = dt.timedelta(days=7)
"""Days that one run of the retention drops at most, counted from the oldest day there is. A clock that is years ahead for an hour would
otherwise empty the table, and every event afterwards would be refused as older than the dropped days."""


class SqlUsageStore:
    """The ledger in SQL, for the process that writes it (`tenancy.usage.UsageStore`)."""

    def __init__(self, engine: AsyncEngine, most_labels: int = MOST_LABELS) -> None:
        self._engine = engine
        self._labels = DayLabels(most_labels)
        self._postgres = engine.dialect.name == "postgresql"

    async def write(self, events: Sequence[UsageEvent]) -> Written:
        try:
            async with self._engine.begin() as connection:
                return await self._book(connection, events)
        except (DataError, IntegrityError) as error:
            raise RowsRefused(str(error.orig)) from error
        except (SQLAlchemyError, OSError) as error:
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error

    async def _book(self, connection: AsyncConnection, events: Sequence[UsageEvent]) -> Written:
        mark, first_kept = await self._lock(connection)
        rows = [_row(event, mark + n) for n, event in enumerate(events, 1)]
        unexpired = [row for row in rows if row["day"] >= first_kept]
        if not unexpired:
            return Written(0, 0, len(rows))
        days = {row["day"] for row in unexpired}
        if self._postgres:
            partitioned = await partition_days(connection)
            for day in sorted(days - partitioned):
                await add_partition(connection, day)
        crowded = await self._labels.crowded(connection, unexpired)
        for row in crowded:
            row["bucket"] = _bucket({**row, "end_user": OTHER_LABEL})
        await connection.execute(self._insert(usage_event).on_conflict_do_nothing(), unexpired)
        new = (usage_event.c.seq > mark) & usage_event.c.day.between(min(days), max(days))
        booked = await connection.scalar(sa.select(sa.func.count()).select_from(usage_event).where(new)) or 0
        if booked:
            await connection.execute(self._fold(new, {row["bucket"] for row in crowded}))
            await connection.execute(sa.update(usage_mark).where(usage_mark.c.what == MARK).values(seq=mark + len(rows)))
        return Written(booked, len(unexpired) - booked, len(rows) - len(unexpired), len(crowded))

    async def _lock(self, connection: AsyncConnection) -> tuple[int, dt.date]:
        """Lock the mark; returns its number and first kept day. SQLite has locked the whole file by BEGIN IMMEDIATE already."""
        mark = (await connection.execute(sa.select(usage_mark).where(usage_mark.c.what == MARK).with_for_update())).one()
        return mark.seq, mark.first_kept

    def _insert(self, table: sa.Table) -> Any:
        return postgresql.insert(table) if self._postgres else sqlite.insert(table)

    def _fold(self, new: sa.ColumnElement[bool], crowded: set[bytes]) -> Any:
        """The statement that adds new rows to the totals; the buckets `crowded` are of end users beyond the bound."""
        event = usage_event.c
        total = usage_total.c
        free = sa.case((event.closing == FREE_CLOSING, sa.case((event.outcome.in_(sorted(FREE_OUTCOMES)), 1), else_=0)), else_=0)
        counts = [sa.func.count().label("requests"), sa.func.sum(free).label("free_requests")]
        sums = [*counts, *(sa.func.sum(event[name]).label(name) for name in AMOUNTS)]
        named: dict[str, sa.ColumnElement[Any]] = {name: event[name] for name in LABELS}
        if crowded:
            named["end_user"] = sa.case((event.bucket.in_(sorted(crowded)), OTHER_LABEL), else_=event.end_user)
        labels = [sa.func.min(value).label(name) for name, value in named.items()]  # equal within a bucket
        source = sa.select(event.day, event.bucket, *labels, *sums).where(new).group_by(event.day, event.bucket)
        insert = self._insert(usage_total).from_select(["day", "bucket", *LABELS, *COUNTS, *AMOUNTS], source)
        more = {name: total[name] + insert.excluded[name] for name in (*COUNTS, *AMOUNTS)}
        return insert.on_conflict_do_update(index_elements=["day", "bucket"], set_=more)

    async def prepare(self, today: dt.date) -> None:
        if not self._postgres:
            return
        try:
            async with self._engine.begin() as connection:
                await self._lock(connection)
                partitioned = await partition_days(connection)
                for n in range(AHEAD_DAYS + 1):
                    if (day := today + dt.timedelta(days=n)) not in partitioned:
                        await add_partition(connection, day)
        except (SQLAlchemyError, OSError) as error:
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error

    async def prune(self, first_kept: dt.date) -> int:
        try:
            async with self._engine.begin() as connection:
                _, before = await self._lock(connection)
                oldest = await self._oldest(connection)
                if oldest is None:
                    return 0
                if first_kept - oldest > PRUNE_DAYS:
                    first_kept = oldest + PRUNE_DAYS
                if first_kept > before:  # from now on nothing older is taken, so nothing that is dropped can come a second time
                    await connection.execute(sa.update(usage_mark).where(usage_mark.c.what == MARK).values(first_kept=first_kept))
            return await (drop_partitions(self._engine, first_kept) if self._postgres else self._delete(first_kept))
        except (SQLAlchemyError, OSError) as error:
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error

    async def _oldest(self, connection: AsyncConnection) -> dt.date | None:
        """The first day that may have events."""
        if self._postgres:
            return min(await partition_days(connection), default=None)
        oldest: dt.date | None = await connection.scalar(sa.select(sa.func.min(usage_event.c.day)))
        return oldest

    async def _delete(self, first_kept: dt.date) -> int:
        some = sa.select(usage_event.c.request_id).where(usage_event.c.day < first_kept).limit(PRUNE_ROWS)
        statement = sa.delete(usage_event).where(usage_event.c.request_id.in_(some))
        deleted = 0
        while True:
            async with self._engine.begin() as connection:
                row_count = (await connection.execute(statement)).rowcount
            deleted += row_count
            if row_count < PRUNE_ROWS:
                return deleted


def _tame(event: UsageEvent) -> bool:
    """False for an event that may have a text that Postgres refuses or a number that overflows, for instance from a log of another
    version."""
    usage = event.usage
    counts = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)
    numbers = (*counts, event.at_unix_ms, event.units, event.cost_nanousd, event.duration_ms)
    texts = event.request_id + event.tenant + event.project + event.key_id + event.user + event.endpoint + event.model + event.pool
    texts += event.revision + event.lora + event.outcome + event.closing + event.price_id + event.organisation + event.priority_class
    texts += event.asked_model + event.steps
    return len(texts) <= MAX_TEXT and "\0" not in texts and min(numbers) >= 0 and max(numbers) <= MAX_NUMBER


def _row(event: UsageEvent, seq: int) -> dict[str, Any]:
    if not _tame(event):
        event = tamed(event)
    usage = event.usage
    labels = (event.organisation, event.tenant, event.project, event.key_id, event.user, event.model, event.lora)
    row = {
        "request_id": event.request_id,
        "day": day_of(event.at_unix_ms),
        "seq": seq,
        "at_unix_ms": event.at_unix_ms,
        **dict(zip(LABELS, labels, strict=True)),
        "endpoint": event.endpoint,
        "pool": event.pool,
        "revision": event.revision,
        "outcome": event.outcome,
        "closing": event.closing,
        "price_id": event.price_id,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "units": event.units,
        "cost_nanousd": event.cost_nanousd,
        "duration_ms": event.duration_ms,
        "priority_class": event.priority_class[:16],
        "asked_model": event.asked_model[:256],
        "steps": event.steps[:256],
    }
    return {**row, "bucket": _bucket(row)}


def _bucket(row: dict[str, Any]) -> bytes:
    return hashlib.blake2b("\0".join(row[name] for name in LABELS).encode(), digest_size=16).digest()
