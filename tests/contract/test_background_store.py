"""Responses in the background: one suite over SQLite and real Postgres."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.cache_purges import CachePurge
from domain.identity import TenantId
from tenancy.accounts import Tenant
from tenancy.background import Advance, BackgroundBounds, BackgroundResponse, BackgroundStatus, EventBatch, TooManyInBackground
from tenancy.keys import Pepper
from tenancy.responses import NoRoomForResponses, ResponsesAway, ResponseSealer, StoredResponse
from tenancy.stores.sql import (
    SqlBackgroundResponses,
    SqlCachePurges,
    SqlDirectory,
    SqlResponseKeeper,
    SqlResponses,
    open_engine,
)
from tenancy.stores.sql.responses import stored_bytes, stored_response
from tenancy.stores.sql.schema_background import background_events, background_response

ACME, BOLT = TenantId("acme"), TenantId("bolt")
ROOM = 1024**2
BOUNDS = BackgroundBounds(3, ROOM)
MINE = "worker-1"
EVENT = b"event: a\ndata: {}\n\n"


class Clock:
    """Seconds since the epoch, as the test says."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sealer() -> ResponseSealer:
    numbers = itertools.count()
    return ResponseSealer((Pepper("k1", b"p" * 32),), lambda size: next(numbers).to_bytes(size))


@pytest.fixture
def store(sql_engine: AsyncEngine, clock: Clock) -> SqlBackgroundResponses:
    return SqlBackgroundResponses(sql_engine, sealer(), clock)


def response(name: str = "resp_1", tenant: TenantId = ACME, **fields: Any) -> BackgroundResponse:
    made: dict[str, Any] = {"created_unix": 100.0, "expires_unix": 900.0, "lease_until_unix": 110.0, "last": 1}
    return BackgroundResponse(id=name, tenant=tenant, **{**made, "response": b'{"a":1}', "items": b'[{"id":"i"}]', **fields})


def batch(first: int, last: int) -> EventBatch:
    return EventBatch(first, last, EVENT * (last - first + 1))


async def created(store: SqlBackgroundResponses, **fields: Any) -> BackgroundResponse:
    new = response(**fields)
    await store.create(new, MINE, batch(0, 1), BOUNDS)
    return new


async def ended(store: SqlBackgroundResponses, status: BackgroundStatus, told: bytes = EVENT) -> BackgroundResponse | None:
    """End `resp_1` from outside."""
    return await store.end(
        ACME, "resp_1", lambda seen: (replace(seen, status=status, last=seen.last + 1, lease_until_unix=0.0, response=b"{}"), told)
    )


def stored(name: str = "resp_1") -> StoredResponse:
    return StoredResponse(id=name, tenant=ACME, created_unix=100.0, expires_unix=900.0, response=b'{"done":1}', items=b"[]")


async def advance(store: SqlBackgroundResponses, added: Advance, *, worker: str = MINE, room: int = ROOM, name: str = "resp_1") -> bool:
    return await store.advance(ACME, name, worker, added, room)


async def sums(engine: AsyncEngine) -> dict[str, int]:
    """The bytes of each tenant that has any, which have to be those of its rows."""
    length, held = sa.func.length, dict[str, int]()
    async with engine.connect() as connection:
        counted = {tenant: size for tenant, size in await connection.execute(sa.select(stored_bytes.c.tenant, stored_bytes.c.bytes))}
        for table in (stored_response, background_response, background_events):
            grouped = sa.select(table.c.tenant, sa.func.sum(length(table.c.sealed))).group_by(table.c.tenant)
            for tenant, size in await connection.execute(grouped):
                held[tenant] = held.get(tenant, 0) + size
    assert {tenant: size for tenant, size in counted.items() if size} == held
    return held


async def test_a_response_is_read_by_its_own_tenant_alone(store: SqlBackgroundResponses, sql_engine: AsyncEngine) -> None:
    new = await created(store, end_user="u" * 32)
    assert await store.find(ACME, new.id) == new
    assert await store.events(ACME, new.id, -1) == [batch(0, 1)]
    assert await store.find(BOLT, new.id) is None
    assert await store.events(BOLT, new.id, -1) == []
    assert await store.discard(BOLT, new.id) is False
    assert await store.discard(ACME, new.id) is True
    assert await store.discard(ACME, new.id) is False
    assert await store.events(ACME, new.id, -1) == []
    assert await sums(sql_engine) == {}


