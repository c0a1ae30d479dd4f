"""The databases' own plans for what reads the ledger: no report reads all of it, or all of the totals where it asks for some days."""

import datetime as dt
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from bench.booking.__main__ import usage
from bench.reports import DAYS, FIRST, MONTH, fill
from tenancy.limits import Level, Scope
from tenancy.periods import DAY_S
from tenancy.stores.sql import SqlSpendReader, SqlUsageQueries, SqlUsageStore
from tenancy.usage import Filter, to_cursor

TENANTS = 20
ROWS = 4 * 3 * TENANTS * DAYS
NAMES = [f"t{n:06}" for n in range(TENANTS)]
OF_ONE = Filter(tenant=NAMES[7], first_day=MONTH.first_day, last_day=MONTH.last_day)
MIDDLE = to_cursor([NAMES[7], "model-1"])
NOON_S = (FIRST - dt.date(1970, 1, 1)).days * DAY_S + DAY_S // 2

Ask = Callable[[AsyncEngine], Awaitable[object]]

REPORTS: dict[str, Ask] = {
    "the month by tenant and model": lambda engine: SqlUsageQueries(engine).totals(("tenant", "model"), MONTH),
    "a later page of it": lambda engine: SqlUsageQueries(engine).totals(("tenant", "model"), MONTH, MIDDLE),
    "the month by day": lambda engine: SqlUsageQueries(engine).totals(("day",), MONTH),
    "a tenant's month": lambda engine: SqlUsageQueries(engine).totals(("day", "model"), OF_ONE),
    "what a tenant has spent": lambda engine: SqlUsageQueries(engine).spent(Scope(Level.TENANT, NAMES[7]), FIRST),
    "what a key has spent": lambda engine: SqlUsageQueries(engine).spent(Scope(Level.KEY, "key-of-t000007"), FIRST),
    "a tenant's rows": lambda engine: SqlUsageQueries(engine).events(Filter(tenant=NAMES[7]), to_cursor([ROWS // 2])),
    "all rows, a page": lambda engine: SqlUsageQueries(engine).events(Filter(), to_cursor([ROWS // 2])),
    "limits of the month": lambda engine: SqlSpendReader(engine).spent_by(Level.TENANT, NAMES, FIRST),
    "limits since an hour of a day": lambda engine: SqlSpendReader(engine).spent_since(Level.TENANT, NAMES, NOON_S),
    "limits of rolling days": lambda engine: SqlSpendReader(engine).spent_per_hour(Level.TENANT, NAMES, NOON_S),
    "rows that are booked": lambda engine: SqlSpendReader(engine).booked(["req-5", "req-6"]),
    "booking": lambda engine: SqlUsageStore(engine).write(list(usage(50, 5))),
    "the retention": lambda engine: SqlUsageStore(engine).prune(FIRST + dt.timedelta(days=1)),
    "days to come": lambda engine: SqlUsageStore(engine).prepare(FIRST),
}


@pytest.fixture
async def ledger(sql_engine: AsyncEngine) -> AsyncEngine:
    await fill(sql_engine, ROWS, TENANTS)
    return sql_engine


async def plans_of(engine: AsyncEngine, ask: Ask) -> list[str]:
    """The lines of the plans of every statement on the ledger's tables that is run."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, _context: object, many: bool) -> None:
        if "usage_" in statement and not many and statement.lstrip().startswith(("SELECT", "DELETE", "UPDATE", "WITH")):
            asked.append((statement, parameters))

    sa.event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        await ask(engine)
    finally:
        sa.event.remove(engine.sync_engine, "before_cursor_execute", note)
    postgres, lines = engine.dialect.name == "postgresql", []
    async with engine.connect() as connection:
        if postgres:  # it reads small tables whole where it could use an index
            await connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for statement, parameters in asked:
            rows = await connection.exec_driver_sql(("EXPLAIN " if postgres else "EXPLAIN QUERY PLAN ") + statement, parameters)
            lines += [str(row[-1]) for row in rows]
    return lines


def reads_whole(line: str, table: str) -> bool:
    """Whether a line of a plan reads a table, or a partition of it, from its beginning to its end."""
    if f"Seq Scan on {table}" in line:
        return True
    return f"SCAN {table}" in line and "INDEX" not in line


@pytest.mark.parametrize("report", REPORTS)
async def test_no_report_reads_the_whole_ledger(ledger: AsyncEngine, report: str) -> None:
    plans = await plans_of(ledger, REPORTS[report])
    assert plans
    read = [line for line in plans for table in ("usage_event", "usage_total", "usage_quarter") if reads_whole(line, table)]
    assert not read, "\n".join(plans)
    # an index that is read from its beginning is a whole table, too
    assert not [line for line in plans if line.startswith(("SCAN usage_event", "SCAN usage_total", "SCAN usage_quarter"))], "\n".join(plans)
    scans = re.compile(r"Index (Only )?Scan using \S+ on usage_")
    around = zip(["", *plans], plans, [*plans[1:], ""], strict=False)  # the first row of an index is a Limit above it
    whole = [line for above, line, below in around if scans.search(line) and "Index Cond" not in below and "Limit" not in above]
    assert not whole, "\n".join(plans)


async def test_a_whole_table_would_be_seen(ledger: AsyncEngine) -> None:
    async def by_model(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await connection.execute(sa.text("SELECT sum(cost_nanousd) FROM usage_event WHERE model = 'model-1'"))

    assert [line for line in await plans_of(ledger, by_model) if reads_whole(line, "usage_event")]


async def test_pages_of_the_month_are_the_whole_month(ledger: AsyncEngine) -> None:
    queries, seen, after = SqlUsageQueries(ledger), [], None
    while True:
        page = await queries.totals(("tenant", "model"), MONTH, after, 7)
        seen += [row.labels for row in page.rows]
        if (after := page.next) is None:
            break
    assert seen == [(name, f"model-{n}") for name in NAMES for n in range(3)]


@pytest.mark.parametrize("place", [None, MIDDLE])
async def test_a_page_of_the_month_is_found_by_tenant(ledger: AsyncEngine, place: str | None) -> None:
    async def page(engine: AsyncEngine) -> None:
        await SqlUsageQueries(engine).totals(("tenant", "model"), MONTH, place, 2)

    plans = await plans_of(ledger, page)
    found = [line for line in plans if "SEARCH" in line or "Scan" in line]
    assert found
    assert all("usage_total_tenant" in line for line in found), "\n".join(plans)
