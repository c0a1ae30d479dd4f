"""`/v1/uploads`: a large file in parts, each of which is a request. Parts may come at the same time and in any order.

A part goes to the storage under a key of its own while it arrives (`incoming.py`). `complete` joins the parts there, piece by piece, in the
order that the request names: a few MiB are in memory at once, however large the file is. The quota counts the whole file from the beginning
of the upload.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from domain.faults import Fault, Kind
from domain.files import UPLOAD_LASTS_S, FileContents, StoredFile, StoredUpload, StoresAway, UploadPart, file_key, part_key
from domain.identity import Caller
from gateway.deps import Deps
from gateway.files.incoming import IncomingForm
from gateway.files.service import UPLOADS, FileService, answered, entered, json_body, nothing_found, refusals
from gateway.http.edge.exchange import Exchange
from gateway.http.openai.files import (
    MAX_MIME_CHARS,
    CompleteRequest,
    UploadRequest,
    checked_name,
    checked_purpose,
    keep_s,
    part_object,
    read_json,
    upload_object,
)
from gateway.story import Story
from gateway.uncancelled import uncancelled


async def create_upload(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `POST /v1/uploads`.

    Raises:
        Fault: the key, the body, the quota or the storage is why there is no upload.
    """
    caller, service = await entered(UPLOADS, exchange, story, deps)
    asked = read_json(await json_body(exchange, caller, story, deps), UploadRequest)
    if not 0 < asked.bytes <= service.max_upload_bytes:
        raise Fault(Kind.INVALID_VALUE, f"An upload may have 1 to {service.max_upload_bytes} bytes.", param="bytes")
    if len(asked.mime_type) > MAX_MIME_CHARS:
        raise Fault(Kind.INVALID_VALUE, f"'mime_type' may have {MAX_MIME_CHARS} characters.", param="mime_type")
    now = deps.wall()
    file = StoredFile(
        id=service.new_id("file-"),
        tenant=caller.tenant,
        project=caller.project,
        filename=checked_name(asked.filename),
        purpose=checked_purpose(asked.purpose),
        size_bytes=asked.bytes,
        created_unix=now,
    )
    upload = StoredUpload(
        id=service.new_id("upload_"),
        tenant=caller.tenant,
        file_id=file.id,
        mime_type=asked.mime_type,
        created_unix=now,
        expires_unix=now + UPLOAD_LASTS_S,
        keep_s=keep_s(asked.expires_after, asked.purpose),
    )
    with refusals():
        await service.uploads.begin(upload, file, service.bounds)
    answered(upload_object(upload, file, status="pending"), exchange, story, deps)


async def add_part(exchange: Exchange, story: Story, deps: Deps, upload_id: str) -> None:
    """Answer `POST /v1/uploads/{id}/parts`.

    Raises:
        Fault: the key, the form or the storage is why the part is not stored, or the parts would be larger than the upload.
    """
    caller, service = await entered(UPLOADS, exchange, story, deps)
    _, file = await _pending(upload_id, caller, service, deps)
    with refusals():
        left = max(0, file.size_bytes - sum(part.size_bytes for part in await service.uploads.parts(upload_id)))
    most = min(left, service.max_part_bytes)
    too_large = partial(_beyond, file) if most == left else partial(_too_large, service)
    form = IncomingForm(exchange, "data", most, too_large, caller)
    await form.begin(story, deps.clock)
    size = form.file_bytes if form.file_over else 0
    part = UploadPart(id=service.new_id("part_"), upload_id=upload_id, size_bytes=size, created_unix=deps.wall())
    with refusals():
        # entered first: bytes that nobody knows of would never be removed
        if not await service.uploads.add_part(part, file.size_bytes):
            raise _beyond(file)
        try:
            await form.store(part_key(part), service.contents, _in_bounds)
            sized = structs.replace(part, size_bytes=form.file_bytes)
            if sized != part and not await service.uploads.finish_part(sized, file.size_bytes):
                raise _beyond(file)  # other parts came meanwhile, or the upload is over
        except BaseException:
            await uncancelled(_given_up(part, service))
            raise
    form.note_size(story)
    answered(part_object(part), exchange, story, deps)


def _beyond(file: StoredFile) -> Fault:
    return Fault(Kind.INVALID_VALUE, f"The parts of this upload may have {file.size_bytes} bytes together.", param="data")


def _too_large(service: FileService) -> Fault:
    return Fault(Kind.BODY_TOO_LARGE, f"A part may have {service.max_part_bytes} bytes.", param="data")


async def _in_bounds(_size_bytes: int) -> None:
    """Every size that `IncomingForm` lets through is within what is left of the upload, which the quota counts whole."""


