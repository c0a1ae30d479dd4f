"""The stores of files and batches of a gateway in the test's own loop: a SQLite database and a folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from domain.files import StorageBounds
from gateway.files.service import FileService
from gateway.wiring.files import new_object_id
from tenancy.stores.file_contents import contents_in_folder
from tenancy.stores.sql import SqlBatches, SqlFiles, open_engine
from tests.databases import migrated_file


@asynccontextmanager
async def file_service(folder: Path, **values: Any) -> AsyncIterator[FileService]:
    """The stores, in a folder that is empty or has those of an earlier gateway."""
    if not (folder / "files.db").exists():
        await migrated_file(folder / "files.db")
    engine = open_engine(f"sqlite:///{folder}/files.db")
    book = SqlFiles(engine)
    usual = {"bounds": StorageBounds(files=100, bytes=50_000_000), "max_file_bytes": 20_000_000, "new_id": new_object_id}
    stores = {"files": book, "uploads": book, "contents": contents_in_folder(folder / "files"), "batches": SqlBatches(engine)}
    try:
        yield FileService(**{**usual, **stores, **values})
    finally:
        await engine.dispose()
