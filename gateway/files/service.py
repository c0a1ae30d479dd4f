"""What the routes of files, uploads and batches work with, and what all of them do first and last.

`FileService` has the stores and the bounds. `entered` is the beginning of every route: who calls, and whether the caller may use it.
`answered` is the end. `refusals` turns what stores raise into faults.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from domain import retry_after
from domain.batches import BatchBook, TooManyBatches
from domain.faults import Fault, Kind
from domain.files import FileBook, FileContents, StorageBounds, StorageFull, StoresAway, UploadBook
from domain.identity import Caller
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.request.authenticate import authenticate, grant_of
from gateway.request.reply_headers import reply_headers
from gateway.story import Story

FILES: Final = "/v1/files"
UPLOADS: Final = "/v1/uploads"
BATCHES: Final = "/v1/batches"
NO_STORE: Final = b"cache-control: no-store\r\n"
JSON_BODY_BYTES: Final = 256 * 1024
"""The largest body of JSON of these routes: an upload has at most a few thousand parts."""


@dataclass(frozen=True, slots=True)
class FileService:
    """The stores of files and batches, and their bounds."""

    files: FileBook
    uploads: UploadBook
    contents: FileContents
    bounds: StorageBounds
    max_file_bytes: int
    new_id: Callable[[str], str]
    """Makes an id that nobody can guess, behind the prefix of its kind."""
    batches: BatchBook | None = None
    """None where this gateway runs no batches."""
    max_open_batches: int = 20
    max_lines: int = 50_000
    max_part_bytes: int = 64 * 1024**2
    max_upload_bytes: int = 8 * 1024**3


async def entered(path: str, exchange: Exchange, story: Story, deps: Deps) -> tuple[Caller, FileService]:
    """The caller of a route, and the stores.

    Args:
        path: the route as rights name it.

    Raises:
        Fault: those of `authenticate`; NOT_PERMITTED where the caller may not use the route; UNKNOWN_PATH where it is switched off.
    """
    story.asked.endpoint = path
    caller = await authenticate(exchange, story, deps)
    story.asked.user = caller.user
    grant = grant_of(caller, deps)
    story.asked.organisation = grant.holder.organisation
    refusing_scope = grant.rights.refuses_endpoint(path)
    if refusing_scope is not None:
        raise Fault(Kind.NOT_PERMITTED, f"{path} may not be used here (set for {refusing_scope}).")
    service = deps.files
    if service is None or (path == BATCHES and service.batches is None):
        raise Fault(Kind.UNKNOWN_PATH, f"{path} is switched off here.")
    return caller, service


async def json_body(exchange: Exchange, caller: Caller, story: Story, deps: Deps) -> bytes:
    """The body of a request of JSON. Raises Fault: UNSUPPORTED_MEDIA, and those of `Exchange.body`."""
    if exchange.head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
        raise Fault(Kind.UNSUPPORTED_MEDIA, "Send the request as JSON, with the header 'content-type: application/json'.")
    return await whole_body(exchange, JSON_BODY_BYTES, caller, story, deps)


async def whole_body(exchange: Exchange, most: int, caller: Caller, story: Story, deps: Deps) -> bytes:
    """The body of a request, of at most so many bytes. Raises the Faults of `Exchange.body`."""
    body = await exchange.body((most,), caller.tenant)
    story.body_at = deps.clock()
    story.asked.request_bytes = len(body)
    return body


def answered(value: Any, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer with a value in JSON."""
    story.settled.status = 200
    exchange.reply(200, reply_headers(exchange, story, None, deps, stream=False) + NO_STORE, msgspec.json.encode(value))


def nothing_found(what: str, given: str, param: str) -> Fault:
    """The refusal of an id that does not exist for the caller's tenant."""
    shown = "".join(c if " " <= c <= "~" else "?" for c in given[:64])
    return Fault(Kind.OBJECT_NOT_FOUND, f"No such {what} object: {shown}", param=param)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise what stores raise as faults.

    Raises:
        Fault: STORAGE_UNAVAILABLE, or QUOTA_SPENT where the tenant's quota is full.
    """
    try:
        yield
    except StoresAway as error:
        message = "Files cannot be reached here right now. Try again shortly."
        raise Fault(Kind.STORAGE_UNAVAILABLE, message, retry=retry_after.SOON, detail=str(error)) from None
    except (StorageFull, TooManyBatches) as error:
        raise Fault(Kind.QUOTA_SPENT, str(error)) from None
