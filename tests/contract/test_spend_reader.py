"""What counts towards limits, of many scopes at once: one suite over SQLite and real Postgres."""

import datetime as dt
import random
from collections.abc import Callable

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.limits import Amounts, Level
from tenancy.stores.sql import SqlSpendReader, SqlUsageStore, open_engine
from tenancy.stores.sql.schema import usage_mark, usage_quarter
from tenancy.usage import QUARTERS_KEPT_DAYS, LedgerAway, UsageEvent
from tests.usage_events import DAY_MS, FIRST_DAY, FIRST_MS, event, label, random_event

EVENTS = [random_event(n, random.Random(n)) for n in range(300)]
NAMES: dict[Level, Callable[[UsageEvent], list[tuple[str, str]]]] = {
    Level.GLOBAL: lambda e: [("", "")],
    Level.MODEL: lambda e: [(e.model, "")],
    Level.ORGANISATION: lambda e: [(e.organisation, "")],
    Level.TENANT: lambda e: [(e.tenant, "")],
    Level.PROJECT: lambda e: [(f"{e.tenant}/{e.project}", "")],
    Level.KEY: lambda e: [(e.key_id, "")],
    Level.USER: lambda e: [(e.tenant, e.user), (f"{e.tenant}/{e.project}", e.user)] if e.user else [],
}


@pytest.fixture
async def store(sql_engine: AsyncEngine) -> SqlUsageStore:
    return SqlUsageStore(sql_engine)


@pytest.mark.parametrize("level", list(Level))
async def test_every_scope_of_a_level_in_one_answer(store: SqlUsageStore, sql_engine: AsyncEngine, level: Level) -> None:
    await store.write(EVENTS)
    second, fourth = FIRST_DAY + dt.timedelta(days=1), FIRST_DAY + dt.timedelta(days=3)
    for since, before in ((None, None), (second, None), (second, fourth)):
        truth: dict[tuple[str, str], Amounts] = {}
        for e in EVENTS:
            if (since is None or label(e, "day") >= str(since)) and (before is None or label(e, "day") < str(before)):
                for place in NAMES[level](e):
                    was, usage = truth.get(place, Amounts(requests=0)), e.usage
                    truth[place] = Amounts(
                        was.input_tokens + usage.prompt_tokens,
                        was.output_tokens + usage.completion_tokens,
                        was.units + e.units,
                        was.cost_nanousd + e.cost_nanousd,
                        was.requests + 1,
                        was.audio_seconds + usage.audio_seconds,
                        was.audio_bytes + usage.audio_bytes,
                    )
        found = await SqlSpendReader(sql_engine).spent_by(level, {name for name, _ in truth}, since, before)
        assert {(one.name, one.label): one.amounts for one in found} == truth


