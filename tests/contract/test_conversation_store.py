"""Conversations: one suite over SQLite and real Postgres."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.cache_purges import CachePurge
from domain.identity import TenantId
from tenancy.accounts import Tenant
from tenancy.conversations import AddedItems, Conversation, ConversationItem, ItemExists, UnknownItem
from tenancy.keys import Pepper
from tenancy.responses import ConversationTooLong, NoRoomForResponses, ResponsesAway, ResponseSealer, StoredResponse
from tenancy.stores.sql import SqlCachePurges, SqlConversations, SqlDirectory, SqlResponseKeeper, SqlResponses, open_engine
from tenancy.stores.sql.responses import stored_bytes, stored_response
from tenancy.stores.sql.schema_conversations import conversation, conversation_item

ACME, BOLT = TenantId("acme"), TenantId("bolt")
SECRET, FRESH = Pepper("k1", b"p" * 32), Pepper("k2", b"q" * 32)
ROOM = 1024**2
ANN, BOB = "a" * 32, "b" * 32


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
def store(sql_engine: AsyncEngine, clock: Clock) -> SqlConversations:
    return SqlConversations(sql_engine, sealer(), clock)


def talk(name: str = "conv_1", tenant: TenantId = ACME, **fields: Any) -> Conversation:
    return Conversation(id=name, tenant=tenant, **{"created_unix": 100.0, "expires_unix": 200.0, **fields})


def items(*names: str) -> list[ConversationItem]:
    return [ConversationItem(name, b'{"id":"%b"}' % name.encode()) for name in names]


def added(*names: str, to: str = "conv_1", tenant: TenantId = ACME, **fields: Any) -> AddedItems:
    return AddedItems(conversation=to, tenant=tenant, items=items(*names), **{"created_unix": 100.0, **fields})


async def names_in(store: SqlConversations, name: str = "conv_1", tenant: TenantId = ACME) -> list[str] | None:
    whole = await store.read(tenant, name)
    return None if whole is None else [one.id for one in whole.items]


async def sums(engine: AsyncEngine) -> dict[str, int]:
    """The bytes of each tenant that has any, which have to be those of its rows, as have the counts of each conversation."""
    async with engine.connect() as connection:
        counted = {tenant: size for tenant, size in await connection.execute(sa.select(stored_bytes.c.tenant, stored_bytes.c.bytes))}
        held: dict[str, int] = {}
        for table in (stored_response, conversation, conversation_item):
            grouped = sa.select(table.c.tenant, sa.func.sum(sa.func.length(table.c.sealed))).group_by(table.c.tenant)
            for tenant, size in await connection.execute(grouped):
                held[tenant] = held.get(tenant, 0) + size
        one = conversation_item.c
        of_it = (one.conversation == conversation.c.id) & (one.tenant == conversation.c.tenant)
        number = sa.select(sa.func.count()).where(of_it).scalar_subquery()
        size = sa.select(sa.func.coalesce(sa.func.sum(one.bytes), 0)).where(of_it).scalar_subquery()
        rows = await connection.execute(sa.select(conversation.c.item_count, number, conversation.c.item_bytes, size))
        assert all((told, told_size) == (real, real_size) for told, real, told_size, real_size in rows)
        orphans = sa.select(sa.func.count()).select_from(conversation_item).where(~sa.exists().where(of_it))
        assert await connection.scalar(orphans) == 0
    assert {tenant: size for tenant, size in counted.items() if size} == held
    return held


async def test_what_is_kept_is_read_back_by_its_own_tenant_alone(store: SqlConversations, sql_engine: AsyncEngine) -> None:
    one = talk("conv_'; DROP TABLE conversation; --", metadata=b'{"k":"\xc3\xa4"}', end_user=ANN)
    await store.create(one, items("a", "b"), ROOM)
    assert await store.get(ACME, one.id) == one
    assert await names_in(store, one.id) == ["a", "b"]
    assert await store.item(ACME, one.id, "b") == items("b")[0]
    assert await store.append(added("c", to=one.id), ROOM) is True
    for name, tenant in ((one.id, BOLT), ("conv_2", ACME)):
        assert await store.get(tenant, name) is None
        assert await store.read(tenant, name) is None
        assert await store.page(tenant, name, "", 10, newest_first=False) is None
        assert await store.item(tenant, name, "a") is None
        assert await store.change(talk(name, tenant), ROOM) is False
        assert await store.append(added("x", to=name, tenant=tenant), ROOM) is False
        assert await store.drop(tenant, name, "a") is False
        assert await store.remove(tenant, name) is False
    assert await names_in(store, one.id) == ["a", "b", "c"]
    assert await store.remove(ACME, one.id) is True
    assert await store.remove(ACME, one.id) is False
    assert await names_in(store, one.id) is None
    assert await sums(sql_engine) == {}


async def test_two_tenants_may_have_conversations_of_one_id(store: SqlConversations, sql_engine: AsyncEngine) -> None:
    for tenant, name in ((ACME, "a"), (BOLT, "b")):
        await store.create(talk(tenant=tenant), items(name), ROOM)
    assert (await names_in(store, tenant=ACME), await names_in(store, tenant=BOLT)) == (["a"], ["b"])
    await store.remove(ACME, "conv_1")
    assert await names_in(store, tenant=BOLT) == ["b"]
    await sums(sql_engine)


async def test_metadata_is_written_anew_within_the_room_that_there_is(store: SqlConversations, sql_engine: AsyncEngine) -> None:
    await store.create(talk(metadata=b'{"a":"1"}'), [], ROOM)
    size = (await sums(sql_engine))["acme"]
    assert await store.change(talk(metadata=b"{}"), size) is True
    assert await store.change(talk(metadata=b'{"a":"2"}'), size) is True
    with pytest.raises(NoRoomForResponses):
        await store.change(talk(metadata=b'{"a":"333"}'), size)
    kept = await store.get(ACME, "conv_1")
    assert kept is not None
    assert kept.metadata == b'{"a":"2"}'
    assert await sums(sql_engine) == {"acme": size}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest", "newest"])
async def test_pages_together_are_the_conversation_whatever_their_size(store: SqlConversations, limit: int, newest_first: bool) -> None:
    await store.create(talk(), items("i0", "i1"), ROOM)
    for number in range(2, 7):
        await store.append(added(f"i{number}"), ROOM)
    await store.drop(ACME, "conv_1", "i3")
    read: list[str] = []
    more = True
    while more:
        page = await store.page(ACME, "conv_1", read[-1] if read else "", limit, newest_first=newest_first)
        assert page is not None
        assert 1 <= len(page.items) <= limit
        read += [one.id for one in page.items]
        more = page.more
    told = ["i0", "i1", "i2", "i4", "i5", "i6"]
    assert read == (told[::-1] if newest_first else told)
    with pytest.raises(UnknownItem):
        await store.page(ACME, "conv_1", "i3", limit, newest_first=newest_first)


async def test_an_item_that_is_there_is_not_added_again_and_one_that_is_gone_is(store: SqlConversations, sql_engine: AsyncEngine) -> None:
    await store.create(talk(), items("a", "b"), ROOM)
    with pytest.raises(ItemExists, match=r"^b$"):
        await store.append(added("c", "b"), ROOM)
    assert await names_in(store) == ["a", "b"]
    assert await store.drop(ACME, "conv_1", "b") is True
    assert await store.drop(ACME, "conv_1", "b") is False
    await store.append(added("c", "b"), ROOM)
    assert await names_in(store) == ["a", "c", "b"]
    await store.append_answer(added("b", "d"), ROOM, None)  # an answer is not lost for an id
    assert await names_in(store) == ["a", "c", "b", "b", "d"]
    await sums(sql_engine)


async def test_nothing_is_lost_of_what_is_added_at_once_and_it_stands_together(store: SqlConversations, sql_engine: AsyncEngine) -> None:
    await store.create(talk(), [], ROOM)
    turns: Sequence[tuple[str, ...]] = [(f"in{number}", f"out{number}") for number in range(12)]
    await asyncio.gather(*(store.append_answer(added(*turn), ROOM, None) for turn in turns))
    told = await names_in(store)
    assert told is not None
    assert {tuple(told[at : at + 2]) for at in range(0, len(told), 2)} == set(turns)
    await sums(sql_engine)


async def test_an_answer_and_its_response_are_kept_together_or_not_at_all(
    store: SqlConversations, sql_engine: AsyncEngine, clock: Clock
) -> None:
    responses = SqlResponses(sql_engine, sealer(), clock)
    kept = StoredResponse(id="resp_1", tenant=ACME, created_unix=100.0, expires_unix=200.0, response=b"{}", items=b"[]")
    await store.create(talk(), [], ROOM)
    before = (await sums(sql_engine))["acme"]
    with pytest.raises(NoRoomForResponses):
        await store.append_answer(added("a"), before + 10, kept)
    assert (await names_in(store), await responses.get(ACME, "resp_1")) == ([], None)
    await store.append_answer(added("a"), ROOM, kept)
    assert (await names_in(store), await responses.get(ACME, "resp_1")) == (["a"], kept)
    await store.remove(ACME, "conv_1")
    later = StoredResponse(id="resp_2", tenant=ACME, created_unix=100.0, expires_unix=200.0, response=b"{}", items=b"[]")
    await store.append_answer(added("b"), ROOM, later)  # the conversation was deleted meanwhile
    assert (await names_in(store), await responses.get(ACME, "resp_2")) == (None, later)
    await sums(sql_engine)


async def test_a_conversation_ends_with_its_time_and_is_swept(store: SqlConversations, clock: Clock, sql_engine: AsyncEngine) -> None:
    await store.create(talk(expires_unix=150.0), items("a"), ROOM)
    await store.create(talk("conv_2"), items("b"), ROOM)
    clock.now = 149.9
    assert await SqlResponseKeeper(sql_engine, clock).sweep() == 0
    assert await store.append(added("c", created_unix=149.0), ROOM) is True
    clock.now = 150.0
    assert await store.get(ACME, "conv_1") is None
    assert await store.read(ACME, "conv_1") is None
    assert await store.page(ACME, "conv_1", "", 5, newest_first=True) is None
    assert await store.item(ACME, "conv_1", "a") is None
    assert await store.append(added("d"), ROOM) is False
    assert await store.drop(ACME, "conv_1", "a") is False
    assert await SqlResponseKeeper(sql_engine, clock).sweep() == 1
    assert await SqlResponseKeeper(sql_engine, clock).sweep() == 0
    assert await names_in(store, "conv_2") == ["b"]
    await sums(sql_engine)


async def test_conversations_and_responses_share_a_room_and_what_is_past_makes_room(
    store: SqlConversations, clock: Clock, sql_engine: AsyncEngine
) -> None:
    responses = SqlResponses(sql_engine, sealer(), clock)
    await store.create(talk(expires_unix=150.0), items("a"), ROOM)
    size = (await sums(sql_engine))["acme"]
    new = StoredResponse(id="resp_1", tenant=ACME, created_unix=100.0, expires_unix=200.0, response=b"{}", items=b"[]")
    with pytest.raises(NoRoomForResponses):
        await store.append(added("b"), size)
    with pytest.raises(NoRoomForResponses):
        await store.create(talk("conv_2"), [], size)
    with pytest.raises(NoRoomForResponses):
        await responses.add(new, size)
    await store.create(talk("conv_2", BOLT), [], size)
    assert await names_in(store) == ["a"]
    clock.now = 150.0
    await responses.add(new, size)
    assert set(await sums(sql_engine)) == {"acme", "bolt"}
    await responses.remove(ACME, "resp_1")
    await store.create(talk("conv_2"), items("b"), size)
    assert await sums(sql_engine) == {"acme": size, "bolt": (await sums(sql_engine))["bolt"]}


async def test_a_conversation_that_is_too_long_is_not_read(store: SqlConversations, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.create(talk(), items("a", "b"), ROOM)
    monkeypatch.setattr("tenancy.stores.sql.conversations.MOST_CONVERSATION_ITEMS", 2)
    assert await names_in(store) == ["a", "b"]
    await store.append(added("c"), ROOM)
    with pytest.raises(ConversationTooLong):
        await store.read(ACME, "conv_1")
    await store.drop(ACME, "conv_1", "a")
    assert await names_in(store) == ["b", "c"]
    monkeypatch.setattr("tenancy.stores.sql.conversations.MAX_CHAIN_BYTES", 10)
    with pytest.raises(ConversationTooLong):
        await store.read(ACME, "conv_1")


async def test_an_end_users_conversations_are_erased_whole_and_nothing_of_theirs_is_added_later(
    store: SqlConversations, clock: Clock, sql_engine: AsyncEngine
) -> None:
    await store.create(talk("created", end_user=ANN), items("x"), ROOM)
    await store.create(talk("spoken"), items("seed"), ROOM)
    await store.append(added("y", to="spoken", end_user=ANN, created_unix=110.0), ROOM)
    await store.create(talk("others"), [], ROOM)
    await store.append(added("z", to="others", end_user=BOB), ROOM)
    keeper = SqlResponseKeeper(sql_engine, clock)
    assert await keeper.erase(BOLT, [ANN], None) == 0
    assert await keeper.erase(ACME, [ANN], 105.0) == 1
    assert (await names_in(store, "created"), await names_in(store, "spoken")) == (None, ["seed", "y"])
    assert await keeper.erase(ACME, [ANN, "of another pepper"], None) == 1
    assert (await names_in(store, "spoken"), await names_in(store, "others")) == (None, ["z"])
    await SqlCachePurges(sql_engine).add(CachePurge(owner="acme", user=ANN), 120.0)
    assert await store.append(added("under-way", to="others", end_user=ANN, created_unix=119.0), ROOM) is False
    await store.append_answer(added("answer", to="others", end_user=ANN, created_unix=119.0), ROOM, None)
    await store.create(talk("under-way", end_user=ANN, created_unix=119.0), [], ROOM)
    assert await store.get(ACME, "under-way") is None
    assert await store.append(added("later", to="others", end_user=ANN, created_unix=121.0), ROOM) is True
    assert await names_in(store, "others") == ["z", "later"]
    await sums(sql_engine)


async def test_a_deleted_tenants_conversations_go_with_it(store: SqlConversations, sql_engine: AsyncEngine) -> None:
    directory = SqlDirectory(sql_engine)
    async with directory.transaction() as change:
        await change.tenants.create(Tenant(ACME))
    await store.create(talk(), items("a"), ROOM)
    await store.create(talk("conv_2", BOLT), items("b"), ROOM)
    async with directory.transaction() as change:
        await change.tenants.delete(None, ACME, 1)
    assert await store.get(ACME, "conv_1") is None
    await store.create(talk("under-way"), [], ROOM)
    assert await store.get(ACME, "under-way") is None
    assert set(await sums(sql_engine)) == {"bolt"}


async def test_a_new_pepper_seals_and_the_one_before_opens(store: SqlConversations, clock: Clock, sql_engine: AsyncEngine) -> None:
    await store.create(talk(), items("old"), ROOM)
    both = SqlConversations(sql_engine, sealer(FRESH, SECRET), clock)
    await both.append(added("new"), ROOM)
    assert await names_in(both) == ["old", "new"]
    alone = SqlConversations(sql_engine, sealer(FRESH), clock)
    assert (await alone.get(ACME, "conv_1"), await alone.read(ACME, "conv_1"), await alone.item(ACME, "conv_1", "old")) == (None,) * 3
    assert await alone.item(ACME, "conv_1", "new") == items("new")[0]


async def test_a_row_that_was_moved_is_not_opened(store: SqlConversations, sql_engine: AsyncEngine) -> None:
    await store.create(talk(), items("a", "b"), ROOM)
    async with sql_engine.begin() as connection:
        sealed = await connection.scalar(sa.select(conversation_item.c.sealed).where(conversation_item.c.id == "b"))
        await connection.execute(sa.update(conversation_item).where(conversation_item.c.id == "a").values(sealed=sealed))
    assert await store.item(ACME, "conv_1", "a") is None
    assert await store.read(ACME, "conv_1") is None  # a conversation with a silent gap is none
    assert await store.item(ACME, "conv_1", "b") is not None


async def test_a_database_that_is_away_says_so(clock: Clock, tmp_path: Any) -> None:
    (tmp_path / "store.db").write_bytes(b"no database")
    engine = open_engine(f"sqlite:///{tmp_path / 'store.db'}")
    store = SqlConversations(engine, sealer(), clock)
    for call in (
        store.create(talk(), [], ROOM),
        store.get(ACME, "a"),
        store.change(talk(), ROOM),
        store.remove(ACME, "a"),
        store.read(ACME, "a"),
        store.page(ACME, "a", "", 1, newest_first=True),
        store.item(ACME, "a", "b"),
        store.append(added("a"), ROOM),
        store.append_answer(added("a"), ROOM, None),
        store.drop(ACME, "a", "b"),
    ):
        with pytest.raises(ResponsesAway, match="DatabaseError"):
            await call
    await engine.dispose()
