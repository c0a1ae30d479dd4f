"""The store of rollouts: one suite over memory, SQLite and real Postgres."""

import asyncio
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.rollouts import MAX_OPEN, RolloutBook, RolloutsFull, RolloutTaken, StoredRollout
from tenancy.stores.memory import MemoryRolloutStore
from tenancy.stores.sql import SqlRolloutStore


def rollout(name: str = "new", **fields: Any) -> StoredRollout:
    made = {"id": f"ro-{name}", "document": '{"a":"\'; --"}', "state": "{}", "version": 1, "open": True}
    return StoredRollout(**{"name": name, "created_unix": 1.0, "changed_unix": 1.0, **made, **fields})


async def started(store: RolloutBook, name: str = "new", **fields: Any) -> StoredRollout:
    made = rollout(name, **fields)
    await store.start(made, f"{made.id}-v1", f"{made.id}-v2")
    return made


async def close(store: RolloutBook, one: StoredRollout, at: float = 2.0) -> None:
    assert await store.write(msgspec.structs.replace(one, open=False, changed_unix=at))


@pytest.fixture
def store(kept_in: AsyncEngine | None) -> RolloutBook:
    return MemoryRolloutStore() if kept_in is None else SqlRolloutStore(kept_in)


async def test_what_is_started_is_in_force_until_it_is_closed(store: RolloutBook) -> None:
    second, first = await started(store, "b"), await started(store, "a")
    assert await store.in_force() == [first, second]
    await close(store, first)
    assert await store.in_force() == [second]
    assert await store.closed(None, 10) == [msgspec.structs.replace(first, open=False, changed_unix=2.0, version=2)]


async def test_a_name_is_in_force_once_and_free_again_afterwards(store: RolloutBook) -> None:
    first = await started(store)
    with pytest.raises(RolloutTaken, match="'new' is in force already"):
        await store.start(rollout(id="ro-2"), "x", "y")
    await close(store, first, at=9.0)
    again = await started(store, id="ro-2", created_unix=3.0)
    assert await store.find("new") == again
    await close(store, again, at=4.0)
    found = await store.find("new")
    assert found is not None
    assert found.id == "ro-2"  # started last, though the other changed later
    assert await store.find("other") is None


@pytest.mark.parametrize(("baseline", "canary"), [("v1", "x"), ("x", "v1"), ("v2", "x"), ("x", "v2")])
async def test_a_pool_takes_part_in_one_rollout_at_a_time(store: RolloutBook, baseline: str, canary: str) -> None:
    first = rollout("first")
    await store.start(first, "v1", "v2")
    with pytest.raises(RolloutTaken, match="takes part in rollout 'first'"):
        await store.start(rollout("second"), baseline, canary)
    assert await store.in_force() == [first]
    await close(store, first)
    await store.start(rollout("second"), baseline, canary)


async def test_of_two_who_write_one_is_told(store: RolloutBook) -> None:
    seen = await started(store)
    wrote = [await store.write(msgspec.structs.replace(seen, state=state)) for state in ("mine", "yours")]
    assert wrote == [True, False]
    assert [(one.state, one.version) for one in await store.in_force()] == [("mine", 2)]


async def test_what_is_closed_stays_as_it_is(store: RolloutBook) -> None:
    await close(store, await started(store))
    kept = await store.find("new")
    assert kept is not None
    assert not await store.write(msgspec.structs.replace(kept, open=True))
    assert await store.find("new") == kept
    assert not await store.write(rollout("unknown"))


async def test_a_write_changes_state_and_nothing_else(store: RolloutBook) -> None:
    seen = await started(store)
    await store.write(msgspec.structs.replace(seen, name="x", document="x", created_unix=9.0, state="s", changed_unix=5.0))
    assert await store.find("new") == msgspec.structs.replace(seen, state="s", changed_unix=5.0, version=2)


async def test_writers_at_once_count_one_each(store: RolloutBook) -> None:
    seen = await started(store)
    wrote = await asyncio.gather(*(store.write(msgspec.structs.replace(seen, state=str(n))) for n in range(6)))
    assert sorted(wrote) == [False] * 5 + [True]
    names = await asyncio.gather(*(store.start(rollout("same", id=f"ro-{n}"), "p", "q") for n in range(4)), return_exceptions=True)
    assert [one for one in names if one is None] == [None]


async def test_history_is_paged_newest_first(store: RolloutBook) -> None:
    for n, at in enumerate((5.0, 7.0, 7.0, 6.0)):
        await close(store, await started(store, f"r{n}"), at)
    first = await store.closed(None, 2)
    rest = await store.closed((first[-1].changed_unix, first[-1].id), 9)
    assert [one.name for one in (*first, *rest)] == ["r2", "r1", "r3", "r0"]


async def test_sums_are_replaced_by_source_and_read_by_interval(store: RolloutBook) -> None:
    await store.put_sums("ro-1", "w1", {})
    await store.put_sums("ro-1", "w1", {7: "old", 8: "b"})
    await store.put_sums("ro-1", "w1", {7: "a"})
    await store.put_sums("ro-1", "w2", {7: "c", 9: "d"})
    await store.put_sums("ro-2", "w1", {7: "other"})
    assert sorted(await store.sums("ro-1", 7, 9)) == ["a", "b", "c"]
    assert await store.sums("ro-1", 9, 100) == ["d"]
    assert await store.sums("ro-1", 0, 7) == []


async def test_very_many_sums_come_in_whole_intervals(store: RolloutBook, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tenancy.stores.sql.rollouts", "tenancy.stores.memory.rollouts"):
        monkeypatch.setattr(f"{module}.MAX_ROWS", 3)
    for source in ("w1", "w2"):
        await store.put_sums("ro", source, {n: f"{n}{source}" for n in range(3)})
    assert sorted(await store.sums("ro", 0, 3)) == ["0w1", "0w2"]
    assert sorted(await store.sums("ro", 1, 3)) == ["1w1", "1w2"]
    for n in range(5):
        await store.put_sums("ro", f"w{n}", {2: "x"})
    assert await store.sums("ro", 2, 3) != []  # an interval with more sources than that is not waited for forever


async def test_sums_are_forgotten_once_they_were_counted_or_nobody_counts_them(store: RolloutBook) -> None:
    open_, over = await started(store, "a"), await started(store, "b")
    for one in (open_, over):
        await store.put_sums(one.id, "w", {1: "1", 2: "2"})
    await store.forget_sums(open_.id, 2)
    await close(store, over)
    await store.forget_closed()
    assert await store.sums(open_.id, 0, 9) == ["2"]
    assert await store.sums(over.id, 0, 9) == []


async def test_there_is_a_bound(store: RolloutBook, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tenancy.stores.sql.rollouts", "tenancy.stores.memory.rollouts"):
        monkeypatch.setattr(f"{module}.MAX_OPEN", 2)
    for name in "ab":
        await started(store, name)
    with pytest.raises(RolloutsFull, match="close some"):
        await started(store, "c")
    assert MAX_OPEN == 50
