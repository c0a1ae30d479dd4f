"""How many rows get into SQLite and Postgres with few statements: the inserting half of the ledger (`tenancy.stores.sql.ledger`).

A statement per row costs more than the row. Postgres takes events by COPY, which cannot skip rows that are there already; where there are
any (a batch is sent a second time after a crash), the batch goes through a temporary table, as totals always do. SQLite takes `TOGETHER`
rows per statement: its driver takes Python's lock for each statement, and waits for it for milliseconds while another thread of the
process computes.

The callers hold the lock of `usage_mark`, so no other writer comes in between.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tenancy.stores.sql.ledger_rows import EVENT_COLUMNS
from tenancy.stores.sql.schema import usage_event
from tenancy.usage import LedgerAway, RowsRefused

Rows = Sequence[tuple[Any, ...]]

TOGETHER: Final = 512
"""Rows per statement in SQLite, of at most 14,848 values (SQLite takes 32,766 since 3.32 of 2020)."""


async def insert_events(connection: AsyncConnection, rows: Rows, mark: int) -> set[str] | None:
    """Insert rows of `usage_event` (`EVENT_COLUMNS`) whose ids are not there yet.

    Args:
        mark: the numbers of these rows are above it, and no other row's are.

    Returns:
        The ids of the rows that were new; None where all of them were.

    Raises:
        LedgerAway: the connection to Postgres was lost.
        RowsRefused: Postgres refuses a row for good.
    """
    if connection.dialect.name == "postgresql":
        return await _copied(connection, rows)
    inserted = await insert_together(connection, "usage_event", EVENT_COLUMNS, rows, "ON CONFLICT DO NOTHING")
    if inserted == len(rows):
        return None
    return set(await connection.scalars(sa.select(usage_event.c.request_id).where(usage_event.c.seq > mark)))


async def add_to_totals(connection: AsyncConnection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
    """Insert rows of totals, or add their sums to the rows that are there.

    Args:
        table: its primary key says which rows are the same; sums are the columns of numbers that are not part of it.
        columns: of the rows; no two rows have the same key.
    """
    key = [column.name for column in table.primary_key]
    sums = [name for name in columns if name not in key and isinstance(table.c[name].type, sa.BigInteger)]
    more = ", ".join(f"{name} = {table.name}.{name} + excluded.{name}" for name in sums)
    on_conflict = f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {more}"
    if connection.dialect.name == "postgresql":
        await _insert_through_temporary(connection, table.name, columns, rows, on_conflict)
    else:
        await insert_together(connection, table.name, columns, rows, on_conflict)


async def insert_together(connection: AsyncConnection, table: str, columns: Sequence[str], rows: Rows, on_conflict: str) -> int:
    """Insert rows, many per statement; returns how many were inserted or changed. For SQLite."""
    begins = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "
    one = f"({', '.join('?' * len(columns))})"
    inserted = begin = 0
    while len(rows) - begin >= TOGETHER:
        values = tuple(chain.from_iterable(rows[begin : begin + TOGETHER]))
        inserted += (await connection.exec_driver_sql(f"{begins}{', '.join([one] * TOGETHER)} {on_conflict}", values)).rowcount
        begin += TOGETHER
    if begin < len(rows):
        inserted += (await connection.exec_driver_sql(f"{begins}{one} {on_conflict}", list(rows[begin:]))).rowcount
    return inserted


async def _copied(connection: AsyncConnection, rows: Rows) -> set[str] | None:
    import asyncpg  # here, because a gateway on SQLite does not need it

    try:
        async with connection.begin_nested():
            await _copy(connection, "usage_event", EVENT_COLUMNS, rows)
    except asyncpg.UniqueViolationError:
        skipping = "ON CONFLICT DO NOTHING RETURNING request_id"
        return {request_id for (request_id,) in await _insert_through_temporary(connection, "usage_event", EVENT_COLUMNS, rows, skipping)}
    return None


async def _insert_through_temporary(connection: AsyncConnection, table: str, columns: Sequence[str], rows: Rows, rest: str) -> Any:
    """Copy rows into a temporary table and insert them from there; returns what the statement returns. The temporary table stays with the
    connection, empty after each transaction."""
    temporary, named = f"incoming_{table}", ", ".join(columns)
    await connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {temporary} (LIKE {table} INCLUDING DEFAULTS) ON COMMIT DELETE ROWS"
    )
    await _copy(connection, temporary, columns, rows)
    return await connection.exec_driver_sql(f"INSERT INTO {table} ({named}) SELECT {named} FROM {temporary} {rest}")


async def _copy(connection: AsyncConnection, table: str, columns: Sequence[str], rows: Rows) -> None:
    import asyncpg

    driver: Any = (await connection.get_raw_connection()).driver_connection
    try:
        await driver.copy_records_to_table(table, records=rows, columns=columns)
    except asyncpg.UniqueViolationError:
        raise
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        raise RowsRefused(str(error)) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error
