"""Files that callers keep with the gateway, and uploads in parts: values, and the ports of their stores.

`FileBook` and `UploadBook` keep what is known of files (SQL), `FileContents` the bytes (a folder, or S3). A file is entered in the book
first, which counts it towards the quota of its tenant, then its bytes are stored, then it is ready; it is taken out in the other order. A
file whose size is not known yet is counted anew as it grows, before the bytes are stored. A process that dies in between leaves an entry
that `FileBook.rubbish` finds later, never bytes that nobody knows of.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final, Literal, Protocol

import msgspec

FileStatus = Literal["uploading", "ready", "deleted"]
UploadStatus = Literal["pending", "completing", "completed", "cancelled"]

UPLOAD_LASTS_S: Final = 3600.0
"""How long parts may be added to an upload, as OpenAI has it; the same for the bytes of a file that is sent in one piece."""


class StoresAway(Exception):
    """The book or the contents cannot be reached now; the message says why."""


class StorageFull(Exception):
    """The file does not fit into its tenant's quota; the message is for the caller."""


class StorageBounds(msgspec.Struct, frozen=True):
    """The quota of each tenant."""

    files: int
    bytes: int


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one file."""

    id: str
    tenant: str
    project: str
    filename: str
    purpose: str
    size_bytes: int
    created_unix: float
    expires_unix: float | None = None
    status: FileStatus = "uploading"

    def visible(self, now_unix: float) -> bool:
        """Whether callers can see the file."""
        return self.status == "ready" and (self.expires_unix is None or now_unix < self.expires_unix)


class StoredUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload in parts. Its file is entered together with it, so that the quota counts it."""

    id: str
    tenant: str
    file_id: str
    mime_type: str
    created_unix: float
    expires_unix: float
    status: UploadStatus = "pending"
    keep_s: float | None = None
    """How long the file is kept once it is complete, where the caller says so."""


class UploadPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an upload."""

    id: str
    upload_id: str
    size_bytes: int
    created_unix: float


class FileFigures(msgspec.Struct, frozen=True):
    """How many files and batches a database has, of all tenants together."""

    files: dict[str, int]
    """By state, as `bytes` and `batches`."""
    bytes: dict[str, int]
    batches: dict[str, int]
    oldest_unix: float | None
    """When the oldest batch was created that may have lines without a result; None without one."""


class FileBook(Protocol):
    """What is known of files. Every method raises StoresAway."""

    async def enter(self, file: StoredFile, bounds: StorageBounds, *, growing: bool = False) -> None:
        """Enter a file that is `uploading`; one that is growing has the size that is known so far. Raises StorageFull."""
        ...

    async def grow(self, file: StoredFile, bounds: StorageBounds) -> None:
        """Count a file that is entered already with the size that it has now. Raises StorageFull."""
        ...

    async def ready(self, file: StoredFile) -> bool:
        """Make a file visible whose bytes are stored, with the size, purpose and end that it has now; False where it is not `uploading`
        any more."""
        ...

    async def find(self, tenant: str, file_id: str) -> StoredFile | None:
        """A file of the tenant in any state; None where there is none."""
        ...

    async def page(
        self, tenant: str, purpose: str | None, after: StoredFile | None, limit: int, *, newest_first: bool, now_unix: float
    ) -> list[StoredFile]:
        """Files that callers can see, in the order of their creation; `after` is the last one of the page before."""
        ...

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Mark a file as deleted; False where the tenant has no such file."""
        ...

    async def rubbish(self, now_unix: float, limit: int) -> list[StoredFile]:
        """Files that are deleted, expired, or were never made ready; their bytes are to be removed, then `drop` is called."""
        ...

    async def drop(self, file_ids: Collection[str]) -> None:
        """Take files out of the book."""
        ...


class UploadBook(Protocol):
    """What is known of uploads. Every method raises StoresAway."""

    async def begin(self, upload: StoredUpload, file: StoredFile, bounds: StorageBounds) -> None:
        """Enter an upload with its file. Raises StorageFull."""
        ...

    async def find_upload(self, tenant: str, upload_id: str) -> StoredUpload | None:
        """An upload of the tenant; None where there is none."""
        ...

    async def add_part(self, part: UploadPart, most_bytes: int) -> bool:
        """Enter a part; False where the upload is not pending, or its parts would be larger than `most_bytes` together."""
        ...

    async def finish_part(self, part: UploadPart, most_bytes: int) -> bool:
        """Count a part that was entered with no bytes, now that they are stored; False as of `add_part`."""
        ...

    async def drop_part(self, part_id: str) -> None:
        """Take a part out of the book."""
        ...

    async def parts(self, upload_id: str) -> list[UploadPart]:
        """The parts in the order of their ids."""
        ...

    async def turn(self, upload_id: str, before: UploadStatus, after: UploadStatus) -> bool:
        """Change the state of an upload that is in the state `before`; False where it is not."""
        ...

    async def old_uploads(self, before_unix: float, limit: int) -> list[StoredUpload]:
        """Uploads that expired before this time; their parts' bytes are to be removed, then `drop_upload` is called."""
        ...

    async def drop_upload(self, upload_id: str) -> None:
        """Take an upload and its parts out of the book."""
        ...


class FileContents(Protocol):
    """The bytes of files and parts, by key. Every method raises StoresAway."""

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> None:
        """Store bytes under a key: all of them or none. Of several pieces only a few MiB are in memory at once."""
        ...

    def stream(self, key: str) -> AsyncIterator[bytes]:
        """The bytes in pieces."""
        ...

    async def piece(self, key: str, start: int, length: int) -> bytes:
        """A part of the bytes."""
        ...

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove what is stored under the keys; a key that is not there is no error."""
        ...


def file_key(file_id: str) -> str:
    """The key of a file's bytes."""
    return f"files/{file_id}"


def part_key(part: UploadPart) -> str:
    """The key of the bytes of a part."""
    return f"parts/{part.upload_id}/{part.id}"
