"""`python -m bench.reports`: how long reports of usage take, over ledgers of several sizes, on SQLite and on Postgres.

A ledger has the same tenants, models and days whatever its size, so that what grows is its rows: reports read totals, which do not. The
rows are made by the database itself. Then, of real stores of the product:

- the month's spend by tenant and model (the first page, and one from the middle), one tenant's by day and model, and the sums of the
  month that limits of all tenants are set from;
- a page of one tenant's rows;
- booking a batch of new rows with their totals (there is no other roll-up), beside the same in an empty ledger;
- the retention, which drops the first day.

`--tenants` makes a second kind of ledger, of totals alone, in which tenants grow.
"""

import argparse
import datetime as dt
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Final

import uvloop
from sqlalchemy.ext.asyncio import AsyncEngine

from bench.booking.__main__ import usage
from bench.results_file import Row, machine, refresh, write_rows
from tenancy.limits import Level
from tenancy.stores.sql import SqlSpendReader, SqlUsageQueries, SqlUsageStore, migrate, open_engine
from tenancy.usage import Filter, to_cursor
from tests.databases import postgres_server

ROWS: Final = (100_000, 1_000_000, 10_000_000)
TENANTS: Final = 1_000
MODELS: Final = 3
DAYS: Final = 31
FIRST: Final = dt.date(2026, 1, 1)
MONTH: Final = Filter(first_day=FIRST, last_day=FIRST + dt.timedelta(days=DAYS - 1))
ROUNDS: Final = 5
BATCH: Final = 2_000
"""Rows of a batch that is booked: a second's of a busy worker."""

PAGE: Final = 40
"""Rows of a page, which a tenant of the smallest ledger has, too."""

NUMBERS: Final = {
    "sqlite": "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {count}) ",
    "postgresql": "WITH numbers(n) AS (SELECT generate_series(0::bigint, {count} - 1)) ",
}
BUCKET: Final = {
    "sqlite": "CAST(printf('%016d', n % {groups}) AS BLOB)",
    "postgresql": "convert_to(lpad((n % {groups})::text, 16, '0'), 'UTF8')",
}
DAY: Final = {"sqlite": "date('2026-01-01', '+' || ({day}) || ' days')", "postgresql": "date '2026-01-01' + ({day})::integer"}
NAME: Final = {"sqlite": "printf('t%06d', {n})", "postgresql": "'t' || lpad(({n})::text, 6, '0')"}
LABELS: Final = "organisation, tenant, project, key_id, end_user, model, lora"
SUMS: Final = "prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, units, cost_nanousd"

Figures = dict[str, float]


