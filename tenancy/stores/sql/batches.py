"""Batches and the results of their lines in SQL (`domain.batches.BatchBook`).

The lease is two columns of the batch. Every statement of a worker names itself as the owner, so a worker whose lease another one has taken
writes nothing more. Results and the counts of their batch change in one transaction.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.batches import OPEN, BatchStatus, LeaseLost, LineResult, StoredBatch, TokenSums, TooManyBatches
from domain.files import FileFigures
from tenancy.stores.sql.files import transaction
from tenancy.stores.sql.schema import change
from tenancy.stores.sql.schema_files import BATCH_SUMS, batch, batch_line, stored_file
from tenancy.stores.sql.transaction import SqlConnections
from tenancy.stores.sql.unchanged import CachedRead
from tenancy.stores.sql.upsert import insert_into

BATCHES: Final = "batches"
"""The row of the change counter."""


class SqlBatches:
    """Batches in SQL."""

    def __init__(self, engine: SqlConnections) -> None:
        self._engine = engine
        self._has_open = CachedRead(engine, self._read_open)

    async def create(self, wanted: StoredBatch, most_open: int) -> None:
        waiting = sa.select(sa.func.count()).where(batch.c.tenant == wanted.tenant, batch.c.status.in_(OPEN))
        async with transaction(self._engine) as connection:
            # first, so that two writers wait for each other and the bound holds
            await connection.execute(sa.update(change).where(change.c.what == BATCHES).values(version=change.c.version + 1))
            if (await connection.scalar(waiting) or 0) >= most_open:
                raise TooManyBatches(f"{most_open} batches are open here, which is the most there may be. Wait for one to end.")
            await connection.execute(
                sa.insert(batch).values(
                    id=wanted.id, tenant=wanted.tenant, status=wanted.status, created_unix=wanted.created_unix, facts=_facts(wanted)
                )
            )

    async def find(self, tenant: str, batch_id: str) -> StoredBatch | None:
        async with transaction(self._engine) as connection:
            return await _one(connection, (batch.c.id == batch_id) & (batch.c.tenant == tenant))

    async def page(self, tenant: str, after: StoredBatch | None, limit: int) -> list[StoredBatch]:
        at, batch_id = batch.c.created_unix, batch.c.id
        wanted = sa.select(batch).where(batch.c.tenant == tenant)
        if after is not None:
            wanted = wanted.where((at < after.created_unix) | ((at == after.created_unix) & (batch_id < after.id)))
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(wanted.order_by(at.desc(), batch_id.desc()).limit(limit))).mappings()
            return [_batch(row) for row in rows]

    async def cancel(self, tenant: str, batch_id: str, now_unix: float) -> StoredBatch | None:
        mine = (batch.c.id == batch_id) & (batch.c.tenant == tenant)
        async with transaction(self._engine) as connection:
            await connection.execute(sa.update(batch).where(mine).values(tenant=tenant))  # locks the row
            found = await _one(connection, mine)
            if found is None or found.status not in ("validating", "in_progress"):
                return found
            cancelling = msgspec.structs.replace(found, status="cancelling", cancelling_unix=now_unix)
            await connection.execute(sa.update(batch).where(mine).values(status=cancelling.status, facts=_facts(cancelling)))
            return cancelling

    async def figures(self) -> FileFigures:
        """Count the files and batches of all tenants. Raises StoresAway."""
        size = sa.func.coalesce(sa.func.sum(stored_file.c.size_bytes), 0)
        files = sa.select(stored_file.c.status, sa.func.count(), size).group_by(stored_file.c.status)
        batches = sa.select(batch.c.status, sa.func.count()).group_by(batch.c.status)
        oldest = sa.select(sa.func.min(batch.c.created_unix)).where(batch.c.status.in_(("validating", "in_progress")))
        async with transaction(self._engine) as connection:
            by_state = [(row[0], int(row[1]), int(row[2])) for row in await connection.execute(files)]
            found = {row[0]: int(row[1]) for row in await connection.execute(batches)}
            since = await connection.scalar(oldest)
        counts = {state: count for state, count, _ in by_state}
        return FileFigures(counts, {state: total for state, _, total in by_state}, found, since)

    async def _read_open(self) -> bool:
        """Whether any batch needs a worker. Most look-ups find none, and on SQLite they cost no statement while nobody writes."""
        async with transaction(self._engine) as connection:
            return await connection.scalar(sa.select(batch.c.id).where(batch.c.status.in_(OPEN)).limit(1)) is not None

    async def take(self, owner: str, now_unix: float, until_unix: float) -> StoredBatch | None:
        if not await self._has_open():
            return None
        free = batch.c.status.in_(OPEN) & (batch.c.until_unix < now_unix)
        oldest = sa.select(batch.c.id).where(free).order_by(batch.c.created_unix, batch.c.id).limit(1)
        async with transaction(self._engine) as connection:
            batch_id = await connection.scalar(oldest)
            if batch_id is None:
                return None
            taken = sa.update(batch).where(free, batch.c.id == batch_id).values(owner=owner, until_unix=until_unix)
            if not (await connection.execute(taken)).rowcount:
                return None  # another worker was faster; this one looks again soon
            return await _one(connection, batch.c.id == batch_id)

    async def renew(self, batch_id: str, owner: str, until_unix: float) -> StoredBatch:
        async with transaction(self._engine) as connection:
            await _hold(connection, batch_id, owner, until_unix=until_unix)
            found = await _one(connection, batch.c.id == batch_id)
            assert found is not None, "its row was just changed"
            return found

    async def write(self, wanted: StoredBatch, owner: str, before: BatchStatus) -> bool:
        async with transaction(self._engine) as connection:
            await _hold(connection, wanted.id, owner, owner=owner)
            same = (batch.c.id == wanted.id) & (batch.c.status == before)
            changed = await connection.execute(sa.update(batch).where(same).values(status=wanted.status, facts=_facts(wanted)))
            return changed.rowcount == 1

    async def note(self, batch_id: str, owner: str, results: Sequence[LineResult]) -> None:
        async with transaction(self._engine) as connection:
            await _hold(connection, batch_id, owner, owner=owner)
            new = dict.fromkeys(BATCH_SUMS, 0)
            for result in results:  # one by one: a driver does not count the rows of a statement for many
                row = {"batch_id": batch_id, "line": result.line, "failed": result.failed, "output": result.output}
                adding = insert_into(batch_line, connection.dialect.name).values(**row).on_conflict_do_nothing()
                if (await connection.execute(adding)).rowcount:
                    new["failed" if result.failed else "completed"] += 1
                    for name in TokenSums.__struct_fields__:
                        new[name] += getattr(result.usage, name)
            more = {name: batch.c[name] + count for name, count in new.items() if count}
            if more:
                await connection.execute(sa.update(batch).where(batch.c.id == batch_id).values(**more))

    async def done(self, batch_id: str) -> set[int]:
        async with transaction(self._engine) as connection:
            return set(await connection.scalars(sa.select(batch_line.c.line).where(batch_line.c.batch_id == batch_id)))

    async def results(self, batch_id: str, failed: bool, after: int, limit: int) -> list[LineResult]:
        table = batch_line.c
        wanted = sa.select(batch_line).where(table.batch_id == batch_id, table.failed == failed, table.line > after)
        async with transaction(self._engine) as connection:
            rows = await connection.execute(wanted.order_by(table.line).limit(limit))
            return [LineResult(row.line, row.failed, row.output) for row in rows]

    async def finish(self, ended: StoredBatch, owner: str) -> None:
        async with transaction(self._engine) as connection:
            await _hold(connection, ended.id, owner, owner="", until_unix=0.0, status=ended.status, facts=_facts(ended))
            await connection.execute(sa.delete(batch_line).where(batch_line.c.batch_id == ended.id))


async def _hold(connection: AsyncConnection, batch_id: str, held_by: str = "", /, **values: Any) -> None:
    """Change a batch whose lease is held, which locks its row until the transaction ends. Raises LeaseLost."""
    mine = (batch.c.id == batch_id) & (batch.c.owner == held_by)
    if not (await connection.execute(sa.update(batch).where(mine).values(**values))).rowcount:
        raise LeaseLost(f"another worker runs {batch_id}")


async def _one(connection: AsyncConnection, where: "sa.ColumnElement[bool]") -> StoredBatch | None:
    row = (await connection.execute(sa.select(batch).where(where))).mappings().first()
    return None if row is None else _batch(row)


def _facts(wanted: StoredBatch) -> str:
    return msgspec.json.encode(wanted).decode()


def _batch(row: "sa.RowMapping | Any") -> StoredBatch:
    known = msgspec.json.decode(row["facts"], type=StoredBatch)
    usage = TokenSums(*(row[name] for name in TokenSums.__struct_fields__))
    return msgspec.structs.replace(known, status=row["status"], completed=row["completed"], failed=row["failed"], usage=usage)
