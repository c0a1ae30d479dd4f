"""Reads `multipart/form-data`, the form in which files come, with `python-multipart`. Pure.

A form is one file and a few short fields. What is larger or has more parts is refused while it is read, so that a body costs little more
than its own bytes.
"""

from typing import Final

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from domain.faults import Fault, Kind

MAX_FIELDS: Final = 16
MAX_FIELD_BYTES: Final = 1024
MAX_BOUNDARY_BYTES: Final = 256
"""RFC 2046 allows 70."""
FORM: Final = b"multipart/form-data"


class FormFile(msgspec.Struct, frozen=True):
    """A form with one file."""

    filename: str
    data: bytes
    fields: dict[str, str]


class _FormReader:
    """Collects the parts of a form; its methods are the parser's callbacks."""

    def __init__(self, file_field: str) -> None:
        self._file_field = file_field.encode("ascii")
        self.fields: dict[str, str] = {}
        self.file: list[bytes] | None = None
        self.filename = ""
        self._header = bytearray()
        self._value = bytearray()
        self._name = b""
        self._of_file = False
        self._field: list[bytes] = []
        self._field_bytes = 0
        self._parts = 0
        self.complete = False

    def part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise Fault(Kind.INVALID_VALUE, f"A form may have {MAX_FIELDS} fields.")
        self._name, self._of_file, self._field, self._field_bytes = b"", False, [], 0

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._name = options.get(b"name", b"")
            if self._name == self._file_field:
                if self.file is not None:
                    raise Fault(Kind.INVALID_VALUE, "The form has two files.", param=self._file_field.decode())
                self._of_file, self.file = True, []
                self.filename = options.get(b"filename", b"").decode("utf-8", "replace")
        self._header.clear()
        self._value.clear()

    def part_data(self, data: bytes, start: int, end: int) -> None:
        if self._of_file:
            assert self.file is not None
            self.file.append(data[start:end])
            return
        self._field_bytes += end - start
        if self._field_bytes > MAX_FIELD_BYTES:
            raise Fault(Kind.INVALID_VALUE, f"A field of the form may have {MAX_FIELD_BYTES} bytes.")
        self._field.append(data[start:end])

    def part_end(self) -> None:
        if not self._of_file:
            self.fields[self._name.decode("utf-8", "replace")] = b"".join(self._field).decode("utf-8", "replace")

    def end(self) -> None:
        self.complete = True


def read_form(content_type: bytes, body: bytes, file_field: str) -> FormFile:
    """The form in a body.

    Args:
        content_type: the header, which names the boundary.
        file_field: the name of the field that is the file.

    Raises:
        Fault: UNSUPPORTED_MEDIA for another content type; INVALID_VALUE for a form that is broken or has too many fields;
            MISSING_PARAMETER without the file.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != FORM or not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise Fault(Kind.UNSUPPORTED_MEDIA, "Send the file as a form, with 'content-type: multipart/form-data' and its boundary.")
    reading = _FormReader(file_field)
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": reading.part_begin,
            "on_header_field": reading.header_field,
            "on_header_value": reading.header_value,
            "on_header_end": reading.header_end,
            "on_part_data": reading.part_data,
            "on_part_end": reading.part_end,
            "on_end": reading.end,
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise Fault(Kind.INVALID_VALUE, "The form is broken: it does not follow its boundary.") from None
    if not reading.complete:
        raise Fault(Kind.INVALID_VALUE, "The form is broken: its end is missing.")
    if reading.file is None:
        raise Fault(Kind.MISSING_PARAMETER, f"The form has no field '{file_field}'.", param=file_field)
    return FormFile(reading.filename, b"".join(reading.file), reading.fields)
