"""Backups of a database with rows in every part, on both databases, restored into both."""

import random
import shutil
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.identity import TenantId
from tenancy.accounts import Tenant
from tenancy.audit import Entry
from tenancy.stores.backup_file import BackupError, BackupReader, BackupWriter
from tenancy.stores.sql import SqlDirectory, SqlJournal, SqlUsageStore, StoreError, migrate, open_engine
from tenancy.stores.sql.opening import known_revisions, revision_in
from tenancy.stores.sql.table_copy import copy_tables, restore_database
from tests.booked import booked
from tests.contract.conftest import database
from tests.usage_events import random_event

EVENTS = 1_200
OLD = ("organisation", "tenant", "change", "audit", "audit_head", "usage_mark")
"""Tables that were the same at revision 0028."""
ENTRY = Entry("key abcdefghij", "admin", "10.0.0.1", "tenant.create", "tenant/acme", "acme", "", "{}")


async def fill(engine: AsyncEngine) -> None:
    rng = random.Random(7)
    await SqlUsageStore(engine).write([random_event(n, rng) for n in range(EVENTS)])
    async with SqlJournal(engine, lambda: 12.5).change() as change:
        async with SqlDirectory(change.connections).transaction() as directory:
            await directory.tenants.create(Tenant(TenantId("acme"), label="Straße ✓"))
        await change.write_down(ENTRY)


async def backed_up(engine: AsyncEngine, path: Path) -> BackupReader:
    scratch = path.with_suffix(".scratch")
    scratch.mkdir()
    with path.open("wb") as file, BackupWriter(file) as backup:
        revision = await copy_tables(engine, backup, scratch)
        backup.finish(version="0.1.0", revision=revision, made_unix=1.0)
    shutil.rmtree(scratch)
    reader = BackupReader(path)
    reader.verify()
    return reader


def url_of(engine: AsyncEngine) -> str:
    name = "sqlite" if engine.dialect.name == "sqlite" else "postgresql"
    return engine.url.set(drivername=name).render_as_string(hide_password=False)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_was_backed_up_is_restored_into_either_database(
    kind: str, sql_engine: AsyncEngine, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    await fill(sql_engine)
    backup = await backed_up(sql_engine, tmp_path / "b")
    (tmp_path / "second").mkdir()
    async with database(kind, request, tmp_path / "second", migrated=False) as target:
        await restore_database(url_of(target), backup, force=False)
        again = await backed_up(target, tmp_path / "c")
        assert again.manifest.tables == backup.manifest.tables
        assert backup.manifest.tables["usage_event"].rows == EVENTS
        ids, requests = await booked(url_of(target))
        assert (len(ids), requests) == (EVENTS, EVENTS)
        journal = SqlJournal(target, lambda: 13.0)
        assert [row.entry for row in await journal.page(0, 10)] == [ENTRY]
        assert (await journal.verify()).broken_at is None
        rng = random.Random(8)  # it goes on
        await SqlUsageStore(target).write([random_event(f"later-{n}", rng) for n in range(50)])
        assert (await booked(url_of(target)))[1] == EVENTS + 50


async def test_a_database_that_holds_something_is_only_overwritten_by_force(sql_engine: AsyncEngine, tmp_path: Path) -> None:
    await fill(sql_engine)
    backup = await backed_up(sql_engine, tmp_path / "b")
    async with SqlDirectory(sql_engine).transaction() as change:
        await change.tenants.create(Tenant(TenantId("later")))
    url = url_of(sql_engine)
    with pytest.raises(BackupError, match=r"2 rows of tenant.*nothing was changed.*--force"):
        await restore_database(url, backup, force=False)
    await sql_engine.dispose()
    await restore_database(url, backup, force=True)
    assert (await backed_up(sql_engine, tmp_path / "c")).manifest.tables == backup.manifest.tables
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("revision", "why"), [("0999", "restore it with version 0.1.0 or a later one"), ("0028", "no table")])
async def test_a_backup_of_another_schema(tmp_path: Path, sql_engine: AsyncEngine, revision: str, why: str) -> None:
    backup = await backed_up(sql_engine, tmp_path / "b")
    backup.manifest = msgspec.structs.replace(backup.manifest, revision=revision)
    with pytest.raises(BackupError, match=why):
        await restore_database(f"sqlite:///{tmp_path}/new.db", backup, force=False)
    assert not (tmp_path / "new.db").exists()


async def test_a_backup_of_an_older_schema_is_brought_up_to_date(tmp_path: Path, sql_engine: AsyncEngine) -> None:
    await fill(sql_engine)
    backup = await backed_up(sql_engine, tmp_path / "b")
    kept = {name: entry for name, entry in backup.manifest.tables.items() if name in OLD}
    backup.manifest = msgspec.structs.replace(backup.manifest, revision="0028", tables=kept)
    url = f"sqlite:///{tmp_path}/new.db"
    await restore_database(url, backup, force=False)
    engine = open_engine(url)
    assert (await SqlJournal(engine, lambda: 13.0).verify()).rows == 1
    async with engine.connect() as connection:
        assert await connection.run_sync(revision_in) == known_revisions()[-1]
    await engine.dispose()


async def test_a_schema_of_another_version_is_not_backed_up(sql_engine: AsyncEngine, tmp_path: Path) -> None:
    await migrate(sql_engine, "0030")
    with pytest.raises(BackupError, match=r"revision '0030'.*back up with the version that runs"):
        await backed_up(sql_engine, tmp_path / "b")


async def test_a_downgrade_says_what_it_cannot_do(sql_engine: AsyncEngine, tmp_path: Path) -> None:
    async with sql_engine.begin() as connection:
        await connection.execute(sa.update(sa.table("alembic_version", sa.column("version_num"))).values(version_num="0999"))
    with pytest.raises(StoreError, match=r"revision '0999'.*can neither use it nor change it back.*tidegate backup restore"):
        await migrate(sql_engine)


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database at all, but a text that is longer than a header" * 20)
    engine = open_engine(f"sqlite:///{tmp_path}/store.db")
    with pytest.raises(BackupError, match="the database cannot be read"):
        await backed_up(engine, tmp_path / "b")
    await engine.dispose()
