"""Usage as files: whole numbers, no formulas, and no more memory for more rows."""

import csv
import datetime as dt
import io
import sys
import tracemalloc
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from tenancy.usage import SUMS, By, Filter, Page, UsageAnswerRow, UsageSums, columns
from tenancy.usage_export import ParquetMissing, export_usage, harmless, header

BYS: tuple[By, ...] = ("day", "tenant", "model")
DAY = dt.date(2026, 1, 1)


class Queries:
    """Answers with `count` rows, some of them unfriendly."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def totals(self, by: Sequence[By], where: Filter, after: str | None = None, limit: int = 500) -> Page:
        first = int(after or 0)
        last = min(first + limit, self.count)
        rows = tuple(
            UsageAnswerRow((str(DAY + dt.timedelta(days=n % 300)), f"t{n}", ODD[n % len(ODD)]), sums(n)) for n in range(first, last)
        )
        return Page(rows, str(last) if last < self.count else None)

    async def spent(self, scope: Any, since: Any, label: str = "") -> UsageSums:
        raise AssertionError

    async def events(self, where: Any, after: Any = None, limit: int = 1) -> Any:
        raise AssertionError


ODD = ("m", "=1+1", "+x", "-x", "@x", "\tx", 'a,"b"\r\nc', "ö", "")


def sums(n: int) -> UsageSums:
    return UsageSums(n, n * 10**12, 1, 2, 3, 4, 10**15 + n)


async def test_csv_has_every_row_exactly_and_no_formula() -> None:
    file = io.BytesIO()
    assert await export_usage(Queries(23), BYS, Filter(), file, "csv") == 23
    lines = list(csv.reader(io.StringIO(file.getvalue().decode(), newline="")))
    assert tuple(lines[0]) == header(BYS) == (*columns(BYS), *SUMS, "cost_usd")
    for n, line in enumerate(lines[1:]):
        odd = ODD[n % len(ODD)]
        assert line[2] in (odd, "'" + odd)
        assert not line[2].startswith(("=", "+", "-", "@", "\t"))
        assert [int(cell) for cell in line[3:-1]] == [getattr(sums(n), name) for name in SUMS]
        assert Decimal(line[-1]) * 10**9 == 10**15 + n, "exactly as many dollars"
    assert (len(lines), lines[1][-1], lines[2][-1]) == (24, "1000000.00", "1000000.000000001")
    assert harmless("\r=1") == "'\r=1"


async def test_parquet_has_every_row_with_its_types() -> None:
    import pyarrow.parquet

    file = io.BytesIO()
    assert await export_usage(Queries(25_000), BYS, Filter(), file, "parquet") == 25_000
    read = pyarrow.parquet.ParquetFile(io.BytesIO(file.getvalue()))
    assert read.num_row_groups == 3
    assert {f.name: str(f.type) for f in read.schema_arrow} == {
        "day": "date32[day]",
        "tenant": "string",
        "model": "string",
        **dict.fromkeys(SUMS, "int64"),
        "cost_usd": "decimal128(28, 9)",
    }
    table = read.read()
    for n in (0, 1, 24_999):
        (row,) = table.slice(n, 1).to_pylist()
        assert row["day"] == DAY + dt.timedelta(days=n % 300)
        assert row["model"] == ODD[n % len(ODD)]
        assert row["cost_nanousd"] == 10**15 + n
        assert row["cost_usd"] == Decimal(10**15 + n) / 10**9


async def test_an_answer_without_rows_is_a_file_without_rows() -> None:
    import pyarrow.parquet

    for kind in ("csv", "parquet"):
        file = io.BytesIO()
        assert await export_usage(Queries(0), BYS, Filter(), file, kind) == 0
        if kind == "parquet":
            assert pyarrow.parquet.ParquetFile(io.BytesIO(file.getvalue())).metadata.num_rows == 0
        else:
            assert file.getvalue().decode() == ",".join(header(BYS)) + "\r\n"


class Nowhere(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


@pytest.mark.slow
async def test_memory_does_not_grow_with_rows() -> None:
    peaks = []
    for count in (20_000, 120_000):
        tracemalloc.start()
        await export_usage(Queries(count), BYS, Filter(), Nowhere(), "csv")  # type: ignore[arg-type]  # all it needs is `write`
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


async def test_without_the_library_parquet_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ParquetMissing, match=r"tidegate\[parquet\]"):
        await export_usage(Queries(1), BYS, Filter(), io.BytesIO(), "parquet")
