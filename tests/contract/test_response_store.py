"""Stored Responses: one suite over SQLite and real Postgres."""

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.cache_purges import CachePurge
from domain.identity import TenantId
from tenancy.accounts import Tenant
from tenancy.keys import Pepper
from tenancy.responses import ConversationTooLong, NoRoomForResponses, ResponsesAway, ResponseSealer, StoredResponse
from tenancy.stores.sql import SqlCachePurges, SqlDirectory, SqlResponseKeeper, SqlResponses, open_engine
from tenancy.stores.sql.responses import stored_bytes, stored_response

ACME, BOLT = TenantId("acme"), TenantId("bolt")
SECRET = Pepper("k1", b"p" * 32)
ROOM = 1024**2


class Clock:
    """Seconds since the epoch, as the test says."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sealer(*peppers: Pepper) -> ResponseSealer:
    numbers = itertools.count()
    return ResponseSealer(peppers or (SECRET,), lambda size: next(numbers).to_bytes(size))


@pytest.fixture
def store(sql_engine: AsyncEngine, clock: Clock) -> SqlResponses:
    return SqlResponses(sql_engine, sealer(), clock)


def response(name: str = "resp_1", tenant: TenantId = ACME, **fields: Any) -> StoredResponse:
    made: dict[str, Any] = {"created_unix": 100.0, "expires_unix": 200.0, "response": b'{"a":1}', "items": b"[]", **fields}
    return StoredResponse(id=name, tenant=tenant, **made)


async def conversation(store: SqlResponses, turns: int) -> list[StoredResponse]:
    """A stored conversation of `resp_0` and what continues it."""
    told: list[StoredResponse] = []
    for number in range(turns):
        before = await store.chain(ACME, f"resp_{number - 1}") if number else None
        size, previous = (before.bytes, f"resp_{number - 1}") if before is not None else (0, "")
        one = response(f"resp_{number}", previous=previous, turn=number, bytes_before=size, items=b'["%d"]' % number)
        await store.add(one, ROOM)
        told.append(one)
    return told


async def sums(engine: AsyncEngine) -> dict[str, int]:
    """The bytes of each tenant that has any, which have to be those of its rows."""
    async with engine.connect() as connection:
        counted = {tenant: size for tenant, size in await connection.execute(sa.select(stored_bytes.c.tenant, stored_bytes.c.bytes))}
        grouped = sa.select(stored_response.c.tenant, sa.func.sum(sa.func.length(stored_response.c.sealed)))
        held = {tenant: size for tenant, size in await connection.execute(grouped.group_by(stored_response.c.tenant))}
    assert {tenant: size for tenant, size in counted.items() if size} == held
    return held


async def test_what_is_stored_is_read_back_by_its_own_tenant_alone(store: SqlResponses, sql_engine: AsyncEngine) -> None:
    one = response("resp_'; DROP TABLE stored_response; --", response=b'{"text":"\xc3\xa4"}', items=b'[{"id":"i"}]', end_user="u" * 32)
    await store.add(one, ROOM)
    assert await store.get(ACME, one.id) == one
    assert await store.get(BOLT, one.id) is None
    assert await store.chain(BOLT, one.id) is None
    assert await store.remove(BOLT, one.id) is False
    assert await store.remove(ACME, one.id) is True
    assert await store.remove(ACME, one.id) is False
    assert await store.get(ACME, one.id) is None
    assert await sums(sql_engine) == {}


async def test_a_conversation_is_read_whole_and_from_any_of_its_responses(store: SqlResponses) -> None:
    told = await conversation(store, 20)
    for last in (0, 7, 19):
        chain = await store.chain(ACME, f"resp_{last}")
        assert chain is not None
        assert list(chain.turns) == told[: last + 1]
    branch = response("branch", previous="resp_7", turn=8, bytes_before=told[8].bytes_before)
    await store.add(branch, ROOM)
    chain = await store.chain(ACME, "branch")
    assert chain is not None
    assert list(chain.turns) == [*told[:8], branch]


async def test_a_conversation_that_has_lost_a_part_is_not_there(store: SqlResponses) -> None:
    await conversation(store, 4)
    await store.remove(ACME, "resp_1")
    assert await store.chain(ACME, "resp_3") is None
    assert await store.chain(ACME, "resp_0") is not None
    assert await store.get(ACME, "resp_3") is not None


async def test_nothing_is_read_past_its_time_and_the_sweep_removes_it(store: SqlResponses, clock: Clock, sql_engine: AsyncEngine) -> None:
    await store.add(response("old", expires_unix=150.0), ROOM)
    await store.add(response("young", previous="old", turn=1), ROOM)
    clock.now = 149.9
    assert await store.chain(ACME, "young") is not None
    assert await SqlResponseKeeper(sql_engine, clock).sweep() == 0
    clock.now = 150.0
    assert await store.get(ACME, "old") is None
    assert await store.chain(ACME, "young") is None
    assert await store.remove(ACME, "old") is False
    before = await sums(sql_engine)
    assert await SqlResponseKeeper(sql_engine, clock).sweep() == 1
    assert (await sums(sql_engine))["acme"] < before["acme"]
    assert await store.get(ACME, "young") is not None


async def test_a_sweep_takes_as_many_turns_as_it_needs(
    store: SqlResponses, clock: Clock, sql_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenancy.stores.sql.responses.SWEPT_AT_ONCE", 2)
    for number in range(5):
        await store.add(response(f"r{number}", (ACME, BOLT)[number % 2]), ROOM)
    clock.now = 200.0
    assert await SqlResponseKeeper(sql_engine, clock).sweep() == 5
    assert await SqlResponseKeeper(sql_engine, clock).sweep() == 0


async def test_a_tenant_has_so_many_bytes_and_what_is_past_its_time_makes_room(
    store: SqlResponses, clock: Clock, sql_engine: AsyncEngine
) -> None:
    await store.add(response("a", expires_unix=150.0), ROOM)
    size = (await sums(sql_engine))["acme"]
    await store.add(response("b"), 2 * size)
    with pytest.raises(NoRoomForResponses):
        await store.add(response("c"), 2 * size)
    await store.add(response("c", BOLT), 2 * size)
    assert await store.get(ACME, "c") is None
    clock.now = 150.0
    await store.add(response("c"), 2 * size)
    assert await sums(sql_engine) == {"acme": 2 * size, "bolt": size}
    with pytest.raises(NoRoomForResponses):
        await store.add(response("d"), 0)


async def test_of_writers_at_once_only_those_that_have_room_write(store: SqlResponses, sql_engine: AsyncEngine) -> None:
    size = len(sealer().seal(response("r0")))
    done = await asyncio.gather(*(store.add(response(f"r{number}"), 5 * size) for number in range(8)), return_exceptions=True)
    assert [type(one) for one in done if one is not None] == [NoRoomForResponses] * 3
    assert await sums(sql_engine) == {"acme": 5 * size}


async def test_a_conversation_that_is_too_long_is_not_read(store: SqlResponses, monkeypatch: pytest.MonkeyPatch) -> None:
    told = await conversation(store, 3)
    monkeypatch.setattr("tenancy.stores.sql.responses.MAX_TURNS", 2)
    with pytest.raises(ConversationTooLong):
        await store.chain(ACME, "resp_2")
    assert await store.chain(ACME, "resp_1") is not None
    monkeypatch.setattr("tenancy.stores.sql.responses.MAX_CHAIN_BYTES", told[1].bytes_before)
    with pytest.raises(ConversationTooLong):
        await store.chain(ACME, "resp_1")
    assert await store.chain(ACME, "resp_0") is not None


async def test_an_end_users_responses_are_erased_and_those_under_way_are_not_stored(
    store: SqlResponses, clock: Clock, sql_engine: AsyncEngine
) -> None:
    ann, bob = "a" * 32, "b" * 32
    for name, user, created in (("a1", ann, 100.0), ("a2", ann, 110.0), ("b1", bob, 100.0), ("none", "", 100.0)):
        await store.add(response(name, end_user=user, created_unix=created), ROOM)
    assert await SqlResponseKeeper(sql_engine, clock).erase(BOLT, [ann], None) == 0
    assert await SqlResponseKeeper(sql_engine, clock).erase(ACME, [ann], 105.0) == 1
    assert await store.get(ACME, "a2") is not None
    assert await SqlResponseKeeper(sql_engine, clock).erase(ACME, [ann, "of another pepper"], None) == 1
    await SqlCachePurges(sql_engine).add(CachePurge(owner="acme", user=ann), 120.0)
    await store.add(response("under-way", end_user=ann, created_unix=119.0), ROOM)
    await store.add(response("later", end_user=ann, created_unix=121.0), ROOM)
    await store.add(response("of-bob", end_user=bob, created_unix=119.0), ROOM)
    found = [name for name in ("a1", "a2", "b1", "none", "under-way", "later", "of-bob") if await store.get(ACME, name) is not None]
    assert found == ["b1", "none", "later", "of-bob"]
    await sums(sql_engine)


async def test_a_deleted_tenants_responses_go_with_it(store: SqlResponses, sql_engine: AsyncEngine) -> None:
    directory = SqlDirectory(sql_engine)
    async with directory.transaction() as change:
        await change.tenants.create(Tenant(ACME))
    await store.add(response("a"), ROOM)
    await store.add(response("b", BOLT), ROOM)
    async with directory.transaction() as change:
        await change.tenants.delete(None, ACME, 1)
    assert await store.get(ACME, "a") is None
    await store.add(response("under-way"), ROOM)
    assert await store.get(ACME, "under-way") is None
    assert set(await sums(sql_engine)) == {"bolt"}


async def test_a_new_pepper_seals_and_the_one_before_opens(store: SqlResponses, clock: Clock, sql_engine: AsyncEngine) -> None:
    old, new = response("old"), response("new", previous="old", turn=1)
    await store.add(old, ROOM)
    fresh = Pepper("k2", b"q" * 32)
    both = SqlResponses(sql_engine, sealer(fresh, SECRET), clock)
    await both.add(new, ROOM)
    chain = await both.chain(ACME, "new")
    assert chain is not None
    assert list(chain.turns) == [old, new]
    alone = SqlResponses(sql_engine, sealer(fresh), clock)
    assert (await alone.get(ACME, "old"), await alone.chain(ACME, "new")) == (None, None)
    assert await alone.get(ACME, "new") == new


async def test_a_row_that_was_moved_or_changed_is_not_opened(store: SqlResponses, sql_engine: AsyncEngine) -> None:
    await store.add(response("a"), ROOM)
    await store.add(response("b", BOLT), ROOM)
    async with sql_engine.begin() as connection:
        sealed = await connection.scalar(sa.select(stored_response.c.sealed).where(stored_response.c.id == "b"))
        await connection.execute(sa.update(stored_response).where(stored_response.c.id == "a").values(sealed=sealed))
    assert await store.get(ACME, "a") is None


async def test_a_database_that_is_away_says_so(clock: Clock, tmp_path: Any) -> None:
    (tmp_path / "store.db").write_bytes(b"no database")
    engine = open_engine(f"sqlite:///{tmp_path / 'store.db'}")
    store = SqlResponses(engine, sealer(), clock)
    for call in (
        store.get(ACME, "a"),
        store.chain(ACME, "a"),
        store.add(response(), ROOM),
        store.remove(ACME, "a"),
        SqlResponseKeeper(engine, clock).sweep(),
    ):
        with pytest.raises(ResponsesAway, match="DatabaseError"):
            await call
    await engine.dispose()


async def test_chats_are_listed_in_their_order_from_any_place_and_responses_are_not(store: SqlResponses, clock: Clock) -> None:
    clock.now = 100.0
    for number in (3, 1, 2, 1):  # two at the same time
        name = f"chatcmpl-{number}" if number != 1 else f"chatcmpl-1{'b' if await store.get(ACME, 'chatcmpl-1a') else 'a'}"
        await store.add(response(name, created_unix=100.0 + number, expires_unix=1000.0), ROOM)
    await store.add(response("resp_1", expires_unix=1000.0), ROOM)
    await store.add(response("chatcmpl-other", BOLT, expires_unix=1000.0), ROOM)
    order = ["chatcmpl-1a", "chatcmpl-1b", "chatcmpl-2", "chatcmpl-3"]
    for newest_first, names in ((False, order), (True, order[::-1])):
        listed = await store.chats(ACME, "", 10, newest_first=newest_first)
        assert [one.id for one in listed or ()] == names
        for at, name in enumerate(names):
            rest = await store.chats(ACME, name, 2, newest_first=newest_first)
            assert [one.id for one in rest or ()] == names[at + 1 : at + 3]
    for unknown in ("resp_1", "chatcmpl-other", "chatcmpl-9"):
        assert await store.chats(ACME, unknown, 2, newest_first=False) is None
    clock.now = 2000.0
    assert await store.chats(ACME, "", 10, newest_first=False) == []


async def test_what_is_replaced_is_sealed_anew_and_its_bytes_are_counted(store: SqlResponses, sql_engine: AsyncEngine) -> None:
    one = response("chatcmpl-1")
    assert await store.replace(one, ROOM) is False
    await store.add(one, ROOM)
    longer = msgspec.structs.replace(one, response=b'{"a":"' + b"x" * 1000 + b'"}')
    assert await store.replace(longer, ROOM) is True
    assert await store.get(ACME, one.id) == longer
    assert (await sums(sql_engine))["acme"] > 1000
    with pytest.raises(NoRoomForResponses):
        await store.replace(longer, 500)
    assert await store.replace(one, ROOM) is True
    assert (await sums(sql_engine))["acme"] < 1000
    assert await store.replace(response("chatcmpl-1", BOLT), ROOM) is False
