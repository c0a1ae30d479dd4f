"""Ratings in real databases: one for each request and source, joined to the own tenant's requests, bounded, removed with their reasons."""

import asyncio
import datetime as dt
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.identity import TenantId
from tenancy.accounts import Tenant
from tenancy.directory_ports import EVERYWHERE
from tenancy.feedback import Feedback, FeedbackAway, FeedbackFull, FeedbackQuery, MeasuredAgreement
from tenancy.stores.sql import SqlDirectory, SqlFeedback, SqlResponseKeeper, SqlUsageStore, open_engine
from tenancy.usage import UsageEvent

NOW = 1_800_000_000.0
ACME, BOLT = TenantId("acme"), TenantId("bolt")
EVERY = FeedbackQuery()


def rating(request_id: str = "req-1", **fields: Any) -> Feedback:
    made = Feedback(ACME, request_id, "caller", NOW, NOW + 100, "up", label="good", comment="I like it", key_id="k", end_user="d1")
    return structs.replace(made, **fields)


def event(request_id: str, tenant: str, model: str) -> UsageEvent:
    at_ms = int(dt.datetime(2027, 1, 15, tzinfo=dt.UTC).timestamp() * 1000)
    return UsageEvent(
        request_id, at_ms, tenant, "web", "k", "", "/v1/chat/completions", model, "chat", "", "", "ok", "settle", organisation="default"
    )


async def test_a_later_rating_of_a_request_by_the_same_source_replaces_it(sql_engine: AsyncEngine) -> None:
    store = SqlFeedback(sql_engine)
    await store.put(rating(), 10)
    changed = rating(rating="down", label="", comment="no", at_unix=NOW + 1)
    judged = rating(source="judge", score=2, rating="down", comment="", key_id="", end_user="")
    for given in (changed, judged):
        await store.put(given, 10)
    assert [rated.feedback for rated in await store.page(EVERY, None, 10)] == [changed, judged]


async def test_a_tenant_has_so_many_and_may_change_those_it_has(sql_engine: AsyncEngine) -> None:
    store = SqlFeedback(sql_engine)
    for n in range(3):
        await store.put(rating(f"req-{n}"), 3)
    with pytest.raises(FeedbackFull):
        await store.put(rating("req-3"), 3)
    await store.put(rating("req-1", rating="down"), 3)
    await store.put(rating("req-3", tenant=BOLT), 3)
    assert len(await store.page(FeedbackQuery(ACME), None, 10)) == 3


async def test_a_rating_is_joined_to_its_own_tenants_request_alone(sql_engine: AsyncEngine) -> None:
    store = SqlFeedback(sql_engine)
    await SqlUsageStore(sql_engine).write([event("req-1", "acme", "large"), event("req-2", "bolt", "secret")])
    for given in (rating("req-1"), rating("req-2"), rating("req-3")):
        await store.put(given, 10)
    found = {rated.feedback.request_id: rated for rated in await store.page(EVERY, None, 10)}
    assert (found["req-1"].model, found["req-1"].pool, found["req-1"].project, found["req-1"].outcome) == ("large", "chat", "web", "ok")
    assert (found["req-2"].model, found["req-3"].model) == ("", ""), "another tenant's request, and none"


async def test_pages_together_are_all_of_what_is_asked_for(sql_engine: AsyncEngine) -> None:
    store = SqlFeedback(sql_engine)
    for n in range(9):
        await store.put(rating(f"req-{n}", at_unix=NOW + n // 2, rating="down" if n % 3 else "up", tenant=BOLT if n == 8 else ACME), 100)
    names, before = [], None
    while page := await store.page(FeedbackQuery(ACME), before, 2):
        names += [rated.feedback.request_id for rated in page]
        last = page[-1].feedback
        before = (last.at_unix, last.request_id, last.source)
    assert names == [f"req-{n}" for n in (7, 6, 5, 4, 3, 2, 1, 0)]
    ups = FeedbackQuery(rating="up", since_unix=NOW + 1)
    assert [rated.feedback.request_id for rated in await store.page(ups, None, 9)] == ["req-6", "req-3"]
    assert [rated.feedback.request_id for rated in await store.page(FeedbackQuery(request_id="req-4", label="good"), None, 9)] == ["req-4"]
    assert not await store.page(FeedbackQuery(source="judge"), None, 9)


async def test_ratings_go_with_their_time_their_end_user_and_their_tenant(sql_engine: AsyncEngine) -> None:
    store = SqlFeedback(sql_engine)
    now = [NOW]
    keeper = SqlResponseKeeper(sql_engine, lambda: now[0])
    async with SqlDirectory(sql_engine).transaction() as directory:
        tenant = await directory.tenants.create(Tenant(ACME))
    given = (
        rating("old", expires_unix=NOW),
        rating("erased", end_user="d2"),
        rating("later", end_user="d2", at_unix=NOW + 9),
        rating("own"),
    )
    for one in (*given, rating("other", tenant=BOLT, end_user="d2")):
        await store.put(one, 10)

    async def names() -> set[str]:
        return {rated.feedback.request_id for rated in await store.page(EVERY, None, 10)}

    assert await keeper.sweep() == 1
    assert await keeper.erase(ACME, ["d2"], NOW + 5) == 1
    assert await names() == {"later", "own", "other"}
    assert await keeper.erase(ACME, ["d2"], None) == 1
    async with SqlDirectory(sql_engine).transaction() as directory:
        await directory.tenants.delete(EVERYWHERE, ACME, tenant.version)
    assert await names() == {"other"}
    await store.put(rating("late"), 10)
    assert await keeper.sweep() == 1, "a rating that came while its tenant was deleted"
    assert await names() == {"other"}


async def test_a_database_that_is_away_is_said_to_be() -> None:
    store = SqlFeedback(open_engine("postgresql://nobody@127.0.0.1:9/none"))
    with pytest.raises(FeedbackAway):
        await store.put(rating(), 1)
    with pytest.raises(FeedbackAway):
        await store.page(EVERY, None, 1)


async def test_one_worker_at_a_time_has_the_judges_turn_with_the_tokens_of_the_day(sql_engine: AsyncEngine) -> None:
    first, second = SqlFeedback(sql_engine), SqlFeedback(sql_engine)
    taken = await asyncio.gather(first.take("a", NOW, NOW + 30, 7, 0), second.take("b", NOW, NOW + 30, 7, 0))
    assert sorted(taken, key=str) == [0, None]
    mine, other = ("a", "b") if taken[0] == 0 else ("b", "a")
    assert await first.take(mine, NOW + 5, NOW + 35, 7, 120) == 120
    assert await second.take(other, NOW + 20, NOW + 50, 7, 999) is None
    assert await second.take(other, NOW + 35, NOW + 65, 7, 0) == 120, "it goes on with what was used"
    assert await first.take(mine, NOW + 36, NOW + 66, 7, 50) is None
    assert await second.take(other, NOW + 40, NOW + 70, 7, 30) == 150
    assert await second.take(other, NOW + 41, NOW + 71, 8, 5) == 5, "on a new day the sum begins anew"


async def test_the_last_agreement_is_kept(sql_engine: AsyncEngine) -> None:
    store = SqlFeedback(sql_engine)
    assert await store.agreement() is None
    first = MeasuredAgreement("big", "v1", NOW, 40, 0, 24, 0.75, None, 2, 4, 16, 0.875, 1)
    for measured in (first, structs.replace(first, model="other", kappa=0.5)):
        await store.keep_agreement(measured)
        assert await store.agreement() == measured
