"""Files and uploads as OpenAI's API shows them: what requests for them say, and the objects in answers."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from domain.faults import Fault, Kind
from domain.files import StoredFile, StoredUpload, UploadPart

PURPOSES: Final = frozenset({"assistants", "batch", "fine-tune", "vision", "user_data", "evals"})
"""The purposes that a caller may name; `batch_output` is that of the gateway's own files."""
BATCH: Final = "batch"
BATCH_OUTPUT: Final = "batch_output"
BATCH_KEEP_S: Final = 30 * 86_400.0
"""How long files of batches are kept where nobody says otherwise, as OpenAI keeps them."""
KEEP_S: Final = (3600, 2_592_000)
"""The shortest and the longest time that a caller may name, as OpenAI has it."""
MAX_NAME_CHARS: Final = 255
MAX_MIME_CHARS: Final = 256

T = TypeVar("T")


class ExpiresAfter(msgspec.Struct):
    """When a file expires."""

    anchor: str
    seconds: int


class UploadRequest(msgspec.Struct):
    """The body of `POST /v1/uploads`."""

    filename: str
    purpose: str
    bytes: int
    mime_type: str
    expires_after: ExpiresAfter | None = None


class CompleteRequest(msgspec.Struct):
    """The body of `POST /v1/uploads/{id}/complete`."""

    part_ids: list[str]
    md5: str | None = None


class ListQuery(msgspec.Struct, frozen=True):
    """The page of a list that a query asks for."""

    limit: int
    after: str = ""
    newest_first: bool = True
    purpose: str | None = None


def read_json(body: bytes, type_: type[T]) -> T:
    """A body of JSON as a value. Raises Fault: INVALID_JSON or INVALID_VALUE."""
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        raise Fault(Kind.INVALID_VALUE, f"The request is not acceptable: {ascii(str(error))[1:201]}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Fault(Kind.INVALID_JSON, "The body is not JSON.") from None


def read_page_query(query: str, usual: int, most: int) -> ListQuery:
    """The page that a query string asks for. Raises Fault: INVALID_VALUE."""
    said = dict(parse_qsl(query, keep_blank_values=True))
    limit = said.get("limit", str(usual))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= most):
        raise Fault(Kind.INVALID_VALUE, f"'limit' is a number from 1 to {most}.", param="limit")
    order = said.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Fault(Kind.INVALID_VALUE, "'order' is 'asc' or 'desc'.", param="order")
    return ListQuery(int(limit), said.get("after", ""), order == "desc", said.get("purpose"))


def checked_purpose(purpose: str) -> str:
    """A purpose that callers may name. Raises Fault: INVALID_VALUE."""
    if purpose not in PURPOSES:
        raise Fault(Kind.INVALID_VALUE, f"'purpose' is one of {', '.join(sorted(PURPOSES))}.", param="purpose")
    return purpose


def checked_name(name: str) -> str:
    """A file's name without a path. Raises Fault: INVALID_VALUE."""
    name = name.replace("\\", "/").rpartition("/")[2]
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise Fault(Kind.INVALID_VALUE, f"A file needs a name of 1 to {MAX_NAME_CHARS} printable characters.", param="filename")
    return name


def keep_s(expires_after: ExpiresAfter | None, purpose: str) -> float | None:
    """How long a file is kept, in seconds; None until it is deleted. Raises Fault: INVALID_VALUE."""
    if expires_after is None:
        return BATCH_KEEP_S if purpose in (BATCH, BATCH_OUTPUT) else None
    if expires_after.anchor != "created_at":
        raise Fault(Kind.INVALID_VALUE, "'expires_after' counts from 'created_at'.", param="expires_after.anchor")
    shortest, longest = KEEP_S
    if not shortest <= expires_after.seconds <= longest:
        message = f"'expires_after' is {shortest} to {longest} seconds."
        raise Fault(Kind.INVALID_VALUE, message, param="expires_after.seconds")
    return float(expires_after.seconds)


def file_object(file: StoredFile) -> dict[str, Any]:
    """A file as answers show it."""
    shown: dict[str, Any] = {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_unix),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
    if file.expires_unix is not None:
        shown["expires_at"] = int(file.expires_unix)
    return shown


def page_object(objects: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page of a list."""
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else (None, None)
    return {"object": "list", "data": list(objects), "first_id": first, "last_id": last, "has_more": has_more}


def upload_object(upload: StoredUpload, file: StoredFile, *, status: str) -> dict[str, Any]:
    """An upload as answers show it; its file is shown once it is complete."""
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": file.size_bytes,
        "created_at": int(upload.created_unix),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": status,
        "expires_at": int(upload.expires_unix),
        "file": file_object(file) if status == "completed" else None,
    }


def part_object(part: UploadPart) -> dict[str, Any]:
    """A part of an upload as answers show it."""
    return {"id": part.id, "object": "upload.part", "created_at": int(part.created_unix), "upload_id": part.upload_id}
