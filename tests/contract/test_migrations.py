"""Migrations, on both databases, with data in them."""

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.identity import TenantId
from tenancy.stores.sql import SqlKeyStore, StoreError, migrate, open_engine
from tenancy.stores.sql.schema import metadata


async def test_the_migrated_schema_is_the_one_the_code_expects(sql_engine: AsyncEngine) -> None:
    await migrate(sql_engine)

    def shape(connection: sa.Connection) -> dict[str, set[str]]:
        inspector = sa.inspect(connection)
        return {name: {c["name"] for c in inspector.get_columns(name)} for name in inspector.get_table_names() if name != "alembic_version"}

    async with sql_engine.connect() as connection:
        found = await connection.run_sync(shape)
    assert found == {table.name: {c.name for c in table.columns} for table in metadata.tables.values()}


async def test_forward_back_and_forward_again_with_data(sql_engine: AsyncEngine) -> None:
    await migrate(sql_engine)
    await SqlKeyStore(sql_engine).create_tenant(TenantId("acme"), 1.0)
    await migrate(sql_engine)
    assert await SqlKeyStore(sql_engine).tenants() == ["acme"]
    await migrate(sql_engine, "base")
    await migrate(sql_engine)
    assert await SqlKeyStore(sql_engine).tenants() == []


async def test_several_processes_may_start_at_once(sql_engine: AsyncEngine) -> None:
    url = sql_engine.url.render_as_string(hide_password=False).replace("+aiosqlite", "").replace("+asyncpg", "")
    engines = [open_engine(url) for _ in range(4)]
    await asyncio.gather(*map(migrate, engines))
    assert await SqlKeyStore(sql_engine).version() == 1
    for engine in engines:
        await engine.dispose()


async def test_a_newer_schema_is_refused(sql_engine: AsyncEngine) -> None:
    await migrate(sql_engine)
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
    with pytest.raises(StoreError) as raised:
        await migrate(engine)
    assert "127.0.0.1" in str(raised.value)
    assert "hidden" not in str(raised.value)
    await engine.dispose()