async def test_its_worker_adds_events_until_the_response_is_stored(
    store: SqlBackgroundResponses, sql_engine: AsyncEngine, clock: Clock
) -> None:
    new = await created(store)
    assert await advance(store, Advance(status="in_progress", batch=batch(2, 4), response=b'{"longer than before":1}'))
    seen = await store.find(ACME, new.id)
    assert seen == replace(new, status="in_progress", last=4, response=b'{"longer than before":1}')
    assert await advance(store, Advance(status="in_progress", batch=batch(5, 5)))
    await sums(sql_engine)
    assert await advance(store, Advance(status="completed", batch=batch(6, 7), response=b"", final=stored()))
    seen = await store.find(ACME, new.id)
    assert seen == replace(new, status="completed", last=7, response=b"", lease_until_unix=0.0)
    assert await SqlResponses(sql_engine, sealer(), clock).get(ACME, new.id) == stored()
    for after in range(-1, 8):
        told = await store.events(ACME, new.id, after)
        assert [one.last for one in told] == [last for last in (1, 4, 5, 7) if last > after]
    await sums(sql_engine)


@pytest.mark.parametrize("how", ["cancelled", "over", "deleted", "another-worker"])
async def test_nothing_is_added_to_a_response_that_is_no_longer_the_workers(
    store: SqlBackgroundResponses, sql_engine: AsyncEngine, how: str
) -> None:
    new, worker = await created(store), MINE
    if how == "cancelled":
        assert await ended(store, "cancelled")
    elif how == "over":
        assert await advance(store, Advance(status="failed", batch=batch(2, 2)))
    elif how == "deleted":
        assert await store.discard(ACME, new.id)
    else:
        worker = "worker-2"
    before = await store.find(ACME, new.id)
    assert await advance(store, Advance(status="completed", batch=batch(2, 9), final=stored()), worker=worker) is False
    assert await store.find(ACME, new.id) == before
    await sums(sql_engine)


async def test_a_response_ends_once_whoever_ends_it_and_behind_its_last_event(
    store: SqlBackgroundResponses, sql_engine: AsyncEngine
) -> None:
    new = await created(store)
    results = await asyncio.gather(
        *(ended(store, "cancelled") for _ in range(3)),
        *(advance(store, Advance(status="in_progress", batch=batch(2, 2))) for _ in range(1)),
        ended(store, "failed"),
    )
    seen = await store.find(ACME, new.id)
    assert seen is not None
    added = results[3]
    assert (seen.status in ("cancelled", "failed"), seen.last) == (True, 3 if added else 2)
    assert [result for result in results if not isinstance(result, bool)] == [seen] * 4
    assert [one.last for one in await store.events(ACME, new.id, -1)] == ([1, 2, 3] if added else [1, 2])
    await sums(sql_engine)


async def test_an_end_may_be_left_out_when_the_response_is_seen(store: SqlBackgroundResponses) -> None:
    new = await created(store)
    assert await store.end(ACME, new.id, lambda _: None) == new
    assert await store.end(BOLT, new.id, lambda _: None) is None
    assert await store.renew(MINE, 500.0) == {(ACME, new.id)}
    told: list[BackgroundResponse] = []
    assert await store.end(ACME, new.id, told.append) == replace(new, lease_until_unix=500.0)  # type: ignore[arg-type, func-returns-value]
    assert told == [replace(new, lease_until_unix=500.0)]


async def test_leases_are_renewed_of_the_own_responses_that_are_not_over(store: SqlBackgroundResponses) -> None:
    await created(store, name="resp_1")
    await created(store, name="resp_2")
    await store.create(response("resp_3"), "worker-2", batch(0, 1), BOUNDS)
    assert await advance(store, Advance(status="failed", batch=batch(2, 2)), name="resp_2")
    assert await store.renew(MINE, 200.0) == {(ACME, "resp_1")}
    assert (await store.renew("worker-2", 300.0)) == {(ACME, "resp_3")}


async def test_a_tenant_has_so_many_at_once_and_those_of_dead_workers_do_not_count(
    store: SqlBackgroundResponses, clock: Clock, sql_engine: AsyncEngine
) -> None:
    made = await asyncio.gather(*(created(store, name=f"resp_{number}") for number in range(6)), return_exceptions=True)
    assert sum(isinstance(one, BackgroundResponse) for one in made) == 3
    assert sum(isinstance(one, TooManyInBackground) for one in made) == 3
    await store.create(response("theirs", BOLT), MINE, batch(0, 1), BOUNDS)
    clock.now = 111.0
    await created(store, name="later", lease_until_unix=200.0)
    await sums(sql_engine)


