"""What a start does to the database before anything is served."""

from pathlib import Path

import pytest

from domain.identity import KeyId, ProjectId, TenantId
from gateway.config.load import Settings, load_settings
from gateway.config.read_secrets import read_pepper
from gateway.config.secrets import SecretError
from gateway.wiring.stores import prepare_store
from tenancy.accounts import Tenant
from tenancy.keys import KeyRecord
from tenancy.stores.sql import SqlDirectory, open_engine
from tests.databases import migrated_file

POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'


async def settings_with_key(folder: Path, kid: str | None) -> Settings:
    """Settings with a database that has one key, made with the pepper of this id; None for the pepper of these settings."""
    (folder / "policies").mkdir()
    (folder / "tidegate.yaml").write_text(POOLS + "stores: {sql: 'sqlite:///tidegate.db'}\n")
    settings = load_settings(folder / "tidegate.yaml", {})
    pepper = read_pepper(settings)
    await migrated_file(folder / "tidegate.db")
    engine = open_engine(settings.sql_url)
    async with SqlDirectory(engine).transaction() as directory:
        await directory.tenants.create(Tenant(TenantId("default")))
        record = KeyRecord(KeyId("abcdefghij"), TenantId("default"), ProjectId("default"), kid or pepper.kid, (bytes(32),))
        await directory.keys.create(TenantId("default"), record)
    await engine.dispose()
    return settings


async def test_a_pepper_that_verifies_no_key_stops_the_start(tmp_path: Path) -> None:
    settings = await settings_with_key(tmp_path, "another")
    with pytest.raises(SecretError, match=r"verifies none of the database's keys.* id another; restore that pepper .* --new-pepper"):
        await prepare_store(settings)
    await prepare_store(settings, new_pepper=True)


async def test_a_pepper_that_verifies_a_key_starts(tmp_path: Path) -> None:
    await prepare_store(await settings_with_key(tmp_path, None))
