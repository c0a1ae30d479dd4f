"""Postgres only: `usage_event` by day. A partition is attached and dropped whole; no row is touched.

DDL takes no bound values, so names and bounds are formatted in, from dates and nothing else.
"""

import datetime as dt
import re
from typing import Final

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

AHEAD_DAYS: Final = 3
"""Partitions made before their day: a database that is away over midnight finds them ready."""
LOCK_WITHIN_MS: Final = 3_000
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
                await connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_WITHIN_MS}")
                await connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_name(day)}")
        except DBAPIError as error:
            log.warning("a day of usage could not be dropped now", day=str(day), why=str(error.orig)[:200])
            continue
        dropped += 1
    return dropped


def _name(day: dt.date) -> str:
    return f"usage_event_{day.year:04d}{day.month:02d}{day.day:02d}"
