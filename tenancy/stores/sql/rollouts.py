"""Rollouts (`domain.rollouts`) in SQL, beside the keys: the same database and migrations."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.rollouts import MAX_OPEN, MAX_ROWS, RolloutsFull, RolloutTaken, StoredRollout
from tenancy.stores.sql.schema import change, rollout, rollout_sums
from tenancy.stores.sql.transaction import SqlConnections
from tenancy.stores.sql.unchanged import CachedRead
from tenancy.stores.sql.upsert import insert_into

COUNTER: Final = "rollouts"


class SqlRolloutStore:
    """Rollouts in SQL (`domain.rollouts.RolloutBook`).

    Args:
        connections: an engine, or the one connection of a transaction that is open already.
    """

    def __init__(self, connections: SqlConnections) -> None:
        self._connections = connections
        self._in_force = CachedRead(connections, self._read_in_force)

    async def in_force(self) -> Sequence[StoredRollout]:
        return await self._in_force()

    async def _read_in_force(self) -> Sequence[StoredRollout]:
        return await self._select(sa.select(rollout).where(rollout.c.open).order_by(rollout.c.name).limit(MAX_OPEN))

    async def put_sums(self, rollout_id: str, source: str, sums: Mapping[int, str]) -> None:
        # in order, so that two processes that write the same rows do not deadlock
        rows = [{"rollout": rollout_id, "interval_index": index, "source": source, "sums": sums[index]} for index in sorted(sums)]
        if not rows:
            return
        async with self._connections.begin() as connection:
            insert = insert_into(rollout_sums, connection.dialect.name)
            replacing = insert.on_conflict_do_update(index_elements=list(rollout_sums.primary_key), set_={"sums": insert.excluded.sums})
            await connection.execute(replacing, rows)

    async def sums(self, rollout_id: str, first: int, below: int) -> Sequence[str]:
        index = rollout_sums.c.interval_index
        wanted = sa.select(index, rollout_sums.c.sums).where(rollout_sums.c.rollout == rollout_id, index >= first, index < below)
        async with self._connections.connect() as connection:
            rows = (await connection.execute(wanted.order_by(index).limit(MAX_ROWS + 1))).all()
        if len(rows) > MAX_ROWS and rows[0][0] != rows[-1][0]:
            rows = [row for row in rows if row[0] != rows[-1][0]]  # the last interval may have more rows
        return [row[1] for row in rows]

    async def find(self, name: str) -> StoredRollout | None:
        wanted = (
            sa.select(rollout)
            .where((rollout.c.name == name) | (rollout.c.id == name))
            .order_by(rollout.c.open.desc(), rollout.c.created_unix.desc())
        )
        rollouts = await self._select(wanted.limit(1))
        return rollouts[0] if rollouts else None

    async def start(self, wanted: StoredRollout, baseline: str, canary: str) -> None:
        async with self._connections.begin() as connection:
            await _raise_version(connection)  # first, so that two starts wait for each other and the check below stays true
            in_force = (await connection.execute(sa.select(rollout).where(rollout.c.open))).mappings().all()
            for running in in_force:
                if running["name"] == wanted.name:
                    raise RolloutTaken(f"rollout {wanted.name!r} is in force already; close it, or take another name")
                if shared := {baseline, canary} & {running["baseline"], running["canary"]}:
                    raise RolloutTaken(f"pool {min(shared)!r} takes part in rollout {running['name']!r}, which is in force; close it first")
            if len(in_force) >= MAX_OPEN:
                raise RolloutsFull(f"{MAX_OPEN} rollouts are in force already; close some")
            row = msgspec.structs.asdict(wanted)
            await connection.execute(sa.insert(rollout).values(**row, baseline=baseline, canary=canary))

    async def write(self, wanted: StoredRollout) -> bool:
        new = {"state": wanted.state, "open": wanted.open, "changed_unix": wanted.changed_unix, "version": wanted.version + 1}
        same = (rollout.c.id == wanted.id) & (rollout.c.version == wanted.version) & rollout.c.open
        async with self._connections.begin() as connection:
            return (await connection.execute(sa.update(rollout).where(same).values(**new))).rowcount == 1

    async def closed(self, before: tuple[float, str] | None, limit: int) -> Sequence[StoredRollout]:
        at = rollout.c.changed_unix
        name = rollout.c.id
        wanted = sa.select(rollout).where(~rollout.c.open)
        if before is not None:
            wanted = wanted.where((at < before[0]) | ((at == before[0]) & (name < before[1])))
        return await self._select(wanted.order_by(at.desc(), name.desc()).limit(limit))

    async def forget_sums(self, rollout_id: str, below: int) -> None:
        await self._delete((rollout_sums.c.rollout == rollout_id) & (rollout_sums.c.interval_index < below))

    async def forget_closed(self) -> None:
        await self._delete(rollout_sums.c.rollout.not_in(sa.select(rollout.c.id).where(rollout.c.open)))

    async def _select(self, wanted: "sa.Select[Any]") -> list[StoredRollout]:
        async with self._connections.connect() as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        return [StoredRollout(**{name: row[name] for name in StoredRollout.__struct_fields__}) for row in rows]

    async def _delete(self, where: "sa.ColumnElement[bool]") -> None:
        async with self._connections.begin() as connection:
            await connection.execute(sa.delete(rollout_sums).where(where))


async def _raise_version(connection: AsyncConnection) -> None:
    await connection.execute(sa.update(change).where(change.c.what == COUNTER).values(version=change.c.version + 1))
