"""Reads trace files line by line, and makes the errors of invalid lines.

Files are plain or gzip, or Parquet files of the request log: each row has the line that the access log has of its request.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
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
    if file.suffix in ROWS_OF:
        yield from enumerate(ROWS_OF[file.suffix](file), 1)
        return
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


def _parquet_lines(file: Path) -> Iterator[bytes]:
    try:
        # imported only here: most traces need no such package
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise wrong(file, 1, "needs pyarrow to be read: pip install 'tidegate[parquet]'") from None
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(columns=["line"]):
                for value in batch.column(0):
                    yield value.as_py().encode()
    except (OSError, KeyError, IndexError, pyarrow.ArrowException) as error:
        raise wrong(file, 1, f"is no Parquet file of a request log: {error}"[:300]) from None


ROWS_OF: Final[Mapping[str, Callable[[Path], Iterator[bytes]]]] = {".parquet": _parquet_lines}
"""Readers of the files that are no text, by their endings."""


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
