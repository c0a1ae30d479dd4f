"""Files and uploads in SQL (`domain.files.FileBook`, `domain.files.UploadBook`).

A writer that enters a file raises the change counter of files first, so that two writers wait for each other and the quota that is
compared with the sum of a tenant's files is kept exactly.
"""

import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.files import UPLOAD_LASTS_S, StorageBounds, StorageFull, StoredFile, StoredUpload, StoresAway, UploadPart, UploadStatus
from tenancy.stores.sql.schema import change
from tenancy.stores.sql.schema_files import file_upload, stored_file, upload_part
from tenancy.stores.sql.transaction import SqlConnections

FILES: Final = "files"
"""The row of the change counter."""


class SqlFiles:
    """Files and uploads in SQL."""

    def __init__(self, engine: SqlConnections) -> None:
        self._engine = engine

    async def enter(self, file: StoredFile, bounds: StorageBounds, *, growing: bool = False) -> None:
        async with transaction(self._engine) as connection:
            await _enter(file, bounds, connection, growing=growing)

    async def grow(self, file: StoredFile, bounds: StorageBounds) -> None:
        async with transaction(self._engine) as connection:
            _, size = await _stored(file, connection)
            _check_bytes(size, file, bounds, growing=True)
            await connection.execute(sa.update(stored_file).where(_unfinished(file)).values(size_bytes=file.size_bytes))

    async def ready(self, file: StoredFile) -> bool:
        values = {"status": "ready", "size_bytes": file.size_bytes, "purpose": file.purpose, "expires_unix": file.expires_unix}
        return await self._changed(sa.update(stored_file).where(_unfinished(file)).values(**values))

    async def find(self, tenant: str, file_id: str) -> StoredFile | None:
        wanted = sa.select(stored_file).where(stored_file.c.id == file_id, stored_file.c.tenant == tenant)
        async with transaction(self._engine) as connection:
            row = (await connection.execute(wanted)).mappings().first()
        return None if row is None else StoredFile(**row)

    async def page(
        self, tenant: str, purpose: str | None, after: StoredFile | None, limit: int, *, newest_first: bool, now_unix: float
    ) -> list[StoredFile]:
        at, file_id = stored_file.c.created_unix, stored_file.c.id
        kept = stored_file.c.expires_unix.is_(None) | (stored_file.c.expires_unix > now_unix)
        wanted = sa.select(stored_file).where(stored_file.c.tenant == tenant, stored_file.c.status == "ready", kept)
        if purpose is not None:
            wanted = wanted.where(stored_file.c.purpose == purpose)
        if after is not None:
            same = at == after.created_unix
            wanted = wanted.where(
                (at < after.created_unix) | (same & (file_id < after.id))
                if newest_first
                else (at > after.created_unix) | (same & (file_id > after.id))
            )
        wanted = wanted.order_by(at.desc(), file_id.desc()) if newest_first else wanted.order_by(at, file_id)
        return await self._files(wanted.limit(limit))

    async def delete(self, tenant: str, file_id: str) -> bool:
        there = (stored_file.c.id == file_id) & (stored_file.c.tenant == tenant) & (stored_file.c.status == "ready")
        return await self._changed(sa.update(stored_file).where(there).values(status="deleted"))

    async def rubbish(self, now_unix: float, limit: int) -> list[StoredFile]:
        table = stored_file.c
        # an upload in parts may take its hour, and then its parts are joined
        forsaken = (table.status == "uploading") & (table.created_unix < now_unix - 2 * UPLOAD_LASTS_S)
        wanted = sa.select(stored_file).where((table.status == "deleted") | (table.expires_unix < now_unix) | forsaken)
        return await self._files(wanted.order_by(table.id).limit(limit))

    async def drop(self, file_ids: Collection[str]) -> None:
        await self._changed(sa.delete(stored_file).where(stored_file.c.id.in_(sorted(file_ids))))

    async def begin(self, upload: StoredUpload, file: StoredFile, bounds: StorageBounds) -> None:
        async with transaction(self._engine) as connection:
            await _enter(file, bounds, connection)
            await connection.execute(sa.insert(file_upload).values(**_row(upload)))

    async def find_upload(self, tenant: str, upload_id: str) -> StoredUpload | None:
        wanted = sa.select(file_upload).where(file_upload.c.id == upload_id, file_upload.c.tenant == tenant)
        async with transaction(self._engine) as connection:
            row = (await connection.execute(wanted)).mappings().first()
        return None if row is None else StoredUpload(**row)

    async def add_part(self, part: UploadPart, most_bytes: int) -> bool:
        async with transaction(self._engine) as connection:
            if not await _part_fits(part, most_bytes, connection):
                return False
            await connection.execute(sa.insert(upload_part).values(**_row(part)))
            return True

    async def finish_part(self, part: UploadPart, most_bytes: int) -> bool:
        async with transaction(self._engine) as connection:
            if not await _part_fits(part, most_bytes, connection):
                return False
            sized = sa.update(upload_part).where(upload_part.c.id == part.id).values(size_bytes=part.size_bytes)
            return (await connection.execute(sized)).rowcount > 0

    async def drop_part(self, part_id: str) -> None:
        await self._changed(sa.delete(upload_part).where(upload_part.c.id == part_id))

    async def parts(self, upload_id: str) -> list[UploadPart]:
        wanted = sa.select(upload_part).where(upload_part.c.upload_id == upload_id).order_by(upload_part.c.id)
        async with transaction(self._engine) as connection:
            return [UploadPart(**row) for row in (await connection.execute(wanted)).mappings()]

    async def turn(self, upload_id: str, before: UploadStatus, after: UploadStatus) -> bool:
        same = (file_upload.c.id == upload_id) & (file_upload.c.status == before)
        return await self._changed(sa.update(file_upload).where(same).values(status=after))

    async def old_uploads(self, before_unix: float, limit: int) -> list[StoredUpload]:
        wanted = sa.select(file_upload).where(file_upload.c.expires_unix < before_unix).order_by(file_upload.c.expires_unix)
        async with transaction(self._engine) as connection:
            return [StoredUpload(**row) for row in (await connection.execute(wanted.limit(limit))).mappings()]

    async def drop_upload(self, upload_id: str) -> None:
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(upload_part).where(upload_part.c.upload_id == upload_id))
            await connection.execute(sa.delete(file_upload).where(file_upload.c.id == upload_id))

    async def _files(self, wanted: "sa.Select[Any]") -> list[StoredFile]:
        async with transaction(self._engine) as connection:
            return [StoredFile(**row) for row in (await connection.execute(wanted)).mappings()]

    async def _changed(self, statement: sa.Update | sa.Delete) -> bool:
        async with transaction(self._engine) as connection:
            return (await connection.execute(statement)).rowcount > 0


