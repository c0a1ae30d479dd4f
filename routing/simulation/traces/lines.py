"""Reads trace files line by line, plain or gzip, and makes the errors of invalid lines."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one line at most. The longest line of the public traces (an agent's session) has 1 MB."""

S = TypeVar("S")


class TraceError(ValueError):
    """A trace cannot be read; the message names file, line and problem."""


def lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Number and text of every line that is not blank. Raises TraceError."""
    number = 0
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise wrong(file, number, f"is longer than {MAX_LINE_BYTES} bytes")
                if text := line.strip():
                    yield number, text
    except (OSError, EOFError, zlib.error) as error:
        raise wrong(file, number + 1, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def wrong(file: Path, line: int, what: str) -> TraceError:
    """The error for an invalid line; `what` follows its place."""
    return TraceError(f"{file}:{line}: {what}")


def rows(file: Path, kind: type[S]) -> Iterator[tuple[int, S]]:
    """Number and struct of every line of a JSON lines file. Raises TraceError."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in lines(file):
        try:
            yield number, decoder.decode(line)
        except msgspec.MsgspecError as error:
            text = str(error)
            raise wrong(file, number, text if text[:2].isupper() else text[0].lower() + text[1:]) from None
