"""The input file of a batch: its lines are checked as OpenAI checks them, and put into an order in which neighbours share prompts.

Of a line only its place in the file, its id and the beginning of its prompt are kept, so a file of any size is read with little memory; the
line itself is read again when its request is sent. Engines keep what they computed of a prompt's beginning, so lines with the same system
prompt follow each other.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.batches import LineMistake

MAX_MISTAKES: Final = 100
"""Mistakes that are told of one file; OpenAI's API tells about as many."""
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""The usual size of a request, `EdgeLimits.max_body_bytes`."""
KEY_BYTES: Final = 1024
"""Bytes of a prompt that lines are ordered by: 50 MiB for a whole file. Prompts that begin alike for longer stay in the file's order."""
MAX_ID_CHARS: Final = 512


class InputLine(msgspec.Struct, frozen=True, gc=False):
    """One request of a batch."""

    number: int
    """From 0, empty lines not counted."""
    start: int
    """Where its bytes begin in the file."""
    length: int
    custom_id: str


class _WrittenLine(msgspec.Struct, gc=False):
    """A line as it stands in the file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _WrittenBody(msgspec.Struct, gc=False):
    """The members of a body that the check needs."""

    model: str
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    stream: bool | None = None


class InputReader:
    """Reads the file piece by piece. Pure, so that it can run in a thread.

    Args:
        path: the route that every line names.
    """

    def __init__(self, path: str, max_lines: int) -> None:
        self._path = path
        self._max_lines = max_lines
        self._rest = b""
        self._skipping = False
        """Whether what comes up to the next line belongs to a line that is too long."""
        self._at = 0
        self._row = 0
        self._ids: set[str] = set()
        self._keyed: list[tuple[bytes, InputLine]] = []
        self.mistakes: list[LineMistake] = []
        self.model = ""

    @property
    def count(self) -> int:
        """The lines so far."""
        return len(self._keyed)

    def feed(self, piece: bytes) -> None:
        """Read a further piece of the file."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._line(line)
            self._at += len(line) + 1
        if len(self._rest) > MAX_LINE_BYTES:
            if not self._skipping:
                self._row += 1
                self._mistake("line_too_long", f"A line may have {MAX_LINE_BYTES} bytes.")
            self._rest, self._skipping = b"", True

    def end(self) -> list[InputLine]:
        """The lines in the order in which they are sent; call once, behind the last piece."""
        self._line(self._rest)
        if not self._keyed and not self.mistakes:
            self.mistakes.append(LineMistake("empty_file", "The input file has no requests."))
        self._keyed.sort(key=lambda keyed: (keyed[0], keyed[1].number))
        lines = [line for _, line in self._keyed]
        self._keyed = []
        return lines

    def _mistake(self, code: str, message: str, param: str | None = None) -> None:
        if len(self.mistakes) < MAX_MISTAKES:
            self.mistakes.append(LineMistake(code, message, self._row, param))

    def _line(self, data: bytes) -> None:
        if self._skipping:
            self._skipping = False
            return
        self._row += 1
        if not data.strip():
            return
        if len(data) > MAX_LINE_BYTES:
            self._mistake("line_too_long", f"A line may have {MAX_LINE_BYTES} bytes.")
            return
        if len(self._keyed) >= self._max_lines:
            if len(self._keyed) == self._max_lines and not any(mistake.code == "too_many_requests" for mistake in self.mistakes):
                self._mistake("too_many_requests", f"A batch may have {self._max_lines} requests.")
            return
        try:
            written = msgspec.json.decode(data, type=_WrittenLine)
        except msgspec.ValidationError as error:
            self._mistake("invalid_request", f"The line is not a request: {ascii(str(error))[1:201]}.")
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._mistake("invalid_json_line", "This line is not parseable as valid JSON.")
            return
        body = self._body(written)
        if body is not None:
            prompt = bytes(body.messages) or bytes(body.prompt) or bytes(body.input)
            line = InputLine(len(self._keyed), self._at, len(data), written.custom_id)
            self._keyed.append((prompt[:KEY_BYTES], line))

    def _body(self, written: _WrittenLine) -> _WrittenBody | None:
        """The body of a line; None where the line has a mistake."""
        found = len(self.mistakes)
        if not 0 < len(written.custom_id) <= MAX_ID_CHARS:
            self._mistake("invalid_custom_id", f"'custom_id' has 1 to {MAX_ID_CHARS} characters.", "custom_id")
        elif written.custom_id in self._ids:
            self._mistake("duplicate_custom_id", "The custom_id of this line stands in an earlier line, too.", "custom_id")
        self._ids.add(written.custom_id)
        if written.method != "POST":
            self._mistake("invalid_method", "'method' is 'POST'.", "method")
        if written.url != self._path:
            self._mistake("mismatched_url", f"'url' is the endpoint of the batch, {self._path}.", "url")
        try:
            body = msgspec.json.decode(written.body, type=_WrittenBody)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._mistake("invalid_body", "'body' is the object of a request, with the name of a model.", "body")
            return None
        self.model = self.model or body.model
        if body.model != self.model:
            self._mistake("mismatched_model", "All requests of a batch are for the same model.", "body.model")
        if body.stream:
            self._mistake("invalid_stream", "A request of a batch cannot be streamed.", "body.stream")
        return body if len(self.mistakes) == found and found < MAX_MISTAKES else None


def body_of(line: bytes) -> bytes:
    """The body of the request in a line that was checked before."""
    return bytes(msgspec.json.decode(line, type=_WrittenLine).body)


def left(lines: Sequence[InputLine], done: set[int]) -> list[InputLine]:
    """The lines that have no result yet, in their order."""
    return [line for line in lines if line.number not in done]
