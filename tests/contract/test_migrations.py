"""Migrations, on both databases, with data in them."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import DEFAULT_ORGANISATION, DEFAULT_PROJECT, Organisation, Project, Tenant
from tenancy.directory_ports import EVERYWHERE, AlreadyExists
from tenancy.keys import KeyRecord, rotated
from tenancy.limits import Level, Limit, Meter, Rolling, Scope, Window
from tenancy.prices import Price, TokenRates
from tenancy.rights import KeyScope, Rights, Role
from tenancy.stores.sql import SqlDirectory, StoreAway, StoreError, migrate, open_engine
from tenancy.stores.sql.schema import metadata

ACME, SHUT = TenantId("acme"), TenantId("shut")
LAB = ProjectId("lab")


def key(key_id: str, tenant: TenantId = ACME, **fields: Any) -> KeyRecord:
    made: dict[str, Any] = {"project": DEFAULT_PROJECT, "kid": "k1", "digests": (b"d" * 32,), "created_unix": 2.0, **fields}
    return KeyRecord(id=KeyId(key_id), tenant=tenant, **made)


async def test_the_migrated_schema_is_the_one_the_code_expects(empty_engine: AsyncEngine) -> None:
    await migrate(empty_engine)

    def shape(connection: sa.Connection) -> dict[str, set[str]]:
        inspector = sa.inspect(connection)
        return {name: {c["name"] for c in inspector.get_columns(name)} for name in inspector.get_table_names() if name != "alembic_version"}

    async with empty_engine.connect() as connection:
        found = await connection.run_sync(shape)
    assert found == {table.name: {c.name for c in table.columns} for table in metadata.tables.values()}


async def test_a_new_file_is_its_owners_alone_and_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    made, there = tmp_path / "made.db", tmp_path / "there.db"
    there.touch(mode=0o640)
    there.chmod(0o640)
    for path, mode in ((made, 0o600), (there, 0o640)):
        engine = open_engine(f"sqlite:///{path}")
        await migrate(engine)
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob(f"{path.name}*")} == {mode}
        await engine.dispose()


async def test_forward_back_and_forward_again_with_data(empty_engine: AsyncEngine) -> None:
    await migrate(empty_engine)
    store = SqlDirectory(empty_engine)
    async with store.transaction() as change:
        await change.tenants.create(Tenant(ACME))
    await migrate(empty_engine)
    assert [tenant.name for tenant in (await store.load()).tenants] == ["acme"]
    await migrate(empty_engine, "base")
    await migrate(empty_engine)
    assert (await store.load()).tenants == ()


async def test_what_the_first_schema_held_is_in_the_directory_afterwards(sql_engine: AsyncEngine) -> None:
    await migrate(sql_engine, "0003")  # empty, as that version left it
    digest = b"d" * 32
    tables = {name: sa.table(name, *map(sa.column, columns)) for name, columns in FIRST_SCHEMA.items()}
    async with sql_engine.begin() as connection:
        await connection.execute(sa.insert(tables["tenant"]).values(name="acme", created_unix=1.0))
        await connection.execute(sa.insert(tables["project"]).values(tenant="acme", name="default"))
        values = {"id": "abcdefghij", "tenant": "acme", "project": "default", "label": "ci", "kid": "k1"}
        times = {"created_unix": 2.0, "expires_unix": 9.0, "revoked_unix": None}
        await connection.execute(sa.insert(tables["api_key"]).values(**values, **times, digest=digest, second_digest=b"e" * 32))
    store = SqlDirectory(sql_engine)
    before = await connection_version(sql_engine)
    await migrate(sql_engine)
    contents = await store.load()
    assert contents.version == before
    assert contents.organisations == (Organisation(DEFAULT_ORGANISATION),)
    assert contents.tenants == (Tenant(ACME, DEFAULT_ORGANISATION, created_unix=1.0),)
    assert contents.projects == (Project(ACME, DEFAULT_PROJECT),)
    assert contents.keys == (key("abcdefghij", label="ci", expires_unix=9.0),)


async def test_a_row_written_by_the_version_before_is_read(sql_engine: AsyncEngine) -> None:
    tables = {name: sa.table(name, *map(sa.column, columns)) for name, columns in FIRST_SCHEMA.items()}
    async with sql_engine.begin() as connection:
        await connection.execute(sa.insert(tables["tenant"]).values(name="acme", created_unix=1.0))
        await connection.execute(sa.insert(tables["project"]).values(tenant="acme", name="default"))
        values = {"id": "abcdefghij", "tenant": "acme", "project": "default", "label": "", "kid": "k1"}
        await connection.execute(sa.insert(tables["api_key"]).values(**values, digest=b"d" * 32, created_unix=2.0))
    contents = await SqlDirectory(sql_engine).load()
    assert contents.keys == (key("abcdefghij"),)
    assert contents.tenants == (Tenant(ACME, created_unix=1.0),)


async def test_back_from_the_directory_nothing_becomes_more_than_it_was(sql_engine: AsyncEngine) -> None:
    store = SqlDirectory(sql_engine)
    async with store.transaction() as change:
        await change.organisations.create(Organisation("gone", disabled=True, rights=Rights(models=frozenset({"m"}))))
        await change.tenants.create(Tenant(ACME))
        await change.tenants.create(Tenant(SHUT, disabled=True))
        await change.tenants.create(Tenant(TenantId("orphan"), "gone"))
        await change.projects.create(EVERYWHERE, Project(ACME, LAB, disabled=True))
        for record in (
            key("stays00000"),
            rotated(key("rotating00"), "k1", b"n" * 32, 5.0, 60.0),
            key("disabled00", disabled=True),
            key("admin00000", scopes=frozenset({KeyScope.ADMIN}), roles=frozenset({Role.OWNER})),
            key("both000000", scopes=frozenset(KeyScope), roles=frozenset({Role.OWNER})),
            key("lab0000000", project=LAB),
            key("shut000000", SHUT),
            key("orphan0000", TenantId("orphan")),
            key("revoked000", revoked_unix=7.0),
        ):
            await change.keys.create(EVERYWHERE, record)
        await change.limits.put(EVERYWHERE, Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 10**15), 0)
        await change.prices.add(Price("p", "m", "*", 1.0, TokenRates(1, 2, 3, 4)))
    before = (await store.load()).version
    await migrate(sql_engine, "0003")
    table = sa.table("api_key", sa.column("id"), sa.column("revoked_unix"), sa.column("second_digest"))
    async with sql_engine.connect() as connection:
        rows = (await connection.execute(sa.select(table))).all()
    assert {row.id for row in rows if row.revoked_unix is None} == {"stays00000", "rotating00", "both000000"}
    assert {row.revoked_unix for row in rows if row.id == "revoked000"} == {7.0}
    assert all(row.second_digest is None for row in rows)
    await migrate(sql_engine)
    contents = await store.load()
    assert (contents.version, len(contents.keys), len(contents.tenants)) == (before, 9, 3)
    assert {tenant.organisation for tenant in contents.tenants} == {DEFAULT_ORGANISATION}
    assert (contents.limits, contents.prices) == ((), ())


async def test_names_of_tenants_deleted_before_are_known_from_the_audit(sql_engine: AsyncEngine) -> None:
    await migrate(sql_engine, "0006")  # as that version left it
    columns = ("seq", "at_unix_ms", "actor", "role", "address", "action", "target", "tenant", "before", "after", "hash")
    table = sa.table("audit", *map(sa.column, columns))
    rows = [("tenant.delete", "gone"), ("tenant.delete", "gone"), ("tenant.delete", "acme"), ("tenant.create", "acme"), ("key.create", "x")]
    same = {"at_unix_ms": 1, "actor": "a", "role": "owner", "address": "", "before": "", "after": "", "hash": bytes(32)}
    async with sql_engine.begin() as connection:
        for seq, (action, tenant) in enumerate(rows, 1):
            await connection.execute(sa.insert(table).values(**same, seq=seq, action=action, target=f"tenant/{tenant}", tenant=tenant))
        await connection.exec_driver_sql("INSERT INTO tenant (name, created_unix) VALUES ('acme', 1.0)")
    for _ in range(2):
        await migrate(sql_engine)
        store = SqlDirectory(sql_engine)
        with pytest.raises(AlreadyExists, match="was deleted"):
            async with store.transaction() as change:
                await change.tenants.create(Tenant(TenantId("gone")))
        assert [one.name for one in (await store.load()).tenants] == ["acme"]
        await migrate(sql_engine, "0006")


async def connection_version(engine: AsyncEngine) -> int:
    """The directory's change counter, read without the directory's tables."""
    return await SqlDirectory(engine).version()


FIRST_SCHEMA = {
    "tenant": ("name", "created_unix"),
    "project": ("tenant", "name"),
    "api_key": (
        *("id", "tenant", "project", "label", "kid", "digest", "second_digest"),
        *("created_unix", "expires_unix", "revoked_unix"),
    ),
}


async def test_several_processes_may_start_at_once(empty_engine: AsyncEngine) -> None:
    url = empty_engine.url.render_as_string(hide_password=False).replace("+aiosqlite", "").replace("+asyncpg", "")
    engines = [open_engine(url) for _ in range(4)]
    await asyncio.gather(*map(migrate, engines))
    assert await SqlDirectory(empty_engine).version() == 1
    for engine in engines:
        await engine.dispose()


async def test_a_process_waits_longer_for_a_migration_than_for_another_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the migration of another process takes longer than any write."""
    monkeypatch.setattr("tenancy.stores.sql.opening.BUSY_MS", 1)
    engines = [open_engine(f"sqlite:///{tmp_path / 'new.db'}") for _ in range(4)]
    await asyncio.gather(*map(migrate, engines))
    for engine in engines:
        async with engine.connect() as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            async with raw.execute("PRAGMA busy_timeout") as cursor:
                assert await cursor.fetchone() == (1,)
        await engine.dispose()


