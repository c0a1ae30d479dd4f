"""The ledger in SQL: one suite over SQLite and real Postgres."""

import asyncio
import datetime as dt
import itertools
import random
import tracemalloc
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.identity import TenantId
from domain.usage import Usage
from tenancy.accounts import Tenant
from tenancy.limits import Level, Scope
from tenancy.stores.sql import SqlDirectory, SqlUsageQueries, SqlUsageStore, migrate, open_engine
from tenancy.stores.sql.schema import usage_event, usage_total
from tenancy.usage import BY, SUMS, BadCursor, By, Filter, LedgerAway, UsageEvent, UsageSums, WriteResult, columns
from tenancy.wal_frames import MAX_NUMBER, tamed
from tests.scale import scaled
from tests.usage_events import FIRST_DAY, event, grouped, label, random_event, sums_of

ANY = Filter()
EVENTS = [random_event(n, random.Random(n)) for n in range(400)]


@pytest.fixture
async def store(sql_engine: AsyncEngine) -> SqlUsageStore:
    return SqlUsageStore(sql_engine)


@pytest.fixture
async def queries(store: SqlUsageStore, sql_engine: AsyncEngine) -> SqlUsageQueries:
    return SqlUsageQueries(sql_engine)


async def every_total(queries: SqlUsageQueries, by: tuple[By, ...], where: Filter = ANY, limit: int = 7) -> dict[Any, UsageSums]:
    found: dict[Any, UsageSums] = {}
    after: str | None = None
    while True:
        page = await queries.totals(by, where, after, limit)
        assert len(page.rows) <= limit
        assert list(found) + [row.labels for row in page.rows] == [*found, *(row.labels for row in page.rows)]
        found |= {row.labels: row.sums for row in page.rows}
        if (after := page.next) is None:
            return found