async def fill(engine: AsyncEngine, rows: int, tenants: int) -> None:
    """Fill an empty ledger: rows with their totals, or totals alone where there are no rows. Every combination of day, tenant and model has
    totals."""
    kind, groups = engine.dialect.name, tenants * MODELS
    count = rows or groups * DAYS
    number, day = NUMBERS[kind].format(count=count), DAY[kind].format(day=f"(n / {groups}) % {DAYS}")
    name, bucket = NAME[kind].format(n=f"n % {tenants}"), BUCKET[kind].format(groups=groups)
    labels = f"'default', {name}, 'default', 'key-of-' || {name}, '', 'model-' || ((n / {tenants}) % {MODELS}), ''"
    await migrate(engine)
    async with engine.begin() as connection:
        if kind == "postgresql":
            for at in range(DAYS):
                of = FIRST + dt.timedelta(days=at)
                bounds = f"FROM ('{of}') TO ('{of + dt.timedelta(days=1)}')"
                await connection.exec_driver_sql(
                    f"CREATE TABLE usage_event_{of:%Y%m%d} PARTITION OF usage_event FOR VALUES {bounds}"  # as the product names them
                )
        if rows:
            identity = "'req-' || n" if kind == "postgresql" else "printf('req-%d', n)"
            moment = f"1767225600000 + 86400000 * ((n / {groups}) % {DAYS}) + n % 86400000"
            await connection.exec_driver_sql(
                f"{number}INSERT INTO usage_event (request_id, day, seq, bucket, at_unix_ms, {LABELS}, endpoint, pool, revision, outcome, "
                f"closing, price_id, {SUMS}, duration_ms) SELECT {identity}, {day}, n + 1, {bucket}, {moment}, {labels}, "
                "'/v1/chat/completions', 'chat', '0123456789ab', 'ok', 'settle', 'bench-1', 800, 64, 100, 0, 800, 123456, 1500 FROM numbers"
            )
            await connection.exec_driver_sql(f"UPDATE usage_mark SET seq = {rows}, quarter_seq = {rows}")
        each = max(1, count // (groups * DAYS))
        groups_only = NUMBERS[kind].format(count=groups * DAYS)
        await connection.exec_driver_sql(
            f"{groups_only}INSERT INTO usage_total (day, bucket, {LABELS}, requests, free_requests, {SUMS}) "
            f"SELECT {day}, {bucket}, {labels}, {each}, 0, {800 * each}, {64 * each}, {100 * each}, 0, "
            f"{800 * each}, {123456 * each} FROM numbers"
        )
        if kind == "postgresql":
            await connection.exec_driver_sql("ANALYZE")  # as its autovacuum does soon; nobody does so for SQLite


async def seconds(work: Callable[[], Awaitable[object]], rounds: int = ROUNDS) -> float:
    """The median time of some calls."""
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await work()
        took.append(time.perf_counter() - begun)
    return median(took)


async def of_reports(engine: AsyncEngine, tenants: int) -> Figures:
    """Milliseconds of the reports that read totals."""
    queries, spend = SqlUsageQueries(engine), SqlSpendReader(engine)
    middle = to_cursor([f"t{tenants // 2:06}", "model-0"])
    names = [f"t{n:06}" for n in range(tenants)]
    one = Filter(tenant=names[tenants // 2], first_day=MONTH.first_day, last_day=MONTH.last_day)
    return {
        "month_by_tenant_model_ms": 1e3 * await seconds(lambda: queries.totals(("tenant", "model"), MONTH)),
        "month_page_in_the_middle_ms": 1e3 * await seconds(lambda: queries.totals(("tenant", "model"), MONTH, middle)),
        "month_of_a_tenant_ms": 1e3 * await seconds(lambda: queries.totals(("day", "model"), one)),
        "month_for_limits_of_all_ms": 1e3 * await seconds(lambda: spend.spent_by(Level.TENANT, names, FIRST)),
    }


async def of_rows(engine: AsyncEngine, rows: int, tenants: int) -> Figures:
    """What reads, writes and drops single rows."""
    queries, store = SqlUsageQueries(engine), SqlUsageStore(engine)
    one = Filter(tenant=f"t{tenants // 2:06}")
    found: Figures = {
        "page_of_rows_ms": 1e3 * await seconds(lambda: queries.events(one, to_cursor([rows // 2]), PAGE)),
    }
    took = []
    for _ in range(ROUNDS):
        batch = list(usage(BATCH, 16))
        begun = time.perf_counter()
        written = await store.write(batch)
        took.append(time.perf_counter() - begun)
        if written.booked != BATCH:
            raise RuntimeError(f"{written} of {BATCH} rows")
    found["booking_rows_s"] = BATCH / median(took)
    if rows:
        begun = time.perf_counter()
        dropped = await store.prune(FIRST + dt.timedelta(days=1))
        found["retention_of_a_day_s"] = time.perf_counter() - begun
        found["retention_dropped"] = float(dropped)
    return found


async def measured(url: str, rows: int, tenants: int) -> Figures:
    """All figures of one ledger."""
    engine = open_engine(url)
    try:
        await fill(engine, rows, tenants)
        return {**await of_reports(engine, tenants), **(await of_rows(engine, rows, tenants) if rows else {})}
    finally:
        await engine.dispose()


def ledgers(rows: int, tenants: int) -> dict[str, Figures]:
    """Figures of a ledger in each kind of database."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        found["SQLite"] = uvloop.run(measured(f"sqlite:///{Path(folder) / 't.db'}", rows, tenants))
    with postgres_server() as server:
        found["Postgres"] = uvloop.run(measured(server.get_uri().replace("postgres://", "postgresql://"), rows, tenants))
    return found


def table(found: dict[str, dict[str, Figures]]) -> str:
    """Figures down, ledgers across."""
    columns = [(of, kind) for kind in ("SQLite", "Postgres") for of in found]
    lines = ["| measured | " + " | ".join(f"{kind}, {of}" for of, kind in columns) + " |", "|---|" + "---|" * len(columns)]
    for metric in next(iter(found.values()))["SQLite"]:
        values = [found[of][kind].get(metric) for of, kind in columns]
        lines.append(f"| `{metric}` | " + " | ".join("" if value is None else f"{value:,.4g}" for value in values) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="sizes of ledgers, by comma")
    parser.add_argument("--tenants", default=f"{TENANTS},{10 * TENANTS}", help="numbers of tenants of ledgers of totals, by comma")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    by_rows = {f"{rows:,} rows": ledgers(rows, TENANTS) for rows in map(int, given.rows.split(","))}
    by_tenants = {f"{tenants:,} tenants": ledgers(0, tenants) for tenants in map(int, given.tenants.split(","))}
    text = f"{table(by_rows)}\n\n{table(by_tenants)}"
    print(text)
    if given.dry:
        return
    write_rows(
        "reports",
        [
            Row(metric=metric, subject=f"{kind}, {of}", value=round(value, 3), unit="", n=ROUNDS)
            for of, kinds in (by_rows | by_tenants).items()
            for kind, figures in kinds.items()
            for metric, value in figures.items()
        ],
    )
    how = f"`python -m bench.reports`, {machine()}; {TENANTS:,} tenants, {MODELS} models and {DAYS} days in the first table"
    refresh("reports", f"{how}, totals alone in the second.\n\n{text}")


if __name__ == "__main__":
    main()