async def test_a_newer_schema_is_refused(sql_engine: AsyncEngine) -> None:
    async with sql_engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="9999"):
        await migrate(sql_engine)


@pytest.mark.parametrize(
    ("url", "says"),
    [("mysql://x/y", "mysql"), ("nonsense", "sqlite:///"), ("sqlite:////no/such/folder/x.db", "folder"), ("sqlite://", "folder")],
)
def test_unusable_urls_are_refused_with_what_to_write(url: str, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        open_engine(url)


async def test_an_unreachable_database_is_named_without_its_password() -> None:
    engine = open_engine("postgresql://user:hidden@127.0.0.1:1/db")
    with pytest.raises(StoreAway) as raised:
        await migrate(engine)
    assert "127.0.0.1" in str(raised.value)
    assert "hidden" not in str(raised.value)
    await engine.dispose()


async def test_prices_of_before_keep_their_rates_and_are_told_apart_from_those_whose_zeros_were_stated(empty_engine: AsyncEngine) -> None:
    """So is the price that a gateway of the version before adds after the migration, while gateways are replaced one by one."""
    await migrate(empty_engine)
    await migrate(empty_engine, "0012")
    kinds = ("uncached_input", "cached_input", "output", "reasoning")
    rates = [f"{unit}_{kind}" for unit in ("nanousd", "units") for kind in kinds]
    table = sa.table("price", *map(sa.column, ("id", "model", "revision", "effective_unix", *rates)))

    async def add(price_id: str, *nanousd: int) -> None:
        values = dict(zip(rates, (*nanousd, 1, 1, 1, 1), strict=True))
        async with empty_engine.begin() as connection:
            await connection.execute(sa.insert(table).values(id=price_id, model=price_id, revision="*", effective_unix=1.0, **values))

    await add("both", 5, 0, 7, 0)
    await add("whole", 5, 5, 7, 7)
    await add("free", 0, 0, 0, 0)
    await migrate(empty_engine)
    await add("beside", 5, 0, 7, 7)
    store = SqlDirectory(empty_engine)
    async with store.transaction() as change:
        await change.prices.add(Price("stated", "stated", "*", 1.0, TokenRates(5, 0, 7, 0)))
    prices = {price.id: price for price in (await store.load()).prices}
    doubtful = {price.id: price.doubtful for price in prices.values()}
    assert doubtful == {
        "both": ("cached_input", "reasoning"), "whole": (), "free": (), "beside": ("cached_input",), "stated": (),
    }  # fmt: skip
    assert prices["both"].nanousd_per_mtok == TokenRates(5, 0, 7, 0), "what was stored stays the price"
    await migrate(empty_engine, "0012")
    await migrate(empty_engine)
    assert len((await store.load()).prices) == 5


async def test_limits_that_versions_before_do_not_know_are_removed_on_the_way_back(empty_engine: AsyncEngine) -> None:
    await migrate(empty_engine)
    store = SqlDirectory(empty_engine)
    scope = Scope(Level.TENANT, "acme")
    plain = Limit(scope, Meter.TOKENS, Window.DAY, 5)
    async with store.transaction() as change:
        await change.tenants.create(Tenant(ACME))
        for limit in (
            plain,
            Limit(scope, Meter.TOKENS, Window.HOUR, 5),
            Limit(scope, Meter.TOKENS, Window.WEEK, 5),
            Limit(scope, Meter.TOKENS, Window.MONTH, 5, zone="Europe/Berlin"),
        ):
            await change.limits.put(EVERYWHERE, limit, 0)
    assert len((await store.load()).limits) == 4
    await migrate(empty_engine, "0015")
    await migrate(empty_engine)
    assert (await store.load()).limits == (plain,)


async def test_rolling_windows_are_removed_on_the_way_back(empty_engine: AsyncEngine) -> None:
    await migrate(empty_engine)
    store = SqlDirectory(empty_engine)
    scope = Scope(Level.TENANT, "acme")
    week = Limit(scope, Meter.TOKENS, Window.WEEK, 5, zone="Europe/Berlin")
    async with store.transaction() as change:
        await change.tenants.create(Tenant(ACME))
        for limit in (week, Limit(scope, Meter.TOKENS, Rolling(30), 5), Limit(scope, Meter.TOKENS, Rolling(366), 5)):
            await change.limits.put(EVERYWHERE, limit, 0)
    assert len((await store.load()).limits) == 3
    await migrate(empty_engine, "0018")
    await migrate(empty_engine)
    assert (await store.load()).limits == (week,)
