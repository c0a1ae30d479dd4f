"""Builds what keeps the files of callers and runs their batches, with the background loops of both."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.files import StorageBounds
from gateway.batches.runner import run_batches
from gateway.batches.slots import LineSlots, RunnerParts
from gateway.config.load import Settings
from gateway.config.read_secrets import read_s3_keys
from gateway.deps import Deps
from gateway.files.cleaning import keep_clean
from gateway.files.service import FileService
from gateway.process.background import kept_up
from gateway.record import Record
from gateway.request.holds import OpenHolds
from tenancy.stores.file_contents import ObjectContents, S3Bucket, contents_in_folder, contents_in_s3
from tenancy.stores.sql import SqlBatches, SqlFiles, StoreError, open_engine

log = structlog.get_logger("tidegate.files")


def new_object_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(16)}"


def contents_for(settings: Settings) -> ObjectContents:
    """Where the bytes of files are.

    Raises:
        StoreError: the folder cannot be used.
        SecretError: the keys of S3 cannot be read.
    """
    s3 = settings.files.s3
    if s3 is not None:
        access_key, secret_key = read_s3_keys(settings)
        return contents_in_s3(S3Bucket(s3.bucket, s3.prefix, s3.endpoint or "", s3.region, access_key, secret_key))
    folder = settings.base_dir / settings.files.folder
    try:
        return contents_in_folder(folder)
    except OSError as error:
        raise StoreError(f"files.folder: {folder} cannot be used: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class LineEnds:
    """Where the finished requests of batches go, and whether the worker is about to end."""

    note: Callable[[Record], None]
    book: Callable[[Record], None]
    durable: Callable[[], Awaitable[None]]
    draining: Callable[[], bool]
    count: Callable[[str, int], None]


def _contents_if_usable(settings: Settings) -> ObjectContents | None:
    """Where the bytes of files are; None where files are switched off, or the usual folder cannot be made: a gateway whose folder of
    settings is read-only starts nevertheless, and keeps no files. Raises as `contents_for` for what the settings name."""
    if not settings.files.enabled:
        return None
    try:
        return contents_for(settings)
    except StoreError as error:
        if "folder" in settings.files.model_fields_set:
            raise
        log.warning("no files and batches are kept", reason=str(error))
        return None


class FileParts:
    """A worker's part of files and batches. It has connections of its own, so that the many writes of batches never keep the readers of
    keys waiting for a connection.

    Raises:
        StoreError: a folder that the settings name cannot be used.
        SecretError: as `contents_for`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine: AsyncEngine | None = None
        files, batches = settings.files, settings.batches
        self.service: FileService | None = None
        contents = _contents_if_usable(settings)
        if contents is not None:
            self._engine = open_engine(settings.sql_url)
            book = SqlFiles(self._engine)
            self.service = FileService(
                files=book,
                uploads=book,
                contents=contents,
                bounds=StorageBounds(files.max_files_per_tenant, files.max_bytes_per_tenant),
                max_file_bytes=files.max_file_bytes,
                new_id=new_object_id,
                batches=SqlBatches(self._engine) if batches.enabled else None,
                max_open_batches=batches.max_open_per_tenant,
                max_lines=batches.max_lines,
                max_part_bytes=files.max_part_bytes,
                max_upload_bytes=files.max_upload_bytes,
            )

    def loops(self, worker: int, deps: Deps, ends: LineEnds) -> list[Coroutine[Any, Any, None]]:
        """The background loops. They never end by themselves: what breaks one is logged, and it begins anew."""
        if self.service is None:
            return []
        loops: list[tuple[Callable[[], Coroutine[Any, Any, None]], str]] = []
        if worker == 0:  # the others would find nothing more
            loops.append((partial(keep_clean, self.service, deps.wall), "files"))
        if self.service.batches is not None:
            loops.append((partial(self._run_batches, self.service, deps, ends), "batches"))
        return [kept_up(work, name) for work, name in loops]

    async def _run_batches(self, service: FileService, deps: Deps, ends: LineEnds) -> None:
        asked = self._settings.batches
        holds = OpenHolds(deps.clock)
        parts = RunnerParts(
            deps=deps,
            owner=new_object_id("worker-"),
            lease_s=asked.lease_s,
            price_percent=asked.price_percent,
            holds=holds,
            note=ends.note,
            book=ends.book,
            durable=ends.durable,
            draining=ends.draining,
            count=ends.count,
        )
        beats = asyncio.ensure_future(holds.run(deps.counters))
        try:
            await run_batches(
                service, parts, LineSlots(asked.max_in_flight, asked.max_share, deps, self._settings.workers), asked.look_every_s
            )
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            await self._engine.dispose()