@pytest.mark.parametrize("level", list(Level))
async def test_usage_since_any_quarter_of_an_hour(store: SqlUsageStore, sql_engine: AsyncEngine, level: Level) -> None:
    rng = random.Random(7)
    events = [msgspec.structs.replace(e, at_unix_ms=FIRST_MS + rng.randrange(4 * DAY_MS)) for e in EVENTS]
    for start in range(0, len(events), 40):
        await store.write(events[start : start + 50])  # some come twice
    for since_s in (FIRST_MS // 1000 + quarters * 900 for quarters in (0, 75, 96, 97, 191, 300, 380)):
        truth: dict[tuple[str, str], int] = {}
        for e in events:
            if e.at_unix_ms >= since_s * 1000:
                for place in NAMES[level](e):
                    truth[place] = truth.get(place, 0) + e.cost_nanousd
        found = await SqlSpendReader(sql_engine).spent_since(level, {name for name, _ in truth}, since_s)
        assert {(one.name, one.label): one.amounts.cost_nanousd for one in found} == truth


@pytest.mark.parametrize("level", list(Level))
async def test_usage_of_each_hour(store: SqlUsageStore, sql_engine: AsyncEngine, level: Level) -> None:
    rng = random.Random(8)
    events = [msgspec.structs.replace(e, at_unix_ms=FIRST_MS + rng.randrange(3 * DAY_MS)) for e in EVENTS]
    await store.write(events)
    reader = SqlSpendReader(sql_engine)
    for since_s in (FIRST_MS // 1000 + hours * 3600 for hours in (0, 1, 24, 61)):
        truth: dict[tuple[str, str, int], int] = {}
        for e in events:
            if e.at_unix_ms >= since_s * 1000:
                for name, of in NAMES[level](e):
                    place = (name, of, e.at_unix_ms // 3_600_000)
                    truth[place] = truth.get(place, 0) + e.cost_nanousd
        names = {name for name, _, _ in truth}
        found = await reader.spent_per_hour(level, names, since_s)
        assert {(one.name, one.label, one.hour): one.amounts.cost_nanousd for one in found} == truth
        newest = await reader.spent_per_hour(level, names, since_s, most=1)
        assert max(hour for _, _, hour in truth) in {one.hour for one in newest}, "where there are too many, the oldest are missing"


async def test_usage_that_an_older_version_booked_is_in_the_quarters_once_a_newer_one_books(
    store: SqlUsageStore, sql_engine: AsyncEngine
) -> None:
    await store.write([event(1, cost_nanousd=5)])
    async with sql_engine.begin() as connection:  # as if the row had been booked without quarters
        await connection.execute(sa.delete(usage_quarter))
        await connection.execute(sa.update(usage_mark).values(quarter_seq=0))
    since_s = FIRST_MS // 1000 + 900
    assert await SqlSpendReader(sql_engine).spent_since(Level.TENANT, ["acme"], since_s) == []
    await store.write([event(2, cost_nanousd=7), event(3, day=1, cost_nanousd=9)])
    (found,) = await SqlSpendReader(sql_engine).spent_since(Level.TENANT, ["acme"], since_s)
    assert (found.amounts.cost_nanousd, found.amounts.requests) == (21, 3)


async def test_quarters_are_kept_for_as_long_as_the_longest_rolling_window(store: SqlUsageStore, sql_engine: AsyncEngine) -> None:
    async def days() -> list[dt.date]:
        async with sql_engine.connect() as connection:
            return list((await connection.execute(sa.select(usage_quarter.c.day).order_by(usage_quarter.c.day))).scalars())

    await store.write([event(n, day=n) for n in range(4)])
    await store.prepare(FIRST_DAY + dt.timedelta(days=QUARTERS_KEPT_DAYS + 1))
    assert await days() == [FIRST_DAY + dt.timedelta(days=n) for n in (1, 2, 3)]


async def test_a_request_that_failed_through_no_fault_of_its_caller_is_no_request(store: SqlUsageStore, sql_engine: AsyncEngine) -> None:
    fates = [
        ("ok", "settle"),
        ("no_backend", "release"),
        ("client_gone", "release"),
        ("broken_stream", "estimate"),
        ("internal", "release"),
    ]
    await store.write([event(n, outcome=outcome, closing=closing) for n, (outcome, closing) in enumerate(fates)])
    (found,) = await SqlSpendReader(sql_engine).spent_by(Level.TENANT, ["acme"], None)
    assert found.amounts.requests == 3


async def test_which_requests_are_booked(store: SqlUsageStore, sql_engine: AsyncEngine) -> None:
    await store.write([event(n) for n in range(0, 1200, 2)])
    found = await SqlSpendReader(sql_engine).booked([f"req-{n}" for n in range(1200)])
    assert found == {f"req-{n}" for n in range(0, 1200, 2)}
    assert await SqlSpendReader(sql_engine).booked([]) == set()


async def test_only_the_largest_when_there_are_too_many(store: SqlUsageStore, sql_engine: AsyncEngine) -> None:
    await store.write([event(n, user=f"u{n}", cost_nanousd=n) for n in range(20)])
    found = await SqlSpendReader(sql_engine).spent_by(Level.USER, ["acme"], None, most=3)
    assert [one.label for one in found] == ["u19", "u18", "u17"]
    assert await SqlSpendReader(sql_engine).spent_by(Level.TENANT, ["nobody"], None) == []


async def test_a_database_that_is_away_is_named() -> None:
    engine = open_engine("postgresql://user:hidden@127.0.0.1:1/db")
    with pytest.raises(LedgerAway):
        await SqlSpendReader(engine).spent_by(Level.GLOBAL, [""], None)
    await engine.dispose()
