"""The store of registered adapters: one suite over memory, SQLite and real Postgres."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.adapters import MAX_REGISTERED_ADAPTERS, AdaptersFull, AdapterTaken, RegisteredAdapter
from tenancy.stores.memory import MemoryAdapterStore
from tenancy.stores.sql import SqlAdapterStore


def adapter(name: str = "bot", pool: str = "chat", **fields: Any) -> RegisteredAdapter:
    return RegisteredAdapter(**{"pool": pool, "name": name, "digest": "ab" * 32, "path": "/adapters/bot", **fields})


@pytest.fixture
def store(kept_in: AsyncEngine | None) -> Any:
    return MemoryAdapterStore() if kept_in is None else SqlAdapterStore(kept_in)


async def test_what_is_registered_is_read_back(store: Any) -> None:
    hostile = adapter("b", path="/x'; DROP TABLE lora_adapter; --/%s")
    other, first = adapter("b", pool="zeta"), adapter("a")
    for one in (other, hostile, first):
        await store.add(one, 1.0)
    assert await store.load() == [first, hostile, other]


async def test_every_write_raises_the_version_and_one_that_changes_nothing_does_not(store: Any) -> None:
    seen = [await store.version()]
    for write in (store.add(adapter(), 1.0), store.remove("chat", "bot")):
        await write
        seen.append(await store.version())
    assert seen == sorted(set(seen))
    assert await store.remove("chat", "bot") is False
    assert await store.version() == seen[-1]


async def test_a_name_is_registered_once_in_a_pool(store: Any) -> None:
    await store.add(adapter(), 1.0)
    await store.add(adapter(pool="other"), 1.0)
    before = await store.version()
    with pytest.raises(AdapterTaken, match="pool 'chat' has a registered adapter 'bot' already"):
        await store.add(adapter(digest="cd" * 32), 2.0)
    assert await store.version() == before
    assert await store.load() == [adapter(), adapter(pool="other")]
    assert await store.remove("other", "bot") is True
    assert await store.load() == [adapter()]


async def test_of_two_writers_at_once_one_registers(store: Any) -> None:
    done = await asyncio.gather(*(store.add(adapter(digest=digit * 64), 1.0) for digit in "abc"), return_exceptions=True)
    assert [type(one) for one in done].count(AdapterTaken) == 2
    assert len(await store.load()) == 1


async def test_there_is_an_end(store: Any) -> None:
    for number in range(MAX_REGISTERED_ADAPTERS):
        await store.add(adapter(f"a{number}"), 1.0)
    with pytest.raises(AdaptersFull, match="delete some"):
        await store.add(adapter("one-more"), 1.0)
