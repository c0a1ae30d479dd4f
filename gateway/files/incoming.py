"""The form in which a file comes (`POST /v1/files`, `POST /v1/uploads/{id}/parts`), read as it arrives, and its file stored meanwhile.

A few pieces of the body are in memory, however large the file is, and a caller sends no faster than the storage takes them. What the form
says behind its file is known once the file is stored, so whoever stores one removes it again where the rest is not acceptable.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from backends.forms import BadForm, FormBounds, FormReader
from domain.faults import Fault, Kind
from domain.files import FileContents
from domain.identity import Caller
from gateway.http.edge.exchange import Exchange
from gateway.http.openai.checks import form_fault, refuse
from gateway.story import Story

FORM_BYTES: Final = 64 * 1024
"""Bytes that a form has beside its file, at most: fields, heads of parts and boundaries."""
BOUNDS: Final = FormBounds(parts=16, field_bytes=1024)
STEP_BYTES: Final = 1024 * 1024
"""Bytes of a file that go to the storage together, so that the quota is not counted anew for every read of a socket. The storage joins
them to pieces of its own size."""
ON_LOOP_BYTES: Final = 64 * 1024
"""Larger pieces of a body are read in a thread: a form of many near boundaries takes a microsecond for each of them."""

Admit = Callable[[int], Awaitable[None]]
"""Called with the bytes of the file so far before the last of them are stored. Raises what refuses them."""


class IncomingForm:
    """A form with one file that is on its way.

    Args:
        file_field: the name of the field that is the file.
        most: the most bytes that the file may have.
        too_large: makes the refusal of a file that has more.

    Raises:
        Fault: UNSUPPORTED_MEDIA for another content type; that of `too_large` where the length of the body says so.
    """

    def __init__(self, exchange: Exchange, file_field: str, most: int, too_large: Callable[[], Fault], caller: Caller) -> None:
        try:
            self._reader = FormReader(exchange.head.headers.get(b"content-type", b""), BOUNDS, file_field)
        except BadForm as error:
            message = f"Send the file as a form, with 'content-type: multipart/form-data' and its boundary: {error}."
            raise Fault(Kind.UNSUPPORTED_MEDIA, message) from None
        length = 0 if exchange.head.coding else exchange.head.content_length or 0
        self.least_bytes = max(0, length - FORM_BYTES)
        """Bytes that the file has at least, as the length of the body says."""
        if self.least_bytes > most:
            raise too_large()
        self._body = exchange.pieces(most + FORM_BYTES, caller.tenant)
        self._file_field = file_field
        self._most = most
        self._too_large = too_large
        self._received = 0
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def file_bytes(self) -> int:
        """The bytes of the file so far."""
        return self._reader.file_bytes

    @property
    def file_over(self) -> bool:
        """Whether the file is here whole."""
        return self._reader.file_over

    @property
    def filename(self) -> str:
        """The file's name; empty where the form says none."""
        return (self._reader.file and self._reader.file.filename) or ""

    def fields(self) -> dict[str, str]:
        """The fields that have come so far. Raises Fault: INVALID_VALUE for one that stands twice."""
        found: dict[str, str] = {}
        for part in self._reader.parts:
            if part.name in found:
                refuse(f"Invalid value for '{part.name}': it stands twice in the form.", part.name)
            found[part.name] = part.value.decode("utf-8", "replace")
        return found

    async def begin(self, story: Story, now: Callable[[], float]) -> None:
        """Read the first `STEP_BYTES` of the file, which are all of most files.

        Raises:
            Fault: MISSING_PARAMETER without a file; INVALID_VALUE for a form that is broken or large beside its file; that of `too_large`;
                those of `Exchange.body`.
        """
        while self._reader.file is None:
            if not await self._more():
                raise Fault(Kind.MISSING_PARAMETER, f"The form has no field '{self._file_field}'.", param=self._file_field)
        story.body_at = now()
        await self._fill()

    async def store(self, key: str, contents: FileContents, admit: Admit) -> None:
        """Write the file under a key while it arrives, then read the rest of the form. Where it fails, nothing is stored under the key,
        but where the rest of the form is why.

        Raises:
            StoresAway: as `FileContents.put`.
            Fault: as `begin`; raised by `admit`.
        """
        if self.file_over:
            await admit(self.file_bytes)
            await contents.put(key, self._taken())
        else:
            await contents.put(key, self._steps(admit))
        while await self._more():
            pass

    def note_size(self, story: Story) -> None:
        """Note in the story how large the body is."""
        story.asked.request_bytes = self._received

    async def _steps(self, admit: Admit) -> AsyncIterator[bytes]:
        while True:
            await self._fill()
            if not self._held:
                return
            await admit(self.file_bytes)
            yield self._taken()

    async def _fill(self) -> None:
        while self._held_bytes < STEP_BYTES and not self.file_over:
            await self._more()  # raises at the end of the body, which cannot be that of the form here

    def _taken(self) -> bytes:
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held = []
        self._held_bytes = 0
        return data

    async def _more(self) -> bool:
        """Read a further piece of the body; False at its end, which is then that of the form too."""
        piece = await anext(self._body, b"")
        try:
            if not piece:
                self._reader.end()
                return False
            found = self._reader.feed(piece) if len(piece) <= ON_LOOP_BYTES else await asyncio.to_thread(self._reader.feed, piece)
        except BadForm as error:
            raise form_fault(error) from None
        self._received += len(piece)
        self._held += found
        self._held_bytes += sum(map(len, found))
        if self.file_bytes > self._most:
            raise self._too_large()
        if self._received - self.file_bytes > FORM_BYTES:
            raise Fault(Kind.INVALID_VALUE, f"The form may have {FORM_BYTES} bytes beside its file.")
        return True
