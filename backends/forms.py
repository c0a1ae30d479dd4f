"""Forms with a file (`multipart/form-data`), read from bytes and written anew. Nothing of a form that was read is passed on as it stood:
its parts become names and values, and `written_form` writes a form of its own from what is left of them.

The reader is python-multipart's. A form has at most `MAX_PARTS` parts; each has one name of plain letters, so that no name can break out
of the header that it is written into.
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
MAX_PARTS: Final = 64
"""Most parts of a form: the engines' own have some twenty fields."""
MAX_BOUNDARY_BYTES: Final = 70
"""RFC 2046's bound."""
MAX_FIELD_BYTES: Final = 1024 * 1024
"""Longest value of a part that is no file."""

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

_NAME: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}(?:\[\])?")
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


class _PartReader:
    """Gathers what the parser finds."""

    def __init__(self) -> None:
        self.parts: list[FormPart] = []
        self.whole = False
        self._headers: dict[bytes, bytes] = {}
        self._field = b""
        self._value = b""
        self._data: list[bytes] = []

    def on_part_begin(self) -> None:
        if len(self.parts) >= MAX_PARTS:
            raise BadForm(f"it has more than {MAX_PARTS} parts")
        self._headers, self._data = {}, []

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        name = self._field.lower()
        if name in self._headers:
            raise BadForm(f"a part has the header '{name.decode('ascii', 'replace')[:40]}' twice")
        self._headers[name] = self._value
        self._field = self._value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def on_part_end(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"")
        if kind != b"form-data" or not _NAME.fullmatch(name):
            raise BadForm("a part has no name, or one that is not made of 1 to 64 letters, digits, '_', '-' and '.'")
        shown = name.decode("ascii")
        if self._headers.get(b"content-transfer-encoding", b"binary").strip().lower() not in (b"binary", b"8bit", b"7bit"):
            raise BadForm("it has a content-transfer-encoding; send the bytes as they are", shown)
        filename = options.get(b"filename")
        value = b"".join(self._data)
        if filename is None and len(value) > MAX_FIELD_BYTES and shown != "file":
            raise BadForm(f"it has {len(value)} bytes, at most {MAX_FIELD_BYTES} are allowed", shown)
        self.parts.append(FormPart(shown, value, None if filename is None else filename.decode("utf-8", "replace")))

    def on_end(self) -> None:
        self.whole = True


def read_form(content_type: bytes, body: bytes) -> list[FormPart]:
    """The parts of a form, in order.

    Args:
        content_type: the header of the request, with the boundary.

    Raises:
        BadForm: the bytes are no whole form, or one beyond the bounds.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != FORM or not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise BadForm(f"the header 'content-type' names no boundary of 1 to {MAX_BOUNDARY_BYTES} bytes")
    reader = _PartReader()
    callbacks: Any = {name: getattr(reader, name) for name in dir(reader) if name.startswith("on_")}
    try:
        parser = MultipartParser(boundary, callbacks)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise BadForm(f"it cannot be read: {str(error)[:120]}") from None
    if not reader.whole:
        raise BadForm("it ends before its last boundary")
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
