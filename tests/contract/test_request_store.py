"""The request log's store: one suite over memory, SQLite and real Postgres."""

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.request_log import LoggedRequest, RequestFilter, RequestLogAway, SealedContent
from tenancy.stores.memory import MemoryRequests
from tenancy.stores.sql import SqlRequests, open_engine

SECOND = 0x6B49D200
AT_US = SECOND * 1_000_000
ALL = RequestFilter()


@pytest.fixture
def store(kept_in: AsyncEngine | None) -> Any:
    return MemoryRequests() if kept_in is None else SqlRequests(kept_in)


def request(number: int, **fields: Any) -> LoggedRequest:
    made = LoggedRequest(
        at_us=AT_US + number,
        id=f"req-{SECOND:08x}-{number:04x}",
        duration_us=1000 * number,
        tenant="acme",
        model="sim",
        expires_us=AT_US + 10_000,
        line=b'{"request_id":"\xc3\xa4"}',
    )
    return replace(made, **fields)


def content(of: LoggedRequest) -> SealedContent:
    return SealedContent(
        at_us=of.at_us, id=of.id, tenant=of.tenant, end_user=of.end_user, expires_us=of.expires_us, kid="k", sealed=b"\x00sealed"
    )


async def numbers(store: Any, wanted: RequestFilter = ALL, order: str = "newest", after: Any = None, limit: int = 100) -> list[int]:
    return [one.at_us - AT_US for one in await store.page(wanted, order, after, limit)]


async def test_what_is_kept_is_read_back_once(store: Any) -> None:
    first, second = request(1, end_user="u", rule="r", cache="miss"), request(2)
    await store.add([first, second], [content(first)])
    await store.add([first, request(3)], [content(first)])
    assert await numbers(store) == [3, 2, 1]
    assert await store.get(first.id) == first
    assert await store.content(first) == content(first)
    assert await store.content(second) is None
    assert await store.with_content([first, second]) == {first.id}
    assert await store.get("req-00000001-0001") is None
    assert await store.get("x'; DROP TABLE request_log; --") is None


async def test_pages_follow_each_other_in_both_orders(store: Any) -> None:
    # two of the same moment and the same length are told apart by their ids
    same = request(5, id=f"req-{SECOND:08x}-ffff", at_us=AT_US + 4, duration_us=4000)
    await store.add([request(number) for number in range(1, 8)] + [same], [])
    for order in ("newest", "slowest"):
        seen: list[str] = []
        after = None
        while page := await store.page(ALL, order, after, 3):
            seen += [one.id for one in page]
            after = page[-1].place if order == "newest" else (page[-1].duration_us, page[-1].id)
        assert len(seen) == len(set(seen)) == 8, order
        assert seen[3:5] == [same.id, f"req-{SECOND:08x}-0004"], order


async def test_every_condition_narrows(store: Any) -> None:
    await store.add(
        [
            request(1),
            request(2, tenant="bolt"),
            request(3, outcome="overloaded", backend="e1"),
            request(4, model="other", rule="night", key_id="k9", endpoint="/v1/embeddings", pool="p", project="web", cache="hit-exact"),
        ],
        [],
    )
    assert await numbers(store, RequestFilter(tenant="bolt")) == [2]
    assert await numbers(store, RequestFilter(failed=True)) == [3]
    assert await numbers(store, RequestFilter(outcome="ok", tenant="acme")) == [4, 1]
    assert await numbers(store, RequestFilter(min_duration_us=3000)) == [4, 3]
    assert await numbers(store, RequestFilter(since_us=AT_US + 2, until_us=AT_US + 4)) == [3, 2]
    for field, value in (
        ("model", "other"),
        ("rule", "night"),
        ("key_id", "k9"),
        ("endpoint", "/v1/embeddings"),
        ("pool", "p"),
        ("project", "web"),
        ("cache", "hit-exact"),
    ):
        assert await numbers(store, RequestFilter(**{field: value})) == [4], field
    assert await numbers(store, RequestFilter(backend="e1")) == [3]
    assert await numbers(store, RequestFilter(model="' OR 1=1 --")) == []


async def test_an_end_user_is_erased_up_to_a_moment(store: Any) -> None:
    theirs, later, others = request(1, end_user="u"), request(5, end_user="u"), request(2, end_user="u", tenant="bolt")
    await store.add([theirs, later, others, request(3)], [content(theirs), content(later)])
    assert await store.erase("acme", ["u"], AT_US + 4) == 1
    assert await numbers(store) == [5, 3, 2]
    assert await store.content(theirs) is None
    assert await store.content(later) == content(later)


async def test_a_sweep_removes_what_is_past_its_time_and_the_oldest_beyond_the_bound(store: Any) -> None:
    short = request(6, expires_us=AT_US + 100)
    await store.add([*(request(number) for number in range(1, 6)), short], [content(request(1)), content(short)])
    assert await store.sweep(AT_US + 99, 100) == 0
    assert await store.sweep(AT_US + 100, 100) == 1
    assert await store.content(short) is None
    assert await store.sweep(AT_US + 100, 2) == 3
    assert await numbers(store) == [5, 4]
    assert await store.content(request(1)) is None
    assert await store.sweep(AT_US + 10_000, 2) == 2


async def test_names_that_are_too_long_for_a_column_are_kept_in_the_line(store: Any) -> None:
    await store.add([request(1, model="m" * 600, outcome="o" * 100)], [])
    (found,) = await store.page(RequestFilter(model="m" * 600), "newest", None, 9)
    assert found.id == request(1).id


async def test_a_database_that_is_away_is_said_so() -> None:
    engine = open_engine("postgresql://user:hidden@127.0.0.1:1/db")
    with pytest.raises(RequestLogAway) as raised:
        await SqlRequests(engine).get(request(1).id)
    assert "hidden" not in str(raised.value)
    await engine.dispose()


async def test_the_tables_are_made_where_there_are_none(tmp_path: Any) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'own.db'}")
    store = SqlRequests(engine)
    await store.prepare()
    await store.prepare()
    await store.add([request(1)], [])
    assert await numbers(store) == [1]
    await engine.dispose()
