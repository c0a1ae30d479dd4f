"""What the release before has left is read by today's code, and both work on the same stores: `tests/fixtures/release-0.1`."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.usage import Usage
from tenancy.hold import Admitted
from tenancy.limits import Limit, LimitWindow, Meter, Window
from tenancy.stores.sql import SqlDirectory, migrate, open_engine
from tenancy.stores.sql.opening import known_revisions
from tenancy.stores.sql.schema import TOKEN_AMOUNTS, usage_event
from tenancy.stores.valkey import TEXTS, ValkeyCounters
from tenancy.usage import UsageEvent
from tenancy.wal_frames import read_frames
from tests.contract.conftest import database
from tests.record_release import CHARGED, EVENTS, HOLDS, LIMITS, NOW_S, SETTLED, WANTED, admit_and_settle, group, hold, timed
from tests.release_before import FOLDER, REVISION, code_before
from tests.timing import HANG_S
from tests.usage_events import sums_of
from tests.valkey_server import RedisPyScripts, open_client, valkey_server

FACTS = json.loads((FOLDER / "facts.json").read_text())
BEFORE = timed(json.loads((FOLDER / "scripts.json").read_text()))
TODAY = timed(dict(TEXTS))


def truth_before(file: Path) -> sqlite3.Connection:
    """The database that it left, in a new file."""
    connection = sqlite3.connect(file)
    connection.executescript((FOLDER / "truth.sql").read_text())
    return connection


async def sums_in(engine: AsyncEngine) -> dict[str, int]:
    """Sums of the ledger's rows."""
    columns = [sa.func.sum(usage_event.c[name]).label(name) for name in TOKEN_AMOUNTS]
    async with engine.connect() as connection:
        row = (await connection.execute(sa.select(sa.func.count().label("requests"), *columns))).one()
    return {name: int(value) for name, value in row._mapping.items()}


def limit_of(limit: Limit) -> tuple[Any, ...]:
    """What an operator set."""
    return limit.scope, limit.meter, limit.window, limit.amount, limit.burst, limit.soft


async def test_its_database_is_migrated_and_read(tmp_path: Path) -> None:
    truth_before(tmp_path / "truth.db").close()
    engine = open_engine(f"sqlite:///{tmp_path / 'truth.db'}")
    assert FACTS["revision"] == REVISION
    await migrate(engine)
    entries = await SqlDirectory(engine).load()
    assert [tenant.name for tenant in entries.tenants] == ["acme"]
    assert [(key.id, key.digests) for key in entries.keys] == [("k1", (b"d" * 32,))]
    assert {limit_of(limit) for limit in entries.limits} == {limit_of(limit) for limit in LIMITS}
    assert await sums_in(engine) == FACTS["ledger"]
    await engine.dispose()


async def test_what_it_writes_by_its_columns_is_taken_by_the_schema_of_today(tmp_path: Path) -> None:
    before = truth_before(tmp_path / "truth.db")
    engine = open_engine(f"sqlite:///{tmp_path / 'today.db'}")
    await migrate(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        for (table,) in before.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall():
            found = before.execute(f"SELECT * FROM {table}")
            columns = [column[0] for column in found.description]
            if table != "alembic_version":
                insert = f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
                for row in found.fetchall():
                    await connection.exec_driver_sql(insert, tuple(row))
    assert await sums_in(engine) == FACTS["ledger"]
    assert [tenant.name for tenant in (await SqlDirectory(engine).load()).tenants] == ["acme"]
    await engine.dispose()
    before.close()


def shape(connection: sa.Connection) -> dict[tuple[str, str], dict[str, Any]]:
    """Every column of every table."""
    inspector = sa.inspect(connection)
    return {(table, str(column["name"])): dict(column) for table in inspector.get_table_names() for column in inspector.get_columns(table)}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_migrations_take_nothing_from_the_release_before_and_ask_nothing_new_of_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with database(kind, request, tmp_path, migrated=False) as engine:
        await migrate(engine, REVISION)
        async with engine.connect() as connection:
            before = await connection.run_sync(shape)
        await migrate(engine)
        async with engine.connect() as connection:
            today = await connection.run_sync(shape)
    assert not before.keys() - today.keys(), "columns that the release before reads and writes are gone"
    changed = [place for place, column in before.items() if str(column["type"]) != str(today[place]["type"])]
    stricter = [place for place, column in before.items() if column["nullable"] and not today[place]["nullable"]]
    assert (changed, stricter) == ([], [])
    known = {table for table, _ in before}
    added = [place for place in today.keys() - before.keys() if place[0] in known]
    asked = [place for place in added if not today[place]["nullable"] and today[place]["default"] is None]
    assert asked == [], "the release before does not fill these columns: give them a server default, or let them be empty"


def test_its_segment_of_the_log_is_read() -> None:
    found = list(read_frames((FOLDER / "usage.wal").read_bytes()))
    events = [event for event in found if isinstance(event, UsageEvent)]
    assert [event.request_id for event in events] == FACTS["wal_ids"]
    assert len(found) == EVENTS
    assert msgspec.to_builtins(sums_of(events)) | FACTS["wal"] == msgspec.to_builtins(sums_of(events))


@pytest.mark.parametrize(("form", "name"), [(UsageEvent, "event"), (Usage, "usage")])
def test_it_reads_segments_of_today_since_fields_are_added_at_the_end(form: Any, name: str) -> None:
    before = FACTS["fields"][name]
    fields = msgspec.structs.fields(form)
    assert [field.name for field in fields][: len(before)] == before
    assert all(not field.required for field in fields[len(before) :])


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Any]:
    """A Valkey without keys, at the time of the recording."""
    with valkey_server(tmp_path) as socket:
        client = open_client(socket)
        await client.hset("now", mapping={"s": NOW_S, "us": 0})
        yield client
        await client.aclose()


