"""Usage as files: CSV for spreadsheets, Parquet for tables. Rows come in pages and go out in blocks, so memory does not grow.

Money is there twice, in whole nano-dollars and, in the last column, in dollars with up to nine digits after the point: a file has no
rounding in it. No cell of CSV can be taken for a formula: a
text that begins like one gets an apostrophe before it, which spreadsheets hide.
"""

import csv
import datetime as dt
import io
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import IO, Any, Final

from tenancy.money import dollars_of
from tenancy.usage import MAX_PAGE_ROWS, SUMS, By, Filter, UsageAnswerRow, UsageTotals, columns

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Characters that spreadsheets take for the beginning of a formula (OWASP's list of CSV injection)."""
BLOCK_ROWS: Final = 10_000
"""Rows of one Parquet row group, and the most that are in memory."""


DOLLARS: Final = "cost_usd"
"""The last column: `cost_nanousd` in dollars."""
DOLLAR_DIGITS: Final = 28
"""Digits of a dollar amount in Parquet, nine of them after the point: more than any 64-bit number of nano-dollars has."""


class ParquetMissing(ImportError):
    """The library that writes Parquet is not installed."""


async def usage_rows(queries: UsageTotals, by: Sequence[By], where: Filter) -> AsyncIterator[tuple[UsageAnswerRow, ...]]:
    """All rows of an answer, page by page. Raises LedgerAway."""
    after = None
    while True:
        page = await queries.totals(by, where, after, MAX_PAGE_ROWS)
        if page.rows:
            yield page.rows
        if (after := page.next) is None:
            return


def header(by: Sequence[By]) -> tuple[str, ...]:
    """The columns of a file."""
    return (*columns(by), *SUMS, DOLLARS)


class CsvFile:
    """Writes rows as CSV (RFC 4180, UTF-8, CRLF). `close` does not close `target`."""

    def __init__(self, target: IO[bytes], by: Sequence[By]) -> None:
        self._target = target
        self._write([header(by)])

    def add(self, rows: Sequence[UsageAnswerRow]) -> None:
        """Write these rows."""
        self._write(
            [(*map(harmless, row.labels), *(getattr(row.sums, name) for name in SUMS), dollars_of(row.sums.cost_nanousd)) for row in rows]
        )

    def close(self) -> None:
        """Do nothing: every row is written already."""

    def _write(self, lines: Sequence[Sequence[Any]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(lines)
        self._target.write(text.getvalue().encode())


class ParquetFile:
    """Writes rows as Parquet: `day` a date, other labels texts, sums 64-bit integers, dollars a decimal of 28 digits. `close`
    writes the footer; without it the file cannot be read.

    Raises:
        ParquetMissing: the library is not installed; the message says how to install it.
    """

    def __init__(self, target: IO[bytes], by: Sequence[By]) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ParquetMissing("Parquet needs pyarrow: pip install 'tidegate[parquet]', or export CSV") from None
        self._arrow = pyarrow
        self._names = columns(by)
        kinds = [pyarrow.date32() if name == "day" else pyarrow.string() for name in self._names]
        fields = [
            *zip(self._names, kinds, strict=True),
            *((name, pyarrow.int64()) for name in SUMS),
            (DOLLARS, pyarrow.decimal128(DOLLAR_DIGITS, 9)),
        ]
        self._schema = pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name, kind in fields])
        self._writer = pyarrow.parquet.ParquetWriter(target, self._schema, compression="zstd")
        self._block: list[UsageAnswerRow] = []

    def add(self, rows: Sequence[UsageAnswerRow]) -> None:
        """Take these rows; they are written when a block is full."""
        self._block += rows
        if len(self._block) >= BLOCK_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is left and the end of the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._block:
            return
        labels = [[row.labels[at] for row in self._block] for at in range(len(self._names))]
        values: list[list[Any]] = [
            [dt.date.fromisoformat(text) for text in texts] if name == "day" else texts
            for name, texts in zip(self._names, labels, strict=True)
        ]
        values += [[getattr(row.sums, name) for row in self._block] for name in SUMS]
        values.append([Decimal(row.sums.cost_nanousd).scaleb(-9) for row in self._block])
        self._writer.write_table(self._arrow.table(values, schema=self._schema))
        self._block = []


FORMATS: Final[dict[str, type[CsvFile] | type[ParquetFile]]] = {"csv": CsvFile, "parquet": ParquetFile}
"""Writers by the name of the format."""


async def export_usage(queries: UsageTotals, by: Sequence[By], where: Filter, target: IO[bytes], kind: str) -> int:
    """Write an answer to an open binary file; returns how many rows it has.

    Raises:
        LedgerAway: the database cannot be reached; the file is incomplete then.
        ParquetMissing: the library that writes Parquet is not installed.
    """
    file = FORMATS[kind](target, by)
    count = 0
    async for rows in usage_rows(queries, by, where):
        file.add(rows)
        count += len(rows)
    file.close()
    return count


def harmless(text: str) -> str:
    """The text as a cell that no spreadsheet takes for a formula."""
    return "'" + text if text.startswith(FORMULA_STARTS) else text
