"""The store of registered backends: one suite over memory, SQLite and real Postgres."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.membership import MAX_REGISTERED, KvEvents, LoadPush, Member, MembersFull, MemberTaken
from tenancy.stores.memory import MemoryMemberStore
from tenancy.stores.sql import SqlMemberStore


def member(backend_id: str = "gpu-1", **fields: Any) -> Member:
    return Member(**{"pool": "chat", "id": backend_id, "url": "http://10.0.0.1:8000", "owner": "registered", **fields})


@pytest.fixture
def store(kept_in: AsyncEngine | None) -> Any:
    return MemoryMemberStore() if kept_in is None else SqlMemberStore(kept_in)


async def test_what_is_registered_is_read_back(store: Any) -> None:
    hostile = member("b", pool="x'; DROP TABLE backend; --", url="http://h/%s")
    await store.add(hostile, 1.0)
    full = member("a", drain_grace_s=3.5, kv_events=KvEvents("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"))
    await store.add(full, 1.0)
    listened = member("c", kv_events=KvEvents("tcp://10.0.0.1:5557"), load_push=LoadPush("tcp://10.0.0.1:5559", 8))
    await store.add(listened, 1.0)
    assert await store.load() == [full, hostile, listened]


async def test_every_write_raises_the_version_and_one_that_changes_nothing_does_not(store: Any) -> None:
    seen = [await store.version()]
    for write in (store.add(member(), 1.0), store.set_drain("gpu-1", 5.0), store.set_drain("gpu-1", None), store.remove("gpu-1")):
        await write
        seen.append(await store.version())
    assert seen == sorted(set(seen))
    assert await store.set_drain("gpu-1", 5.0) is False
    assert await store.remove("gpu-1") is False
    assert await store.version() == seen[-1]


async def test_an_id_is_registered_once(store: Any) -> None:
    await store.add(member(), 1.0)
    before = await store.version()
    with pytest.raises(MemberTaken, match="gpu-1"):
        await store.add(member(pool="other"), 2.0)
    assert await store.version() == before
    assert await store.load() == [member()]


async def test_drains_are_kept_with_their_grace_until_they_end(store: Any) -> None:
    await store.add(member(), 1.0)
    assert await store.set_drain("gpu-1", 0.0) is True
    assert await store.load() == [member(drain_grace_s=0.0)]
    assert await store.set_drain("gpu-1", None) is True
    assert await store.load() == [member()]
    assert await store.remove("gpu-1") is True
    assert await store.load() == []


async def test_writers_at_once_all_count(store: Any) -> None:
    before = await store.version()
    await asyncio.gather(*(store.add(member(f"gpu-{n}"), 1.0) for n in range(8)))
    assert await store.version() == before + 8
    assert len(await store.load()) == 8


async def test_there_is_a_bound(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tenancy.stores.sql.members", "tenancy.stores.memory.members"):
        monkeypatch.setattr(f"{module}.MAX_REGISTERED", 2)
    await store.add(member("a"), 1.0)
    await store.add(member("b"), 1.0)
    with pytest.raises(MembersFull, match="remove some"):
        await store.add(member("c"), 1.0)
    assert len(await store.load()) == 2
    assert MAX_REGISTERED == 1000
