"""`/v1/files`: a file is stored, listed, shown, read and deleted. A tenant sees its own files only.

The body of `POST /v1/files` is read whole, within `data.limits.largest_body_bytes`; larger files come in parts (`upload_routes.py`). An
answer with a file's bytes is sent piece by piece, as fast as its reader takes it.
"""

from functools import partial
from typing import Final

from msgspec import structs

from domain.faults import Fault, Kind
from domain.files import StoredFile, file_key
from domain.identity import Caller
from gateway.deps import Deps
from gateway.files.form import FormFile, read_form
from gateway.files.service import FILES, NO_STORE, FileService, answered, entered, nothing_found, refusals, whole_body
from gateway.http.edge.exchange import NOBODY, Exchange
from gateway.http.edge.reader_pace import ReaderPace
from gateway.http.openai.files import ExpiresAfter, checked_name, checked_purpose, file_object, keep_s, page_object, read_page_query
from gateway.request.reply_headers import common_headers
from gateway.story import Story

FORM_BYTES: Final = 64 * 1024
"""What a form has beside its file."""
ON_LOOP_BYTES: Final = 256 * 1024
"""Larger forms are read in a thread."""
PAGE: Final = 10_000
"""Files of a page, at most and where the caller names no number, as OpenAI has it."""


async def create_file(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `POST /v1/files`.

    Raises:
        Fault: the key, the form, the quota or the storage is why the file is not stored.
    """
    caller, service = await entered(FILES, exchange, story, deps)
    form = await form_of(exchange, "file", service.max_file_bytes, caller, story, deps)
    purpose = checked_purpose(form.fields.get("purpose", ""))
    kept_s = keep_s(_expires_after(form), purpose)
    if len(form.data) > service.max_file_bytes:
        raise Fault(Kind.BODY_TOO_LARGE, f"A file may have {service.max_file_bytes} bytes.", param="file")
    now = deps.wall()
    file = StoredFile(
        id=service.new_id("file-"),
        tenant=caller.tenant,
        project=caller.project,
        filename=checked_name(form.filename or "file"),
        purpose=purpose,
        size_bytes=len(form.data),
        created_unix=now,
        expires_unix=None if kept_s is None else now + kept_s,
    )
    with refusals():
        await service.files.enter(file, service.bounds)
        await service.contents.put(file_key(file.id), form.data)
        await service.files.ready(file.id, file.size_bytes, file.expires_unix)
    answered(file_object(structs.replace(file, status="ready")), exchange, story, deps)


async def form_of(exchange: Exchange, file_field: str, most: int, caller: Caller, story: Story, deps: Deps) -> FormFile:
    """The form in a request's body. Raises Fault: those of `read_form` and `Exchange.body`."""
    body = await whole_body(exchange, most + FORM_BYTES, caller, story, deps)
    read = partial(read_form, exchange.head.headers.get(b"content-type", b""), body, file_field)
    return read() if len(body) <= ON_LOOP_BYTES else await deps.loop.run_in_executor(None, read)


def _expires_after(form: FormFile) -> ExpiresAfter | None:
    anchor, seconds = form.fields.get("expires_after[anchor]"), form.fields.get("expires_after[seconds]")
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
