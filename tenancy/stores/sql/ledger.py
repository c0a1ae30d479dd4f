"""The ledger in SQL: insert-or-ignore of events, totals that follow by a watermark, retention by partition.

`SqlUsageStore` books. Totals cannot drift from rows, because both change in one transaction under one lock. A writer first locks the row of
`usage_mark`, so writers come one after the other and numbers (`seq`) are given in the order of commits; with a database sequence a slow
transaction could commit a lower number after a higher one had been counted, and its rows would be skipped for ever. Then it inserts
the events that are not booked yet with numbers above the mark, adds the sums of exactly these to the totals, and moves the mark.
One database books some ten thousand requests a second however many gateways there are (docs/explanation/ledger.md); the gateways' logs
absorb a higher rate for a while.

`DayLabels` says which end users have totals of their own on a day, so that callers, who choose labels, cannot fill the database with
totals. A process remembers the labels of the days and tenants that it books, read from the totals when a day and tenant first come. Each
process that books remembers its own, so that with several hosts there may be as many labels as hosts times the bound.

`add_partition` and `drop_partitions` are for Postgres only: `usage_event` by day. A partition is attached and dropped whole; no row is
touched. DDL takes no bound values, so names and bounds are formatted in, from dates and nothing else.
"""

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenancy.journal import JournalAway
from tenancy.limits import MOST_LABELS, OTHER_LABEL
from tenancy.periods import QUARTER_S
from tenancy.stores.sql.guard_blocks import note_blocks, sum_up_blocks
from tenancy.stores.sql.ledger_insert import add_to_totals, insert_events
from tenancy.stores.sql.ledger_rows import (
    COUNTS,
    QUARTER_COLUMNS,
    TOTAL_COLUMNS,
    Entry,
    UsageGroup,
    event_rows,
    grouped,
    quarter_rows,
    summed,
    total_rows,
)
from tenancy.stores.sql.schema import QUARTER_AMOUNTS, USAGE_MARK, usage_event, usage_mark, usage_quarter, usage_total
from tenancy.stores.sql.upsert import insert_into
from tenancy.usage import FREE_CLOSING, FREE_OUTCOMES, QUARTERS_KEPT_DAYS, LedgerAway, RowsRefused, UsageEvent, WriteResult
from tenancy.wal_frames import tamed

KEPT_LABELS: Final = 300_000
"""Labels of all days and tenants that are remembered; beyond it the oldest are dropped, and read again when needed."""

DayTenant = tuple[dt.date, str]


