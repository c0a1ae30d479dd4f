"""Forms with a file (`multipart/form-data`), read as they arrive and written anew. Nothing of a form that was read is passed on as it
stood: its parts become names and values, and `written_form` writes a form of its own from what is left of them.

The parser is python-multipart's. A form is within its `FormBounds`; each part has one name of plain letters, so that no name can break out
of the header that it is written into. `read_form` reads a form that came whole. `FormReader` reads one in pieces, and hands the bytes of
one part on at once instead of keeping them.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

FORM: Final = b"multipart/form-data"
USAGE_ASKED: Final = "stream_include_usage"
"""The field of forms that stands for `stream_options.include_usage`."""
USAGE_COUNTED_ON: Final = "stream_continuous_usage_stats"
"""The field of forms that stands for `stream_options.continuous_usage_stats`."""
MAX_BOUNDARY_BYTES: Final = 70
"""RFC 2046's bound."""

AUDIO_TYPES: Final[Mapping[str, str]] = {
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "mp3": "audio/mpeg",
    "mp4": "audio/mp4",
    "mpeg": "audio/mpeg",
    "mpga": "audio/mpeg",
    "oga": "audio/ogg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
    "webm": "audio/webm",
}
"""Content types of recordings by the ending of the file's name, all that an engine learns of it."""

_NAME: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}(?:\[[A-Za-z0-9_]{0,64}\])?")
_encode: Final = msgspec.json.Encoder().encode


class BadForm(ValueError):
    """Bytes that are no form, or one beyond the bounds.

    Args:
        name: the part to blame; empty for the form as a whole.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class FormPart(msgspec.Struct):
    """One part of a form."""

    name: str
    value: bytes
    filename: str | None = None
    """The name of the file that the part is; None for a part that is none."""


class FormBounds(msgspec.Struct, frozen=True):
    """What a form may have at most."""

    parts: int
    field_bytes: int
    """Longest value of a part that is no file."""


ENGINE_FORM: Final = FormBounds(parts=64, field_bytes=1024 * 1024)
"""The bounds of a form that an engine gets: the engines' own have some twenty fields, one of which is a prompt."""


class FormReader:
    """Reads one form, in pieces of any size.

    Args:
        content_type: the header of the request, with the boundary.
        streamed: the name of the part whose bytes `feed` returns instead of keeping them; empty for none. All other parts are then
            fields, bounded whether they have a file's name or not.

    Raises:
        BadForm: the header names no boundary of a form.
    """

    def __init__(self, content_type: bytes, bounds: FormBounds, streamed: str = "") -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != FORM or not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
            raise BadForm(f"the header 'content-type' names no boundary of 1 to {MAX_BOUNDARY_BYTES} bytes")
        callbacks: Any = {name.removeprefix("_"): getattr(self, name) for name in dir(self) if name.startswith("_on_")}
        self._parser = MultipartParser(boundary, callbacks)
        self._bounds = bounds
        self._streamed = streamed
        self.parts: list[FormPart] = []
        """The parts that are complete, in order, without the streamed one."""
        self.file: FormPart | None = None
        """The streamed part, without its bytes, once its head has been read."""
        self.file_bytes = 0
        """The bytes of the streamed part so far."""
        self.file_over = False
        """Whether the streamed part is complete."""
        self._pieces: list[bytes] = []
        self._begun = 0
        self._whole = False
        self._headers: dict[bytes, bytes] = {}
        self._field = b""
        self._value = b""
        self._part = FormPart("", b"")
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Read further bytes.

        Returns:
            The bytes of the streamed part among them.

        Raises:
            BadForm: the bytes are no form, or one beyond the bounds.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise BadForm(f"it cannot be read: {str(error)[:120]}") from None
        pieces, self._pieces = self._pieces, []
        return pieces

    def end(self) -> None:
        """Check that the form is whole. Raises BadForm."""
        try:
            self._parser.finalize()
        except FormParserError as error:
            raise BadForm(f"it cannot be read: {str(error)[:120]}") from None
        if not self._whole:
            raise BadForm("it ends before its last boundary")

    # --- what the parser calls ------------------------------------------------------------------------------------

    def _on_part_begin(self) -> None:
        if self._begun >= self._bounds.parts:
            raise BadForm(f"it has more than {self._bounds.parts} parts")
        self._begun += 1
        self._headers, self._data, self._data_bytes = {}, [], 0

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        name = self._field.lower()
        if name in self._headers:
            raise BadForm(f"a part has the header '{name.decode('ascii', 'replace')[:40]}' twice")
        self._headers[name] = self._value
        self._field = self._value = b""

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"")
        if kind != b"form-data" or not _NAME.fullmatch(name):
            raise BadForm("a part has no name, or one that is not made of 1 to 64 letters, digits, '_', '-' and '.'")
        shown = name.decode("ascii")
        if self._headers.get(b"content-transfer-encoding", b"binary").strip().lower() not in (b"binary", b"8bit", b"7bit"):
            raise BadForm("it has a content-transfer-encoding; send the bytes as they are", shown)
        filename = options.get(b"filename")
        self._part = FormPart(shown, b"", None if filename is None else filename.decode("utf-8", "replace"))
        if shown == self._streamed:
            if self.file is not None:
                raise BadForm("it stands twice in the form", shown)
            self.file = self._part

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part is self.file:
            self._pieces.append(data[start:end])
            self.file_bytes += end - start
            return
        self._data_bytes += end - start
        is_file = not self._streamed and (part.filename is not None or part.name == "file")
        if not is_file and self._data_bytes > self._bounds.field_bytes:
            raise BadForm(f"it has more than the {self._bounds.field_bytes} bytes that are allowed", part.name)
        self._data.append(data[start:end])

    def _on_part_end(self) -> None:
        if self._part is self.file:
            self.file_over = True
            return
        self._part.value = b"".join(self._data)
        self.parts.append(self._part)

    def _on_end(self) -> None:
        self._whole = True


def read_form(content_type: bytes, body: bytes) -> list[FormPart]:
    """The parts of a form that came whole, in order.

    Raises:
        BadForm: the bytes are no whole form, or one beyond the bounds of `ENGINE_FORM`.
    """
    reader = FormReader(content_type, ENGINE_FORM)
    reader.feed(body)
    reader.end()
    return reader.parts


def written_form(fields: Iterable[tuple[str, object]], filename: str, data: bytes) -> tuple[bytes, bytes]:
    """A form with a recording, and its content type.

    Args:
        fields: names and values: texts as they are, lists as one part for each item, anything else as JSON.
        filename: the name of the recording, with one of the endings of `AUDIO_TYPES`; its part is `file`.
    """
    parts = [(name, item) for name, value in fields for item in (value if isinstance(value, list) else [value])]
    written = [(name, item.encode() if isinstance(item, str) else _encode(item)) for name, item in parts]
    kind = AUDIO_TYPES[filename.rpartition(".")[2]]
    boundary = b"tidegate-%b" % secrets.token_hex(20).encode()  # nobody can have written it into a part
    pieces = [
        b'--%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (boundary, name.encode(), value) for name, value in written
    ]
    head = b'--%b\r\ncontent-disposition: form-data; name="file"; filename="%b"\r\ncontent-type: %b\r\n\r\n'
    pieces += [head % (boundary, filename.encode(), kind.encode()), data, b"\r\n--%b--\r\n" % boundary]
    return b"".join(pieces), b"%b; boundary=%b" % (FORM, boundary)
