"""The purges of the answer cache: one suite over memory, SQLite and real Postgres."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.cache_purges import KEPT_DAYS, CachePurge
from tenancy.stores.memory import MemoryCachePurges
from tenancy.stores.sql import SqlCachePurges

WHOLE = CachePurge(owner="group:x'; DROP TABLE cache_purge; --", model="m", namespace="n", user="u" * 32, before_unix=1.5)


@pytest.fixture
def store(kept_in: AsyncEngine | None) -> Any:
    return MemoryCachePurges() if kept_in is None else SqlCachePurges(kept_in)


async def test_what_is_added_is_read_back_in_its_order(store: Any) -> None:
    assert (await store.newest(), await store.since(0)) == (0, [])
    first = await store.add(WHOLE, 1.0)
    second = await store.add(CachePurge(owner="acme"), 2.0)
    assert first < second == await store.newest()
    assert await store.since(0) == [replace(WHOLE, at_unix=1.0), CachePurge(owner="acme", at_unix=2.0)]
    assert await store.since(first) == [CachePurge(owner="acme", at_unix=2.0)]
    assert await store.since(second) == []


async def test_purges_at_once_have_numbers_of_their_own(store: Any) -> None:
    numbers = await asyncio.gather(*(store.add(CachePurge(owner=f"t{number}"), 1.0) for number in range(8)))
    assert sorted(numbers) == list(range(1, 9))
    assert len(await store.since(0)) == 8


async def test_a_purge_is_remembered_for_longer_than_any_answer_is_kept(kept_in: AsyncEngine | None) -> None:
    if kept_in is None:
        return
    store, day = SqlCachePurges(kept_in), 86_400.0
    await store.add(CachePurge(owner="old"), 0.0)
    await store.add(CachePurge(owner="young"), 1.5 * day)
    await store.add(CachePurge(owner="now"), (KEPT_DAYS + 1) * day)
    assert [purge.owner for purge in await store.since(0)] == ["young", "now"]
