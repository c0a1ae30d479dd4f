"""`/v1/files`: a file is stored, listed, shown, read and deleted. A tenant sees its own files only.

The body of `POST /v1/files` goes to the storage while it arrives (`incoming.py`); larger files come in parts (`upload_routes.py`). A file's
bytes are sent piece by piece, as fast as their reader takes them.
"""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec import structs

from domain import retry_after
from domain.faults import Fault, Kind
from domain.files import StoredFile, StoresAway, file_key
from domain.identity import Caller
from gateway.deps import Deps
from gateway.files.incoming import IncomingForm
from gateway.files.service import FILES, NO_STORE, FileService, answered, entered, nothing_found, refusals
from gateway.http.edge.exchange import NOBODY, Exchange
from gateway.http.edge.reader_pace import ReaderPace
from gateway.http.openai.files import ExpiresAfter, checked_name, checked_purpose, file_object, keep_s, page_object, read_page_query
from gateway.request.reply_headers import common_headers
from gateway.story import Story
from gateway.uncancelled import uncancelled

PAGE: Final = 10_000
"""Files of a page, at most and where the caller names no number, as OpenAI has it."""


async def create_file(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `POST /v1/files`.

    Raises:
        Fault: the key, the form, the quota or the storage is why the file is not stored.
    """
    caller, service = await entered(FILES, exchange, story, deps)
    form = IncomingForm(exchange, "file", service.max_file_bytes, partial(_too_large, service), caller)
    await form.begin(story, deps.clock)
    now = deps.wall()
    file = StoredFile(
        id=service.new_id("file-"),
        tenant=caller.tenant,
        project=caller.project,
        filename=checked_name(form.filename or "file"),
        purpose="",
        size_bytes=form.file_bytes if form.file_over else max(form.file_bytes, form.least_bytes),
        created_unix=now,
    )
    if form.file_over or "purpose" in form.fields():  # what can be known of the rest is refused before anything is stored
        file = _as_asked(file, form)
    with refusals():
        await service.files.enter(file, service.bounds, growing=not form.file_over)
        try:
            file = await _stored(file, form, service)
        except BaseException:
            await uncancelled(_given_up(file, service))
            raise
    form.note_size(story)
    answered(file_object(file), exchange, story, deps)


def _too_large(service: FileService) -> Fault:
    message = f"A file may have {service.max_file_bytes} bytes. Send a larger one in parts (/v1/uploads)."
    return Fault(Kind.BODY_TOO_LARGE, message, param="file")


async def _stored(file: StoredFile, form: IncomingForm, service: FileService) -> StoredFile:
    """The file once its bytes are stored and it is ready. Raises Fault, StorageFull, StoresAway."""
    counted = file.size_bytes

    async def admit(size_bytes: int) -> None:
        nonlocal counted
        if size_bytes > counted:
            await service.files.grow(structs.replace(file, size_bytes=size_bytes), service.bounds)
            counted = size_bytes

    await form.store(file_key(file.id), service.contents, admit)
    file = _as_asked(structs.replace(file, size_bytes=form.file_bytes), form)
    if not await service.files.ready(file):
        raise Fault(Kind.STORAGE_UNAVAILABLE, "The file took too long to arrive, and was given up.", retry=retry_after.SOON)
    return structs.replace(file, status="ready")


async def _given_up(file: StoredFile, service: FileService) -> None:
    """Remove a file that was not stored whole. Where the storage is away, `cleaning.py` finds it later."""
    with contextlib.suppress(StoresAway):
        await service.contents.remove([file_key(file.id)])
        await service.files.drop([file.id])


def _as_asked(file: StoredFile, form: IncomingForm) -> StoredFile:
    """The file with the purpose and the end that the form's fields ask for. Raises Fault: INVALID_VALUE."""
    fields = form.fields()
    purpose = checked_purpose(fields.get("purpose", ""))
    kept_s = keep_s(_expires_after(fields), purpose)
    return structs.replace(file, purpose=purpose, expires_unix=None if kept_s is None else file.created_unix + kept_s)


def _expires_after(fields: Mapping[str, str]) -> ExpiresAfter | None:
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if seconds is None or not (seconds.isascii() and seconds.isdigit()):
        raise Fault(Kind.INVALID_VALUE, "'expires_after[seconds]' is a number of seconds.", param="expires_after.seconds")
    return ExpiresAfter(anchor or "", int(seconds[:12]))


async def list_files(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `GET /v1/files`. Raises Fault."""
    caller, service = await entered(FILES, exchange, story, deps)
    wanted = read_page_query(exchange.head.query, PAGE, PAGE)
    now = deps.wall()
    with refusals():
        after = None
        if wanted.after:
            after = await service.files.find(caller.tenant, wanted.after)
            if after is None:
                raise nothing_found("File", wanted.after, "after")
        found = await service.files.page(
            caller.tenant, wanted.purpose, after, wanted.limit + 1, newest_first=wanted.newest_first, now_unix=now
        )
    page = [file_object(file) for file in found[: wanted.limit]]
    answered(page_object(page, has_more=len(found) > wanted.limit), exchange, story, deps)


async def visible_file(file_id: str, caller: Caller, service: FileService, deps: Deps, param: str = "id") -> StoredFile:
    """A file that the caller can see. Raises Fault: OBJECT_NOT_FOUND or STORAGE_UNAVAILABLE."""
    with refusals():
        file = await service.files.find(caller.tenant, file_id)
    if file is None or not file.visible(deps.wall()):
        raise nothing_found("File", file_id, param)
    return file


async def show_file(exchange: Exchange, story: Story, deps: Deps, file_id: str) -> None:
    """Answer `GET /v1/files/{id}`. Raises Fault."""
    caller, service = await entered(FILES, exchange, story, deps)
    answered(file_object(await visible_file(file_id, caller, service, deps)), exchange, story, deps)


async def delete_file(exchange: Exchange, story: Story, deps: Deps, file_id: str) -> None:
    """Answer `DELETE /v1/files/{id}`. The bytes are removed at once where the storage answers, else later. Raises Fault."""
    caller, service = await entered(FILES, exchange, story, deps)
    await visible_file(file_id, caller, service, deps)
    with refusals():
        if not await service.files.delete(caller.tenant, file_id):
            raise nothing_found("File", file_id, "id")
    answered({"id": file_id, "object": "file", "deleted": True}, exchange, story, deps)


async def send_content(exchange: Exchange, story: Story, deps: Deps, file_id: str) -> None:
    """Answer `GET /v1/files/{id}/content` with the file's bytes.

    Raises:
        Fault: OBJECT_NOT_FOUND or STORAGE_UNAVAILABLE; once bytes are out, the reply is cut.
    """
    caller, service = await entered(FILES, exchange, story, deps)
    file = await visible_file(file_id, caller, service, deps)
    pace = ReaderPace()
    begun = False
    with refusals():
        async for piece in service.contents.stream(file_key(file.id)):
            if not begun:
                begun = True
                story.settled.status = 200
                exchange.start(_content_headers(exchange, story, deps))
                exchange.listener = pace
            if not await pace.may_write():
                raise Fault(Kind.CLIENT_GONE, "The caller left before the file was sent.")
            if piece:
                exchange.write(piece)
    if not begun:
        story.settled.status = 200
        exchange.reply(200, _content_headers(exchange, story, deps), b"")
        return
    exchange.listener = NOBODY
    exchange.end()


def _content_headers(exchange: Exchange, story: Story, deps: Deps) -> bytes:
    own = b"content-type: application/octet-stream\r\nx-content-type-options: nosniff\r\ncontent-disposition: attachment\r\n"
    request_id = b"x-request-id: %b\r\n" % story.request_id.encode("ascii")
    return own + NO_STORE + request_id + common_headers(exchange, story, deps)
