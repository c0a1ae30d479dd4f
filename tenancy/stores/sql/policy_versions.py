"""Policies in SQL, beside the keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from domain.policy_versions import MAX_VERSIONS, PolicyVersion
from tenancy.stores.sql.schema import policy_version
from tenancy.stores.sql.transaction import SqlConnections

_SHOWN = tuple(column for column in policy_version.c if column.name != "files")


class SqlPolicyVersions:
    """Versions of the policies in SQL (`domain.policy_versions.PolicyVersions`)."""

    def __init__(self, engine: SqlConnections) -> None:
        self._engine = engine

    async def current(self) -> int:
        async with self._engine.connect() as connection:
            return await connection.scalar(sa.select(sa.func.max(policy_version.c.version))) or 0

    async def find(self, version: int) -> PolicyVersion | None:
        versions = await self._rows(sa.select(*_SHOWN).where(policy_version.c.version == version))
        return versions[0] if versions else None

    async def files(self, version: int) -> Mapping[str, str] | None:
        async with self._engine.connect() as connection:
            text = await connection.scalar(sa.select(policy_version.c.files).where(policy_version.c.version == version))
        return None if text is None else msgspec.json.decode(text, type=dict[str, str])

    async def newest(self, before: int | None, limit: int) -> Sequence[PolicyVersion]:
        wanted = sa.select(*_SHOWN).order_by(policy_version.c.version.desc()).limit(limit)
        return await self._rows(wanted if before is None else wanted.where(policy_version.c.version < before))

    async def append(self, files: Mapping[str, str], digest: str, author: str, note: str, now_unix: float) -> PolicyVersion:
        async with self._engine.begin() as connection:
            last = await connection.scalar(sa.select(sa.func.max(policy_version.c.version))) or 0
            appended = PolicyVersion(last + 1, digest, author, note, now_unix, len(files))
            text = msgspec.json.encode(dict(files), order="sorted").decode()
            row = {"version": appended.version, "digest": digest, "author": author, "note": note, "at_unix": now_unix}
            await connection.execute(sa.insert(policy_version).values(**row, file_count=len(files), files=text))
            await connection.execute(sa.delete(policy_version).where(policy_version.c.version <= appended.version - MAX_VERSIONS))
        return appended

    async def _rows(self, wanted: "sa.Select[Any]") -> list[PolicyVersion]:
        async with self._engine.connect() as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        return [PolicyVersion(r["version"], r["digest"], r["author"], r["note"], r["at_unix"], r["file_count"]) for r in rows]