class DayLabels:
    """The labels that have totals of their own, by day and tenant. One per process that books.

    Args:
        most: labels of a tenant on a day.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[DayTenant, set[str]] = {}

    async def crowd(self, connection: AsyncConnection, groups: Sequence[UsageGroup]) -> None:
        """Mark the groups, of those to be booked, whose end user is beyond the bound. Labels of a transaction that fails stay known, which
        only takes up part of the bound."""
        labelled = [group for group in groups if group.end_user not in ("", OTHER_LABEL)]
        await self._learn(connection, {(group.day, group.tenant) for group in labelled})
        for group in labelled:
            known = self._known[group.day, group.tenant]
            if group.end_user in known:
                continue
            if len(known) < self._most:
                known.add(group.end_user)
            else:
                group.crowd()

    async def _learn(self, connection: AsyncConnection, places: set[DayTenant]) -> None:
        new = places - self._known.keys()
        if not new:
            return
        while self._known and sum(map(len, self._known.values())) > KEPT_LABELS:
            del self._known[next(iter(self._known))]
        new = places - self._known.keys()
        self._known |= {place: set() for place in new}
        total = usage_total.c
        for day in sorted({day for day, _ in new}):
            tenants = sorted(tenant for its_day, tenant in new if its_day == day)
            query = sa.select(total.tenant, total.end_user).distinct().where(total.day == day, total.tenant.in_(tenants))
            for tenant, label in await connection.execute(query):
                if label not in ("", OTHER_LABEL):
                    self._known[day, tenant].add(label)


PARTITIONS_AHEAD_DAYS: Final = 3
"""Partitions made before their day: a database that is away over midnight finds them ready."""
PARTITION_LOCK_WITHIN_MS: Final = 3_000
"""Dropping waits for readers of the table, and all other statements wait behind it; after this time it is given up until the next run."""
_NAME: Final = re.compile(r"usage_event_(\d{4})(\d{2})(\d{2})")

log = structlog.get_logger("tidegate.ledger")


async def partition_days(connection: AsyncConnection) -> set[dt.date]:
    """Days that have a partition."""
    tables = await connection.exec_driver_sql(
        "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = pg_inherits.inhrelid "
        "WHERE pg_inherits.inhparent = 'usage_event'::regclass"
    )
    names = [_NAME.fullmatch(name) for (name,) in tables]
    return {dt.date(int(name[1]), int(name[2]), int(name[3])) for name in names if name is not None}


async def add_partition(connection: AsyncConnection, day: dt.date) -> None:
    """Make a day's partition; the caller holds the lock of the mark. Attaching, unlike CREATE TABLE … PARTITION OF, does not wait
    for readers of the table. The price: a reader in the instant of this commit may see the transaction's totals and not yet its
    partition (Postgres announces a new partition to other sessions just after the commit is visible); partitions made ahead of their
    day do not have this problem."""
    name = _name(day)
    end = f"'{day + dt.timedelta(days=1):%Y-%m-%d}'" if day < dt.date.max else "MAXVALUE"
    await connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE usage_event INCLUDING ALL)")
    await connection.exec_driver_sql(f"ALTER TABLE usage_event ATTACH PARTITION {name} FOR VALUES FROM ('{day.isoformat()}') TO ({end})")


async def drop_partitions(engine: AsyncEngine, first_kept: dt.date) -> int:
    """Drop the partitions of days before this one, each in a transaction of its own; partitions in use are left for the next run. Returns
    how many were dropped."""
    async with engine.connect() as connection:
        old = sorted(day for day in await partition_days(connection) if day < first_kept)
    dropped = 0
    for day in old:
        try:
            async with engine.begin() as connection:
                await connection.exec_driver_sql(f"SET LOCAL lock_timeout = {PARTITION_LOCK_WITHIN_MS}")
                await connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_name(day)}")
        except DBAPIError as error:
            log.warning("a day of usage could not be dropped now", day=str(day), why=str(error.orig)[:200])
            continue
        dropped += 1
    return dropped


def _name(day: dt.date) -> str:
    return f"usage_event_{day.year:04d}{day.month:02d}{day.day:02d}"


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

    async def write(self, events: Sequence[UsageEvent]) -> WriteResult:
        try:
            entries, groups = grouped(events)  # before the lock is taken
            async with self._engine.begin() as connection:
                return await self._book(connection, len(events), entries, groups)
        except (DataError, IntegrityError) as error:
            raise RowsRefused(str(error.orig)) from error
        except (SQLAlchemyError, OSError, JournalAway) as error:  # where blocks cannot be audited, their usage waits on disk, too
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error

    async def _book(self, connection: AsyncConnection, sent: int, entries: list[Entry], groups: list[UsageGroup]) -> WriteResult:
        mark, first_kept, quarter_mark = await self._lock(connection)
        unique = len(entries)
        if any(group.day < first_kept for group in groups):
            entries = [each for each in entries if each[1].day >= first_kept]
            groups = [group for group in groups if group.day >= first_kept]
        expired = unique - len(entries)
        if not entries:
            return WriteResult(0, sent - expired, expired)
        if self._postgres:
            partitioned = await partition_days(connection)
            for day in sorted({group.day for group in groups} - partitioned):
                await add_partition(connection, day)
        await self._labels.crowd(connection, groups)
        rows = event_rows(entries, mark, day_as_text=not self._postgres)
        new_ids = await insert_events(connection, rows, mark)
        new = entries if new_ids is None else [each for each in entries if each[0].request_id in new_ids]
        if new:
            await note_blocks(connection, [tamed(event) for event, _ in new if event.blocked is not None])
            await self._add(connection, summed(new, groups), mark, quarter_mark)
            moved = {"seq": mark + len(rows), "quarter_seq": mark + len(rows)}
            await connection.execute(sa.update(usage_mark).where(usage_mark.c.what == USAGE_MARK).values(moved))
        crowded = sum(group.crowded for _, group in entries)
        return WriteResult(len(new), sent - expired - len(new), expired, crowded)

    async def _add(self, connection: AsyncConnection, groups: Sequence[UsageGroup], mark: int, quarter_mark: int) -> None:
        """Add the sums of new events to the totals."""
        as_text = not self._postgres
        await add_to_totals(connection, usage_total, TOTAL_COLUMNS, total_rows(groups, day_as_text=as_text))
        await add_to_totals(connection, usage_quarter, QUARTER_COLUMNS, quarter_rows(groups, day_as_text=as_text))
        if quarter_mark < mark:  # a process of an older version has booked without quarters meanwhile
            await connection.execute(self._fold_quarters(usage_event.c.seq.between(quarter_mark + 1, mark)))

    async def sum_up_blocks(self, now_unix: float) -> int:
        try:
            async with self._engine.begin() as connection:
                await self._lock(connection)
                return await sum_up_blocks(connection, now_unix)
        except (SQLAlchemyError, OSError, JournalAway) as error:
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error

    async def _lock(self, connection: AsyncConnection) -> tuple[int, dt.date, int]:
        """Lock the mark; returns its number, its first kept day and the number for quarters. SQLite has locked the whole file by BEGIN
        IMMEDIATE already."""
        mark = (await connection.execute(sa.select(usage_mark).where(usage_mark.c.what == USAGE_MARK).with_for_update())).one()
        return mark.seq, mark.first_kept, mark.quarter_seq

    def _fold_quarters(self, new: sa.ColumnElement[bool]) -> Any:
        """The statement that adds rows of events to the totals of quarters of an hour."""
        event = usage_event.c
        # written out, because Postgres compares the text of an expression with that of its group
        quarter = (event.at_unix_ms // sa.literal_column(f"{QUARTER_S * 1000}", sa.BigInteger)) * sa.literal_column(f"{QUARTER_S}")
        begins_s = quarter.label("begins_s")
        free = sa.case((event.closing == FREE_CLOSING, sa.case((event.outcome.in_(sorted(FREE_OUTCOMES)), 1), else_=0)), else_=0)
        counts = [sa.func.count().label("requests"), sa.func.sum(free).label("free_requests")]
        sums = [*counts, *(sa.func.sum(event[name]).label(name) for name in QUARTER_AMOUNTS)]
        source = sa.select(begins_s, event.bucket, sa.func.min(event.day).label("day"), *sums).where(new).group_by(quarter, event.bucket)
        into = insert_into(usage_quarter, self._engine.dialect.name)
        insert = into.from_select(["begins_s", "bucket", "day", *COUNTS, *QUARTER_AMOUNTS], source)
        more = {name: usage_quarter.c[name] + insert.excluded[name] for name in (*COUNTS, *QUARTER_AMOUNTS)}
        return insert.on_conflict_do_update(index_elements=["begins_s", "bucket"], set_=more)

    async def prepare(self, today: dt.date) -> None:
        try:
            async with self._engine.begin() as connection:
                await self._lock(connection)
                oldest: dt.date | None = await connection.scalar(sa.select(sa.func.min(usage_quarter.c.day)))
                if oldest is not None:
                    first_kept = min(today - dt.timedelta(days=QUARTERS_KEPT_DAYS), oldest + PRUNE_DAYS)
                    await connection.execute(sa.delete(usage_quarter).where(usage_quarter.c.day < first_kept))
                if not self._postgres:
                    return
                partitioned = await partition_days(connection)
                for n in range(PARTITIONS_AHEAD_DAYS + 1):
                    if (day := today + dt.timedelta(days=n)) not in partitioned:
                        await add_partition(connection, day)
        except (SQLAlchemyError, OSError) as error:
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error

    async def prune(self, first_kept: dt.date) -> int:
        try:
            async with self._engine.begin() as connection:
                _, before, _ = await self._lock(connection)
                oldest = await self._oldest(connection)
                if oldest is None:
                    return 0
                if first_kept - oldest > PRUNE_DAYS:
                    first_kept = oldest + PRUNE_DAYS
                if first_kept > before:  # from now on nothing older is taken, so nothing that is dropped can come a second time
                    await connection.execute(sa.update(usage_mark).where(usage_mark.c.what == USAGE_MARK).values(first_kept=first_kept))
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