async def _given_up(part: UploadPart, service: FileService) -> None:
    """Remove a part that was not stored whole. Where the storage is away, `cleaning.py` finds it when the upload is over."""
    with contextlib.suppress(StoresAway):
        await service.contents.remove([part_key(part)])
        await service.uploads.drop_part(part.id)


async def complete_upload(exchange: Exchange, story: Story, deps: Deps, upload_id: str) -> None:
    """Answer `POST /v1/uploads/{id}/complete`.

    Raises:
        Fault: INVALID_VALUE where the parts are not those of the upload, or do not have its size or its MD5; then further parts may be
            added. STORAGE_UNAVAILABLE.
    """
    caller, service = await entered(UPLOADS, exchange, story, deps)
    asked = read_json(await json_body(exchange, caller, story, deps), CompleteRequest)
    upload, file = await _pending(upload_id, caller, service, deps)
    with refusals():
        parts = _in_order(asked.part_ids, await service.uploads.parts(upload_id), file)
        if not await service.uploads.turn(upload_id, "pending", "completing"):
            raise _not_pending("completed")
        joined = False
        try:
            digest = hashlib.md5(usedforsecurity=False)
            await service.contents.put(file_key(file.id), _joined(parts, service.contents, digest))
            if asked.md5 is not None and digest.hexdigest() != asked.md5.strip().lower():
                raise Fault(Kind.INVALID_VALUE, "The parts together do not have this MD5.", param="md5")
            expires_unix = None if upload.keep_s is None else file.created_unix + upload.keep_s
            file = structs.replace(file, expires_unix=expires_unix)
            await service.files.ready(file)
            joined = True
        finally:
            await service.uploads.turn(upload_id, "completing", "completed" if joined else "pending")
        await service.contents.remove([part_key(part) for part in await service.uploads.parts(upload_id)])
    answered(upload_object(upload, structs.replace(file, status="ready"), status="completed"), exchange, story, deps)


async def cancel_upload(exchange: Exchange, story: Story, deps: Deps, upload_id: str) -> None:
    """Answer `POST /v1/uploads/{id}/cancel`. Raises Fault."""
    caller, service = await entered(UPLOADS, exchange, story, deps)
    upload, file = await _pending(upload_id, caller, service, deps)
    with refusals():
        if not await service.uploads.turn(upload_id, "pending", "cancelled"):
            raise _not_pending("cancelled")
        await service.contents.remove([part_key(part) for part in await service.uploads.parts(upload_id)])
        await service.files.drop([file.id])
    answered(upload_object(upload, file, status="cancelled"), exchange, story, deps)


async def _pending(upload_id: str, caller: Caller, service: FileService, deps: Deps) -> tuple[StoredUpload, StoredFile]:
    """An upload that parts can be added to, and its file.

    Raises:
        Fault: OBJECT_NOT_FOUND; INVALID_VALUE for one that is over; STORAGE_UNAVAILABLE.
    """
    with refusals():
        upload = await service.uploads.find_upload(caller.tenant, upload_id)
        file = None if upload is None else await service.files.find(caller.tenant, upload.file_id)
    if upload is None:
        raise nothing_found("Upload", upload_id, "upload_id")
    if upload.status == "pending" and deps.wall() >= upload.expires_unix:
        raise _not_pending("expired")
    if upload.status != "pending" or file is None:
        raise _not_pending(upload.status)
    return upload, file


def _not_pending(status: str) -> Fault:
    return Fault(Kind.INVALID_VALUE, f"This upload is {status}.", param="upload_id")


def _in_order(part_ids: Sequence[str], parts: Sequence[UploadPart], file: StoredFile) -> list[UploadPart]:
    """The named parts. Raises Fault: INVALID_VALUE where they are not those of the upload, or not of the file's size together."""
    known = {part.id: part for part in parts}
    if len(set(part_ids)) != len(part_ids) or any(part_id not in known for part_id in part_ids):
        raise Fault(Kind.INVALID_VALUE, "'part_ids' names parts of this upload, each once.", param="part_ids")
    chosen = [known[part_id] for part_id in part_ids]
    size = sum(part.size_bytes for part in chosen)
    if size != file.size_bytes:
        message = f"The parts have {size} bytes together, and the upload was begun for {file.size_bytes}."
        raise Fault(Kind.INVALID_VALUE, message, param="part_ids")
    return chosen


async def _joined(parts: Sequence[UploadPart], contents: FileContents, digest: Any) -> AsyncIterator[bytes]:
    for part in parts:
        async for piece in contents.stream(part_key(part)):
            await asyncio.to_thread(digest.update, piece)
            yield piece