async def restored(client: Any) -> None:
    """Put the recorded keys into the server."""
    for key, (kind, value) in json.loads((FOLDER / "counters.json").read_text()).items():
        name = bytes.fromhex(key)
        if kind == "string":
            await client.set(name, bytes.fromhex(value))
        elif kind == "hash":
            await client.hset(name, mapping={bytes.fromhex(part): bytes.fromhex(text) for part, text in value.items()})
        else:
            await client.zadd(name, {bytes.fromhex(part): score for part, score in value.items()})


async def amounts(counters: ValkeyCounters) -> dict[tuple[Meter, LimitWindow], tuple[int, int]]:
    """What is used and held of every limit; what is held counts as used."""
    return {(state.line.limit.meter, state.line.limit.window): (state.used, state.held) for state in await counters.look(group())}


def expected(holds: int, settled: int) -> dict[tuple[Meter, LimitWindow], tuple[int, int]]:
    """Of so many holds, some of which were settled."""
    wanted, charged = WANTED.tokens, CHARGED.tokens
    open_holds = holds - settled
    return {
        (Meter.TOKENS, Window.DAY): (settled * charged + open_holds * wanted, open_holds * wanted),
        (Meter.REQUESTS, Window.EVER): (holds, open_holds),
        (Meter.CONCURRENT_REQUESTS, Window.NOW): (open_holds, open_holds),
    }


async def test_scripts_of_today_go_on_with_what_its_scripts_left(client: Any) -> None:
    await restored(client)
    counters = ValkeyCounters(RedisPyScripts(client, TODAY))
    found = await amounts(counters)
    assert found | expected(HOLDS, SETTLED) == found
    for number in range(HOLDS):  # those that were settled are not charged again
        await counters.settle(hold(number), CHARGED)
    found = await amounts(counters)
    assert found | expected(HOLDS, HOLDS) == found


@pytest.mark.parametrize("first", ["before", "today"])
async def test_both_versions_of_the_scripts_work_on_one_store(first: str, client: Any) -> None:
    pair = [ValkeyCounters(RedisPyScripts(client, BEFORE)), ValkeyCounters(RedisPyScripts(client, TODAY))]
    one, other = pair if first == "before" else pair[::-1]
    await admit_and_settle(one, range(HOLDS), 0)
    await admit_and_settle(other, range(HOLDS, 2 * HOLDS), 0)
    for counters in pair:
        found = await amounts(counters)
        assert found | expected(2 * HOLDS, 0) == found
    for number in range(2 * HOLDS):
        await (other if number < HOLDS else one).settle(hold(number), CHARGED)
    for counters in pair:
        found = await amounts(counters)
        assert found | expected(2 * HOLDS, 2 * HOLDS) == found
    assert isinstance(await one.admit(hold(100)), Admitted)
    await client.hset("now", mapping={"s": NOW_S + 3600, "us": 0})
    await other.admit(hold(101))  # ends the hold whose lease is over
    found = await amounts(other)
    assert found[Meter.CONCURRENT_REQUESTS, Window.NOW] == (1, 1)


async def test_the_release_before_says_that_it_cannot_use_the_schema_of_today(tmp_path: Path) -> None:
    """A downgrade: its own code, started on a database that this version has migrated."""
    code = tmp_path / "code"
    code.mkdir()
    code_before(code)
    url = f"sqlite:///{tmp_path}/truth.db"
    engine = open_engine(url)
    await migrate(engine)
    await engine.dispose()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "all.yaml").write_text('tenant: "*"\nmodels: [{name: m, pool: chat}]\n')
    pool = {"name": "chat", "model": "m", "backends": [{"id": "a", "url": "http://127.0.0.1:1"}]}
    settings = tmp_path / "tidegate.yaml"
    settings.write_text(json.dumps({"stores": {"sql": url}, "pools": [pool]}))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(settings), "--rehearse"]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    started = await asyncio.to_thread(
        subprocess.run, command, cwd=code, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert started.returncode == 1
    assert f"the schema has revision '{known_revisions()[-1]}', which this version does not know; use the version" in started.stderr
