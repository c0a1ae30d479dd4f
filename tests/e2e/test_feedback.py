"""`POST /v1/feedback` through a whole gateway: what is kept of a rating, for whom, and which ratings are refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from backends.simengine import SimEngine, SimSettings
from gateway.request.feedback import FeedbackService
from tenancy.feedback import FeedbackQuery
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.rights import Rights
from tenancy.stores.sql import SqlFeedback, open_engine
from tests.databases import migrated_file
from tests.gateway_harness import Gateway, chat, gateway

SIM = SimSettings(models=("sim",), speed=2000)
ID = "req-0000002a-000000000000000000000001"
LIMITS = [Limit(Scope(Level.TENANT, "bolt"), Meter.REQUESTS, Window.DAY, 2)]


@pytest.fixture
async def engine_of_store(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    await migrated_file(tmp_path / "store.db")
    engine = open_engine(f"sqlite:///{tmp_path / 'store.db'}")
    yield engine
    await engine.dispose()


@pytest.fixture
async def running(engine_of_store: AsyncEngine) -> AsyncIterator[Gateway]:
    counted: list[tuple[str, str]] = []
    service = FeedbackService(SqlFeedback(engine_of_store), 3, 60.0, lambda *given: counted.append(given))
    rights = {"crane": Rights(endpoints=frozenset({"/v1/chat/completions"}))}
    async with SimEngine(SIM) as engine, gateway(engine.url, feedback=service, limits=LIMITS, rights=rights) as made:
        yield made
        assert made.open_holds == 0


async def rate(running: Gateway, tenant: str = "acme", **fields: Any) -> tuple[int, dict[str, Any]]:
    async with running.client(tenant) as client:
        reply = await client.post("/v1/feedback", json=fields)
        return reply.status_code, reply.json()


async def test_an_answer_is_rated_by_its_header_or_by_its_id(running: Gateway, engine_of_store: AsyncEngine) -> None:
    async with running.client() as client:
        replies = [await client.post("/v1/chat/completions", json=chat(max_tokens=4), headers={"x-request-id": "mine"}) for _ in range(2)]
    by_header, by_id = replies[0].headers["x-tidegate-request-id"], replies[1].json()["id"]
    assert await rate(running, request_id=by_header, rating="up") == (
        200,
        {"object": "feedback", "request_id": by_header, "rating": "up"},
    )
    status, answer = await rate(running, request_id=by_id, rating="down", label="wrong", comment="It is\nnot so.", user="ann")
    assert (status, answer["request_id"]) == (200, by_id.removeprefix("chatcmpl-"))
    first, second = (rated.feedback for rated in await SqlFeedback(engine_of_store).page(FeedbackQuery(), None, 9))
    assert (first.rating, first.label, first.comment, first.source, first.tenant) == ("down", "wrong", "It is\nnot so.", "caller", "acme")
    assert (first.expires_unix - first.at_unix, len(first.end_user)) == (60.0, len(running.deps.answers.digest_of_user("ann")))
    assert "ann" not in repr(first), "the label is a digest"
    assert (second.request_id, second.end_user) == (by_header, "")
    records = await running.recorded(4)
    assert [(record.endpoint, record.outcome, record.usage.prompt_tokens) for record in records[2:]] == [("/v1/feedback", "ok", 0)] * 2


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"rating": "up"}, 400, "request_id"),
        ({"request_id": ID}, 400, "rating"),
        ({"request_id": "mine", "rating": "up"}, 400, "request_id"),
        ({"request_id": f"evil-{ID}", "rating": "up"}, 400, "request_id"),
        ({"request_id": f"{ID}\n", "rating": "up"}, 400, "request_id"),
        ({"request_id": ID, "rating": "five"}, 400, "rating"),
        ({"request_id": ID, "rating": 1}, 400, "rating"),
        ({"request_id": ID, "rating": "up", "label": "x" * 65}, 400, "label"),
        ({"request_id": ID, "rating": "up", "label": "a\nb"}, 400, "label"),
        ({"request_id": ID, "rating": "up", "comment": "x" * 2001}, 400, "comment"),
        ({"request_id": ID, "rating": "up", "comment": "a\0b"}, 400, "comment"),
        ({"request_id": ID, "rating": "up", "stars": 5}, 400, "stars"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_kept(
    running: Gateway, engine_of_store: AsyncEngine, fields: dict[str, Any], status: int, param: str
) -> None:
    got, answer = await rate(running, **fields)
    assert (got, answer["error"]["param"]) == (status, param)
    assert not await SqlFeedback(engine_of_store).page(FeedbackQuery(), None, 9)


async def test_rights_limits_and_the_bound_of_a_tenant_hold(running: Gateway) -> None:
    status, answer = await rate(running, "crane", request_id=ID, rating="up")
    assert (status, answer["error"]["code"]) == (403, "insufficient_permissions")
    assert [(await rate(running, "bolt", request_id=ID, rating="up"))[0] for _ in range(3)] == [200, 200, 429]
    for n in range(4):
        status, answer = await rate(running, request_id=f"{ID[:-1]}{n}", rating="up")
    assert (status, "feedback.max_per_tenant" in answer["error"]["message"]) == (429, True)
    async with running.client() as client:
        assert (await client.get("/v1/feedback")).status_code == 405
        assert (await client.post("/v1/feedback", content=b"{}", headers={"content-type": "text/plain"})).status_code == 415


async def test_where_it_is_switched_off_the_path_is_not_there() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running:
        status, answer = await rate(running, request_id=ID, rating="up")
        assert (status, answer["error"]["code"]) == (404, "unknown_url")
