"""What is known of files and uploads: one suite over SQLite and real Postgres."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.files import UPLOAD_LASTS_S, StorageBounds, StorageFull, StoredFile, StoredUpload, StoresAway, UploadPart
from tenancy.stores.sql import SqlFiles, open_engine
from tests.contract.conftest import database

ROOMY = StorageBounds(files=1_000, bytes=1_000_000)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    async with database(request.param, request, tmp_path, migrated=True) as engine:
        yield SqlFiles(engine)


def file(name: str, tenant: str = "acme", **values: Any) -> StoredFile:
    usual = {"project": "default", "filename": "a'; DROP TABLE stored_file; --.jsonl", "purpose": "batch", "size_bytes": 10}
    return StoredFile(**{"id": f"file-{name}", "tenant": tenant, "created_unix": 100.0, **usual, **values})


async def kept(store: SqlFiles, entered: StoredFile) -> StoredFile:
    await store.enter(entered, ROOMY)
    assert await store.ready(entered)
    return structs.replace(entered, status="ready")


async def page(store: SqlFiles, purpose: str | None = None, after: StoredFile | None = None, limit: int = 10, **order: Any) -> list[str]:
    found = await store.page("acme", purpose, after, limit, **{"newest_first": True, "now_unix": 100.0, **order})
    return [one.id.removeprefix("file-") for one in found]


async def test_a_file_is_found_by_its_tenant_alone(store: SqlFiles) -> None:
    entered = file("a")
    await store.enter(entered, ROOMY)
    assert await store.find("acme", "file-a") == entered
    assert not entered.visible(100.0)
    known = structs.replace(entered, size_bytes=12, purpose="vision", expires_unix=200.0)
    assert await store.ready(known)
    found = await store.find("acme", "file-a")
    assert found == structs.replace(known, status="ready")
    assert found is not None and found.visible(199.0) and not found.visible(200.0)
    assert await store.find("bolt", "file-a") is None
    assert not await store.ready(entered), "it is ready already"
    assert not await store.delete("bolt", "file-a")


async def test_pages_go_on_where_the_last_one_ended(store: SqlFiles) -> None:
    files = [await kept(store, file(name, created_unix=at)) for name, at in (("a", 1.0), ("b", 2.0), ("c", 2.0), ("d", 3.0))]
    await kept(store, file("other", "bolt"))
    await kept(store, file("e", created_unix=4.0, purpose="vision", expires_unix=101.0))
    await store.enter(file("unfinished"), ROOMY)
    assert await page(store) == ["e", "d", "c", "b", "a"]
    assert await page(store, now_unix=101.0) == ["d", "c", "b", "a"]
    assert await page(store, limit=2) == ["e", "d"]
    assert await page(store, after=files[3], limit=2) == ["c", "b"]
    assert await page(store, after=files[2]) == ["b", "a"]
    assert await page(store, after=files[1], newest_first=False) == ["c", "d", "e"]
    assert await page(store, "vision") == ["e"]


async def test_the_quota_is_exact_however_many_come_at_once(store: SqlFiles) -> None:
    bounds = StorageBounds(files=5, bytes=1_000)
    attempts = (store.enter(file(f"{number}"), bounds) for number in range(8))
    refused = [one for one in await asyncio.gather(*attempts, return_exceptions=True) if one is not None]
    assert [type(one) for one in refused] == [StorageFull] * 3
    with pytest.raises(StorageFull, match="60 bytes may be stored"):
        await store.enter(file("large", size_bytes=11), StorageBounds(files=10, bytes=60))
    await store.enter(file("just", size_bytes=10), StorageBounds(files=10, bytes=60))
    await store.enter(file("another", "bolt"), bounds)


async def test_a_file_that_grows_counts_with_its_size_so_far(store: SqlFiles) -> None:
    bounds = StorageBounds(files=1, bytes=100)
    grown = file("a", size_bytes=60)
    await store.enter(structs.replace(grown, size_bytes=0), bounds, growing=True)
    await store.grow(grown, bounds)  # it is itself no other file
    with pytest.raises(StorageFull, match="0 bytes are stored here, this file has 101 or more, and 100 bytes may be stored"):
        await store.grow(structs.replace(grown, size_bytes=101), bounds)
    with pytest.raises(StorageFull, match="60 bytes are stored here, this file has 41 or more"):
        await store.enter(file("b", size_bytes=41), StorageBounds(files=2, bytes=100), growing=True)
    await store.grow(structs.replace(grown, size_bytes=100), bounds)
    assert await store.ready(structs.replace(grown, size_bytes=90))
    found = await store.find("acme", "file-a")
    assert found is not None and found.size_bytes == 90


async def test_files_that_grow_together_stay_within_the_quota(store: SqlFiles) -> None:
    bounds = StorageBounds(files=5, bytes=100)
    for name in "abcd":
        await store.enter(file(name, size_bytes=0), bounds, growing=True)
    attempts = (store.grow(file(name, size_bytes=30), bounds) for name in "abcd")
    refused = [one for one in await asyncio.gather(*attempts, return_exceptions=True) if one is not None]
    assert [type(one) for one in refused] == [StorageFull]


async def test_deleted_files_are_out_of_sight_and_of_the_quota(store: SqlFiles) -> None:
    await kept(store, file("a"))
    assert await store.delete("acme", "file-a")
    assert not await store.delete("acme", "file-a")
    assert await page(store) == []
    await store.enter(file("b"), StorageBounds(files=1, bytes=10))
    assert [one.id for one in await store.rubbish(100.0, 10)] == ["file-a"]
    await store.drop(["file-a"])
    assert await store.rubbish(100.0, 10) == []


async def test_rubbish_is_what_nobody_can_get_any_more(store: SqlFiles) -> None:
    await kept(store, file("kept"))
    await kept(store, file("expired", expires_unix=150.0))
    await store.enter(file("forsaken", created_unix=0.0), ROOMY)
    await store.enter(file("coming"), ROOMY)
    now = 2 * UPLOAD_LASTS_S + 1
    assert {one.id for one in await store.rubbish(149.0, 10)} == set()
    assert {one.id for one in await store.rubbish(now, 10)} == {"file-expired", "file-forsaken"}
    assert len(await store.rubbish(now, 1)) == 1


UPLOAD = StoredUpload(id="upload_1", tenant="acme", file_id="file-1", mime_type="text/jsonl", created_unix=100.0, expires_unix=3700.0)


def part(name: str, size: int) -> UploadPart:
    return UploadPart(id=f"part_{name}", upload_id=UPLOAD.id, size_bytes=size, created_unix=101.0)


async def test_an_upload_takes_as_many_bytes_as_it_was_begun_for(store: SqlFiles) -> None:
    await store.begin(UPLOAD, file("1", size_bytes=10), ROOMY)
    assert await store.find_upload("acme", UPLOAD.id) == UPLOAD
    assert await store.find_upload("bolt", UPLOAD.id) is None
    taken = await asyncio.gather(*(store.add_part(part(name, 4), 10) for name in "abcd"))
    assert sorted(taken) == [False, False, True, True]
    assert await store.add_part(part("e", 2), 10)
    assert sum(one.size_bytes for one in await store.parts(UPLOAD.id)) == 10


async def test_a_part_of_unknown_size_counts_once_it_is_here(store: SqlFiles) -> None:
    await store.begin(UPLOAD, file("1", size_bytes=10), ROOMY)
    for name in "abc":
        assert await store.add_part(part(name, 0), 10)
    done = await asyncio.gather(*(store.finish_part(part(name, 4), 10) for name in "abc"))
    assert sorted(done) == [False, True, True]
    await store.drop_part(f"part_{'abc'[done.index(False)]}")
    assert [one.size_bytes for one in await store.parts(UPLOAD.id)] == [4, 4]
    assert not await store.finish_part(part("never", 1), 10)
    assert await store.turn(UPLOAD.id, "pending", "completing")
    assert not await store.finish_part(part("a", 5), 10), "the upload takes no part any more"


async def test_an_upload_ends_once(store: SqlFiles) -> None:
    await store.begin(UPLOAD, file("1"), ROOMY)
    turned = await asyncio.gather(store.turn(UPLOAD.id, "pending", "completing"), store.turn(UPLOAD.id, "pending", "cancelled"))
    assert sorted(turned) == [False, True]
    assert not await store.add_part(part("a", 1), 10)
    assert await store.old_uploads(3700.0, 10) == []
    assert [one.id for one in await store.old_uploads(3700.5, 10)] == [UPLOAD.id]
    await store.drop_upload(UPLOAD.id)
    assert await store.find_upload("acme", UPLOAD.id) is None


async def test_an_upload_counts_in_the_quota_from_its_beginning(store: SqlFiles) -> None:
    await store.begin(UPLOAD, file("1", size_bytes=50), StorageBounds(files=2, bytes=50))
    with pytest.raises(StorageFull):
        await store.enter(file("2", size_bytes=1), StorageBounds(files=2, bytes=50))


async def test_a_database_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    engine: AsyncEngine = open_engine(f"sqlite:///{tmp_path}/without-tables.db")
    with pytest.raises(StoresAway):
        await SqlFiles(engine).find("acme", "file-a")
    await engine.dispose()