async def test_an_event_is_booked_once_however_often_it_is_sent(store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    assert await store.write(EVENTS[:10]) == WriteResult(10, 0)
    assert await store.write(EVENTS[5:20]) == WriteResult(10, 5)
    assert await store.write([EVENTS[20], EVENTS[20], EVENTS[3]]) == WriteResult(1, 2)
    assert await store.write(EVENTS[:21]) == WriteResult(0, 21)
    (page,) = [await queries.events(Filter())]
    assert sorted(e.request_id for e in page.events) == sorted(e.request_id for e in EVENTS[:21])
    assert await queries.spent(Scope(Level.GLOBAL, ""), None) == sums_of(EVENTS[:21])


async def test_what_is_booked_is_read_back_as_it_was(store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    hostile = event("x", user="x'; DROP TABLE usage_event; --", model="%s", lora="\u202eabc", organisation="ö")
    await store.write([hostile, *EVENTS[:5]])
    assert (await queries.events(Filter())).events == (hostile, *EVENTS[:5])


async def test_writers_at_once_count_everything_once(sql_engine: AsyncEngine, store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    url = sql_engine.url.render_as_string(hide_password=False).replace("+aiosqlite", "").replace("+asyncpg", "")
    engines = [open_engine(url) for _ in range(4)]

    async def writer(n: int) -> int:
        rng, mine, booked = random.Random(n), list(EVENTS), 0
        rng.shuffle(mine)
        own = SqlUsageStore(engines[n])
        for start in range(0, len(mine), 50):
            booked += (await own.write(mine[start : start + 50])).booked
        return booked

    booked = await asyncio.gather(*map(writer, range(4)))
    assert sum(booked) == len(EVENTS)
    assert await every_total(queries, BY) == grouped(EVENTS, BY)
    numbers = [e.request_id for e in (await queries.events(Filter())).events]
    assert len(set(numbers)) == len(numbers) == len(EVENTS)
    for engine in engines:
        await engine.dispose()


@pytest.mark.parametrize("by", [(), ("day",), ("tenant",), ("project",), ("key", "model"), ("user",), ("lora", "day"), BY])
async def test_totals_by_anything_are_the_sums_of_the_events(store: SqlUsageStore, queries: SqlUsageQueries, by: tuple[By, ...]) -> None:
    await store.write(EVENTS)
    assert await every_total(queries, by) == grouped(EVENTS, columns(by))
    where = Filter(first_day=FIRST_DAY + dt.timedelta(days=1), last_day=FIRST_DAY + dt.timedelta(days=2), tenant="acme", model="m")
    meant = [e for e in EVENTS if label(e, "day") in ("2026-01-02", "2026-01-03") and (e.tenant, e.model) == ("acme", "m")]
    assert await every_total(queries, by, where) == grouped(meant, columns(by))


async def test_sums_of_scopes(store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    await store.write(EVENTS)
    scopes = {
        Scope(Level.GLOBAL, ""): lambda e: True,
        Scope(Level.ORGANISATION, "north"): lambda e: e.organisation == "north",
        Scope(Level.TENANT, "acme"): lambda e: e.tenant == "acme",
        Scope(Level.PROJECT, "acme/lab"): lambda e: (e.tenant, e.project) == ("acme", "lab"),
        Scope(Level.KEY, "acme-1"): lambda e: e.key_id == "acme-1",
        Scope(Level.MODEL, "large"): lambda e: e.model == "large",
        Scope(Level.USER, "acme"): lambda e: (e.tenant, e.user) == ("acme", "ann"),
        Scope(Level.USER, "acme/lab"): lambda e: (e.tenant, e.project, e.user) == ("acme", "lab", "ann"),
    }
    for scope, counts in scopes.items():
        mine = [e for e in EVENTS if counts(e)]
        assert await queries.spent(scope, None, "ann") == sums_of(mine), scope
        since = FIRST_DAY + dt.timedelta(days=2)
        assert await queries.spent(scope, since, "ann") == sums_of(e for e in mine if label(e, "day") >= str(since)), scope
    assert await queries.spent(Scope(Level.TENANT, "nobody"), None) == UsageSums()


async def test_events_come_in_pages_that_miss_nothing_booked_meanwhile(store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    await store.write(EVENTS[:100])
    seen: list[UsageEvent] = []
    after = None
    for n in itertools.count(1):
        page = await queries.events(Filter(tenant="acme"), after, 9)
        seen += page.events
        await store.write(EVENTS[100 + n : 101 + n])
        if (after := page.next) is None:
            break
    everything = {e.request_id for e in EVENTS[:100] if e.tenant == "acme"}
    ids = [e.request_id for e in seen]
    assert everything <= set(ids)
    assert len(ids) == len(set(ids))


async def test_a_cursor_of_something_else_is_refused(store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    await store.write(EVENTS)
    page = await queries.totals(("tenant", "model"), Filter(), None, 1)
    assert page.next is not None
    for bad in ("", "nonsense", "%%%", page.next[:-3], "W10", "eyJhIjoxfQ"):
        with pytest.raises(BadCursor, match="cursor"):
            await queries.totals(("day",), Filter(), bad)
        with pytest.raises(BadCursor):
            await queries.events(Filter(), bad)
    with pytest.raises(BadCursor):
        await queries.totals(("tenant",), Filter(), page.next)


@pytest.mark.req("R44")
async def test_sums_of_money_are_exact(store: SqlUsageStore, queries: SqlUsageQueries, record_property: Any) -> None:
    count = scaled(4_000, 1_000_000)
    rng = random.Random(44)
    truth = UsageSums()
    for start in range(0, count, 500):
        batch = [event(n, cost_nanousd=rng.randrange(10**12), units=rng.randrange(10**9)) for n in range(start, start + 500)]
        await store.write(batch)
        some = sums_of(batch)
        truth = UsageSums(*(getattr(truth, name) + getattr(some, name) for name in SUMS))
    assert await queries.spent(Scope(Level.TENANT, "acme"), None) == truth
    record_property("figure", f"{count} amounts of up to 10^12 nano-dollars: error 0")


async def test_numbers_and_texts_beyond_reason_are_booked_within_reason(store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    odd = event(1, user="a\0b" * 1000, usage=Usage(2**70, -3), cost_nanousd=2**62, at_unix_ms=2**62)
    later = event(2, at_unix_ms=-5)
    assert await store.write([odd, later]) == WriteResult(2, 0)
    assert (await queries.events(Filter())).events == (tamed(odd), tamed(later))
    assert (await queries.spent(Scope(Level.GLOBAL, ""), None)).cost_nanousd == MAX_NUMBER


@pytest.mark.req("GATEWAYS-3")
async def test_retention_drops_days_in_constant_memory_and_keeps_totals(
    store: SqlUsageStore, queries: SqlUsageQueries, sql_engine: AsyncEngine, record_property: Any
) -> None:
    count = scaled(12_000, 400_000)
    for start in range(0, count, 500):
        await store.write([event(n, day=n % 4) for n in range(start, start + 500)])
    before = await queries.spent(Scope(Level.GLOBAL, ""), None)
    tracemalloc.start()
    dropped = await store.prune(FIRST_DAY + dt.timedelta(days=2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert dropped == (2 if sql_engine.dialect.name == "postgresql" else count // 2)
    async with sql_engine.connect() as connection:
        left = await connection.scalar(sa.select(sa.func.count()).select_from(usage_event))
        assert left == count // 2
        assert await connection.scalar(sa.select(sa.func.min(usage_event.c.day))) == FIRST_DAY + dt.timedelta(days=2)
    assert await queries.spent(Scope(Level.GLOBAL, ""), None) == before
    assert peak < 1_000_000
    assert await store.prune(FIRST_DAY + dt.timedelta(days=2)) == 0
    record_property("figure", f"{sql_engine.dialect.name}: {count // 2} rows dropped with {peak / 1e6:.2f} MB")


async def test_a_dropped_day_is_not_booked_a_second_time(store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    await store.write([event(1, day=0), event(2, day=1)])
    before = await queries.spent(Scope(Level.GLOBAL, ""), None)
    await store.prune(FIRST_DAY + dt.timedelta(days=1))
    assert await store.write([event(1, day=0), event(2, day=1)]) == WriteResult(0, 1, 1)
    assert await store.write([event(3, day=0)]) == WriteResult(0, 0, 1)
    assert await queries.spent(Scope(Level.GLOBAL, ""), None) == before
    await store.prune(FIRST_DAY)  # a longer retention later brings nothing back
    assert await store.write([event(3, day=0)]) == WriteResult(0, 0, 1)


async def test_a_clock_that_is_years_ahead_does_not_empty_the_ledger(store: SqlUsageStore, queries: SqlUsageQueries) -> None:
    await store.write([event(n, day=n) for n in range(20)])
    await store.prune(FIRST_DAY + dt.timedelta(days=4_000))
    assert {found.request_id for found in (await queries.events(ANY)).events} == {f"req-{n}" for n in range(7, 20)}
    assert await store.write([event("new", day=20)]) == WriteResult(1, 0), "what comes after is booked as ever"


async def test_without_events_the_retention_has_nothing_to_do(store: SqlUsageStore) -> None:
    assert await store.prune(FIRST_DAY + dt.timedelta(days=4_000)) == 0
    assert await store.write([event(1)]) == WriteResult(1, 0)


async def test_days_to_come_are_prepared(store: SqlUsageStore, sql_engine: AsyncEngine) -> None:
    await store.prepare(FIRST_DAY)
    await store.prepare(FIRST_DAY + dt.timedelta(days=1))
    assert await store.write([event(n, day=n) for n in range(9)]) == WriteResult(9, 0)


async def test_a_database_that_is_away_is_named(store: SqlUsageStore) -> None:
    engine = open_engine("postgresql://user:hidden@127.0.0.1:1/db")
    for asked in (
        SqlUsageStore(engine).write(EVENTS[:1]),
        SqlUsageStore(engine).prune(FIRST_DAY),
        SqlUsageStore(engine).prepare(FIRST_DAY),
        SqlUsageQueries(engine).spent(Scope(Level.GLOBAL, ""), None),
    ):
        with pytest.raises(LedgerAway) as raised:
            await asked
        assert "hidden" not in str(raised.value)
    await engine.dispose()


@pytest.mark.parametrize("sql_engine", ["postgres"], indirect=True)  # with SQLite a reader of ours takes the write lock
async def test_totals_are_in_step_with_rows_at_every_moment(sql_engine: AsyncEngine, store: SqlUsageStore) -> None:
    """Read both in one transaction while a writer is at work: they never differ, where the day's partition was made before the day."""
    await store.prepare(FIRST_DAY)
    done = asyncio.Event()

    async def write() -> None:
        for start in range(0, 400, 20):
            await store.write(EVENTS[start : start + 20])
        done.set()

    writing = asyncio.create_task(write())
    while not done.is_set():
        async with sql_engine.connect() as connection:
            await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            rows = (await connection.execute(sa.select(sa.func.count(), sa.func.sum(usage_event.c.cost_nanousd)))).one()
            totals = (
                await connection.execute(sa.select(sa.func.sum(usage_total.c.requests), sa.func.sum(usage_total.c.cost_nanousd)))
            ).one()
        assert (rows[0], rows[1]) == (totals[0] or 0, totals[1])
    await writing


async def test_the_migration_goes_back_and_forward_with_data_in_it(sql_engine: AsyncEngine, store: SqlUsageStore) -> None:
    async with SqlDirectory(sql_engine).transaction() as change:
        await change.tenants.create(Tenant(TenantId("acme")))
    await store.prepare(FIRST_DAY)
    await store.write(EVENTS)
    await migrate(sql_engine, "0004")
    await migrate(sql_engine)
    assert [one.name for one in (await SqlDirectory(sql_engine).load()).tenants] == ["acme"], "what it is not about stays"
    assert await SqlUsageStore(sql_engine).write(EVENTS[:9]) == WriteResult(9, 0)
    assert await SqlUsageQueries(sql_engine).spent(Scope(Level.GLOBAL, ""), None) == sums_of(EVENTS[:9])


async def test_totals_of_end_users_are_bounded_a_day_and_nothing_is_lost(sql_engine: AsyncEngine, queries: SqlUsageQueries) -> None:
    async def labels(tenant: str, day: int) -> dict[str, int]:
        date = FIRST_DAY + dt.timedelta(days=day)
        found = await every_total(queries, ("user",), Filter(tenant=tenant, first_day=date, last_day=date))
        return {key[-1]: sums.requests for key, sums in found.items()}

    some = [event(n, user=f"u{n % 6}", tenant="acme", usage=Usage(n, 1)) for n in range(30)]
    store = SqlUsageStore(sql_engine, 4)
    assert await store.write(some[:10]) == WriteResult(10, 0, 0, 2)
    assert await SqlUsageStore(sql_engine, 4).write(some) == WriteResult(20, 10, 0, 10), "another process reads whose totals there are"
    assert await labels("acme", 0) == {"u0": 5, "u1": 5, "u2": 5, "u3": 5, "(other)": 10}
    assert await queries.spent(Scope(Level.TENANT, "acme"), None) == sums_of(some)
    assert {e.user for e in (await queries.events(Filter())).events} == {f"u{n}" for n in range(6)}, "single requests keep theirs"
    more = [event(f"b{n}", user=f"u{n}", tenant="bolt") for n in range(4)]
    more += [event(f"d{n}", day=1, user=f"u{9 - n}") for n in range(4)]
    more += [event("none"), event("named", user="(other)"), event("known", user="u3"), event("late", user="u77")]
    assert await store.write(more) == WriteResult(12, 0, 0, 1)
    assert await labels("bolt", 0) == {f"u{n}": 1 for n in range(4)}
    assert await labels("acme", 1) == {f"u{n}": 1 for n in range(6, 10)}
    assert await labels("acme", 0) == {"": 1, "u0": 5, "u1": 5, "u2": 5, "u3": 6, "(other)": 12}
