"""Batches and the results of their lines: one suite over SQLite and real Postgres."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.batches import LeaseLost, LineMistake, LineResult, StoredBatch, TokenSums, TooManyBatches
from domain.files import FileFigures, StorageBounds, StoredFile
from domain.identity import Caller, KeyId, ProjectId, TenantId
from tenancy.stores.sql import SqlBatches, SqlFiles
from tests.contract.conftest import database

CALLER = Caller(TenantId("acme"), ProjectId("default"), KeyId("tg_1"), roles=("a",), tags=(("team", "x"),))


@pytest.fixture(params=["sqlite", "postgres"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    async with database(request.param, request, tmp_path, migrated=True) as made:
        yield made


@pytest.fixture
def store(engine: AsyncEngine) -> SqlBatches:
    return SqlBatches(engine)


def batch(name: str = "1", tenant: str = "acme", at: float = 100.0) -> StoredBatch:
    return StoredBatch(
        id=f"batch_{name}",
        tenant=tenant,
        caller=CALLER,
        endpoint="/v1/chat/completions",
        input_file_id="file-1",
        created_unix=at,
        expires_unix=at + 86_400,
        metadata={"k": "'; DROP TABLE batch; --"},
    )


def result(line: int, *, failed: bool = False) -> LineResult:
    return LineResult(line, failed, f'{{"line": {line}}}', TokenSums(1, 2, 3, 4))


async def test_a_batch_is_found_by_its_tenant_alone(store: SqlBatches) -> None:
    await store.create(batch(), 5)
    assert await store.find("acme", "batch_1") == batch()
    assert await store.find("bolt", "batch_1") is None
    assert await store.cancel("bolt", "batch_1", 1.0) is None


async def test_pages_go_on_where_the_last_one_ended(store: SqlBatches) -> None:
    made = [batch(name, at=at) for name, at in (("a", 1.0), ("b", 2.0), ("c", 2.0))]
    for one in (*made, batch("other", "bolt")):
        await store.create(one, 5)
    assert [one.id for one in await store.page("acme", None, 2)] == ["batch_c", "batch_b"]
    assert [one.id for one in await store.page("acme", made[1], 2)] == ["batch_a"]


async def test_a_tenant_has_so_many_open_batches_however_many_come_at_once(store: SqlBatches) -> None:
    attempts = (store.create(batch(f"{at}"), 3) for at in range(6))
    refused = [one for one in await asyncio.gather(*attempts, return_exceptions=True) if one is not None]
    assert [type(one) for one in refused] == [TooManyBatches] * 3
    await store.create(batch("other", "bolt"), 3)


async def test_one_worker_gets_the_lease(store: SqlBatches) -> None:
    for name, at in (("a", 1.0), ("b", 2.0)):
        await store.create(batch(name, at=at), 5)
    taken = await asyncio.gather(*(store.take(f"worker-{at}", 100.0, 115.0) for at in range(6)))
    while sum(one is not None for one in taken) < 2:  # those that were slower look again
        taken += [await store.take("worker-late", 100.0, 115.0)]
    assert sorted(one.id for one in taken if one is not None) == ["batch_a", "batch_b"]
    assert await store.take("worker-x", 115.0, 130.0) is None
    later = await store.take("worker-x", 116.0, 131.0)
    assert later is not None and later.id == "batch_a", "the oldest one, whose lease is over"


async def test_a_worker_without_the_lease_writes_nothing(store: SqlBatches) -> None:
    await store.create(batch(), 5)
    assert await store.take("worker-a", 100.0, 115.0) is not None
    assert (await store.renew("batch_1", "worker-a", 120.0)).id == "batch_1"
    taken = await store.take("worker-b", 121.0, 136.0)
    assert taken is not None
    for attempt in (
        store.renew("batch_1", "worker-a", 200.0),
        store.write(taken, "worker-a", "validating"),
        store.note("batch_1", "worker-a", [result(0)]),
        store.finish(taken, "worker-a"),
    ):
        with pytest.raises(LeaseLost):
            await attempt
    assert await store.done("batch_1") == set()


async def test_results_are_counted_once(store: SqlBatches) -> None:
    await store.create(batch(), 5)
    await store.take("worker-a", 100.0, 115.0)
    await store.note("batch_1", "worker-a", [result(2), result(0), result(1, failed=True)])
    await store.note("batch_1", "worker-a", [structs.replace(result(2), output="another")])
    found = await store.find("acme", "batch_1")
    assert found is not None and (found.completed, found.failed, found.usage) == (2, 1, TokenSums(3, 6, 9, 12))
    assert await store.done("batch_1") == {0, 1, 2}
    assert [(one.line, one.output) for one in await store.results("batch_1", False, -1, 10)] == [(0, '{"line": 0}'), (2, '{"line": 2}')]
    assert [one.line for one in await store.results("batch_1", False, 0, 10)] == [2]
    assert [one.line for one in await store.results("batch_1", True, -1, 10)] == [1]


async def test_a_caller_who_cancels_is_not_written_over(store: SqlBatches) -> None:
    await store.create(batch(), 5)
    found = await store.take("worker-a", 100.0, 115.0)
    assert found is not None
    assert await store.write(structs.replace(found, status="in_progress", total=3), "worker-a", "validating")
    cancelled = await store.cancel("acme", "batch_1", 101.0)
    assert cancelled is not None and (cancelled.status, cancelled.cancelling_unix, cancelled.total) == ("cancelling", 101.0, 3)
    assert not await store.write(structs.replace(found, status="finalizing"), "worker-a", "in_progress")
    assert (await store.renew("batch_1", "worker-a", 120.0)).status == "cancelling"
    again = await store.cancel("acme", "batch_1", 102.0)
    assert again == cancelled


async def test_a_batch_that_has_ended_is_free_of_its_results(store: SqlBatches) -> None:
    await store.create(batch(), 1)
    found = await store.take("worker-a", 100.0, 115.0)
    assert found is not None
    await store.note("batch_1", "worker-a", [result(0)])
    ended = structs.replace(found, status="completed", output_file_id="file-2", mistakes=(LineMistake("a", "b", 1),))
    await store.finish(ended, "worker-a")
    assert await store.find("acme", "batch_1") == structs.replace(ended, completed=1, usage=TokenSums(1, 2, 3, 4))
    assert await store.done("batch_1") == set()
    assert await store.take("worker-b", 1e9, 2e9) is None
    await store.create(batch("2"), 1)
    kept = await store.cancel("acme", "batch_1", 1.0)
    assert kept is not None and kept.status == "completed"


async def test_files_and_batches_are_counted_by_their_states(store: SqlBatches, engine: AsyncEngine) -> None:
    assert await store.figures() == FileFigures({}, {}, {}, None)
    files = SqlFiles(engine)
    for name, tenant, size in (("a", "acme", 10), ("b", "bolt", 5), ("c", "acme", 7)):
        file = StoredFile(id=name, tenant=tenant, project="p", filename=name, purpose="batch", size_bytes=size, created_unix=1.0)
        await files.enter(file, StorageBounds(10, 100))
        if name != "c":
            await files.ready(file)
    for name, tenant, at in (("1", "acme", 100.0), ("2", "bolt", 50.0), ("3", "acme", 10.0)):
        await store.create(batch(name, tenant, at), 5)
    assert await store.cancel("acme", "batch_3", 11.0) is not None
    figures = await store.figures()
    assert (figures.files, figures.bytes) == ({"ready": 2, "uploading": 1}, {"ready": 15, "uploading": 7})
    assert figures.batches == {"validating": 2, "cancelling": 1}
    assert figures.oldest_unix == 50.0, "no line of a batch that is being cancelled waits"
