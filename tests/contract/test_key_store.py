"""The key store ports: one suite over memory, SQLite and real Postgres."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.keys import KeyRecord
from tenancy.ports import AlreadyExists, NotFound
from tenancy.stores.memory import MemoryKeyStore
from tenancy.stores.sql import SqlKeyStore, migrate, open_engine

ACME = TenantId("acme")


def key(key_id: str = "abcdefghij", **fields: Any) -> KeyRecord:
    made: dict[str, Any] = {"tenant": ACME, "project": ProjectId("default"), "kid": "k1", "digests": (b"d" * 32,), "created_unix": 1.5}
    return KeyRecord(id=KeyId(key_id), **{**made, **fields})


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Any]:
    if request.param == "memory":
        yield MemoryKeyStore()
        return
    url = f"sqlite:///{tmp_path / 'keys.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    engine = open_engine(url)
    if request.param == "postgres":
        async with engine.begin() as connection:
            await connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            await connection.exec_driver_sql("CREATE SCHEMA public")
    await migrate(engine)
    yield SqlKeyStore(engine)
    await engine.dispose()


async def test_what_is_written_is_read_back(store: Any) -> None:
    await store.create_tenant(ACME, 1.0)
    full = key(digests=(b"a" * 32, b"b" * 32), label="ci; DROP TABLE tenant", expires_unix=9.25)
    await store.add_key(full)
    await store.add_key(key("0123456789"))
    assert sorted(await store.load(), key=lambda r: r.id) == [key("0123456789"), full]
    assert await store.tenants() == [ACME]


async def test_every_write_raises_the_version_and_a_refused_one_does_not(store: Any) -> None:
    seen = [await store.version()]
    await store.create_tenant(ACME, 1.0)
    seen.append(await store.version())
    await store.add_key(key())
    seen.append(await store.version())
    await store.revoke_key(KeyId("abcdefghij"), 2.0)
    seen.append(await store.version())
    assert seen == sorted(set(seen))
    for refused in (store.create_tenant(ACME, 1.0), store.add_key(key()), store.revoke_key(KeyId("9999999999"), 1.0)):
        with pytest.raises((AlreadyExists, NotFound)):
            await refused
    assert await store.version() == seen[-1]


async def test_a_revocation_keeps_its_first_time(store: Any) -> None:
    await store.create_tenant(ACME, 1.0)
    await store.add_key(key())
    await store.revoke_key(KeyId("abcdefghij"), 5.0)
    await store.revoke_key(KeyId("abcdefghij"), 7.0)
    assert [r.revoked_unix for r in await store.load()] == [5.0]


async def test_what_does_not_exist_is_named(store: Any) -> None:
    with pytest.raises(NotFound, match="acme"):
        await store.add_key(key())
    await store.create_tenant(ACME, 1.0)
    with pytest.raises(NotFound, match="other"):
        await store.add_key(key(project=ProjectId("other")))
    with pytest.raises(NotFound, match="abcdefghij"):
        await store.revoke_key(KeyId("abcdefghij"), 1.0)
    assert await store.load() == []


async def test_hostile_names_are_only_names(store: Any) -> None:
    for name in ("'; DROP TABLE api_key; --", 'x" OR "1"="1', "\\", "%s", "{}"):
        await store.create_tenant(TenantId(name), 1.0)
    assert len(await store.tenants()) == 5
    assert await store.load() == []


async def test_two_writers_both_count(store: Any) -> None:
    await store.create_tenant(ACME, 1.0)
    before = await store.version()
    await asyncio.gather(*(store.add_key(key(f"{n:010d}")) for n in range(8)))
    assert await store.version() == before + 8
    assert len(await store.load()) == 8