async def test_what_has_no_room_is_not_stored_but_its_end_is(store: SqlBackgroundResponses, sql_engine: AsyncEngine) -> None:
    with pytest.raises(NoRoomForResponses):
        await store.create(response(), MINE, batch(0, 1), BackgroundBounds(3, 100))
    assert await store.find(ACME, "resp_1") is None
    new = await created(store)
    with pytest.raises(NoRoomForResponses):
        await advance(store, Advance(status="in_progress", batch=batch(2, 900)), room=1000)
    assert await store.find(ACME, new.id) == new
    assert await ended(store, "failed", EVENT * 100)
    await sums(sql_engine)


async def test_nothing_is_read_past_its_time_and_the_sweep_removes_it(
    store: SqlBackgroundResponses, clock: Clock, sql_engine: AsyncEngine
) -> None:
    await created(store, name="old", expires_unix=150.0)
    await created(store, name="new")
    clock.now = 150.0
    assert await store.find(ACME, "old") is None
    assert await store.discard(ACME, "old") is False
    assert await SqlResponseKeeper(sql_engine, clock).sweep() == 1
    assert await store.events(ACME, "old", -1) == []
    assert await store.find(ACME, "new") is not None
    await sums(sql_engine)


async def test_an_end_users_responses_are_erased_and_do_not_come_back(
    store: SqlBackgroundResponses, clock: Clock, sql_engine: AsyncEngine
) -> None:
    ann = "a" * 32
    await created(store, name="anns", end_user=ann)
    await created(store, name="bobs", end_user="b" * 32)
    assert await SqlResponseKeeper(sql_engine, clock).erase(BOLT, [ann], None) == 0
    assert await SqlResponseKeeper(sql_engine, clock).erase(ACME, [ann], 100.0) == 0
    assert await SqlResponseKeeper(sql_engine, clock).erase(ACME, [ann], None) == 1
    assert await store.renew(MINE, 200.0) == {(ACME, "bobs")}
    assert await store.events(ACME, "anns", -1) == []
    await SqlCachePurges(sql_engine).add(CachePurge(owner="acme", user=ann), 120.0)
    await created(store, name="later", end_user=ann)
    assert await store.find(ACME, "later") is None
    await sums(sql_engine)


async def test_a_deleted_tenants_responses_go_with_it(store: SqlBackgroundResponses, sql_engine: AsyncEngine) -> None:
    await created(store)
    await store.create(response("theirs", BOLT), MINE, batch(0, 1), BOUNDS)
    async with SqlDirectory(sql_engine).transaction() as change:
        await change.tenants.create(Tenant(ACME))
    async with SqlDirectory(sql_engine).transaction() as change:
        await change.tenants.delete(None, ACME, 1)
    assert await store.find(ACME, "resp_1") is None
    assert await store.events(ACME, "resp_1", -1) == []
    assert await store.find(BOLT, "theirs") is not None
    await created(store, name="again")
    assert await store.find(ACME, "again") is None
    await sums(sql_engine)


async def test_events_that_were_moved_are_not_opened(store: SqlBackgroundResponses, sql_engine: AsyncEngine) -> None:
    await created(store, name="resp_1")
    await created(store, name="resp_2", items=b'["other"]')
    async with sql_engine.begin() as connection:
        for table, name in ((background_response, "id"), (background_events, "response")):
            other = await connection.scalar(sa.select(table.c.sealed).where(table.c[name] == "resp_2"))
            await connection.execute(sa.update(table).where(table.c[name] == "resp_1").values(sealed=other))
    assert await store.find(ACME, "resp_1") is None
    assert await store.events(ACME, "resp_1", -1) == []


async def test_a_database_that_is_away_is_named(clock: Clock, tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/without-a-schema.db")
    store = SqlBackgroundResponses(engine, sealer(), clock)
    calls = [
        store.create(response(), MINE, batch(0, 1), BOUNDS),
        advance(store, Advance(status="in_progress", batch=batch(2, 2))),
        store.renew(MINE, 1.0),
        store.find(ACME, "resp_1"),
        store.events(ACME, "resp_1", -1),
        ended(store, "failed"),
        store.discard(ACME, "resp_1"),
    ]
    for call in calls:
        with pytest.raises(ResponsesAway):
            await call
    await engine.dispose()