async def _enter(file: StoredFile, bounds: StorageBounds, connection: AsyncConnection, *, growing: bool = False) -> None:
    """Insert a file where it fits into the quota of its tenant. Raises StorageFull."""
    count, size = await _stored(file, connection)
    if count >= bounds.files:
        raise StorageFull(f"{count} files are stored here, and {bounds.files} may be. Delete some.")
    _check_bytes(size, file, bounds, growing=growing)
    await connection.execute(sa.insert(stored_file).values(**_row(file)))


async def _stored(file: StoredFile, connection: AsyncConnection) -> tuple[int, int]:
    """The number of the other files of a file's tenant, and their bytes; other writers wait until the transaction ends."""
    await connection.execute(sa.update(change).where(change.c.what == FILES).values(version=change.c.version + 1))
    sums = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(stored_file.c.size_bytes), 0))
    others = (stored_file.c.tenant == file.tenant) & (stored_file.c.status != "deleted") & (stored_file.c.id != file.id)
    count, size = (await connection.execute(sums.where(others))).one()
    return count, size


def _check_bytes(others_bytes: int, file: StoredFile, bounds: StorageBounds, *, growing: bool) -> None:
    if others_bytes + file.size_bytes > bounds.bytes:
        have = f"{others_bytes} bytes are stored here, this file has {file.size_bytes}{' or more' if growing else ''}"
        raise StorageFull(f"{have}, and {bounds.bytes} bytes may be stored. Delete some files.")


def _unfinished(file: StoredFile) -> sa.ColumnElement[bool]:
    return (stored_file.c.id == file.id) & (stored_file.c.status == "uploading")


async def _part_fits(part: UploadPart, most_bytes: int, connection: AsyncConnection) -> bool:
    """Whether the upload of a part takes it beside its other parts."""
    pending = (file_upload.c.id == part.upload_id) & (file_upload.c.status == "pending")
    others = (upload_part.c.upload_id == part.upload_id) & (upload_part.c.id != part.id)
    # a write that changes nothing, so that parts that come at the same time wait for each other
    held = await connection.execute(sa.update(file_upload).where(pending).values(status="pending"))
    size = await connection.scalar(sa.select(sa.func.coalesce(sa.func.sum(upload_part.c.size_bytes), 0)).where(others))
    return bool(held.rowcount) and (size or 0) + part.size_bytes <= most_bytes


def _row(value: StoredFile | StoredUpload | UploadPart) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


@contextlib.asynccontextmanager
async def transaction(engine: SqlConnections) -> AsyncIterator[AsyncConnection]:
    """A transaction whose failures are StoresAway."""
    try:
        async with engine.begin() as connection:
            yield connection
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise StoresAway(f"{type(error).__name__}: {error}"[:300]) from error
