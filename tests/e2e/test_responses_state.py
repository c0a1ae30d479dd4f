"""Stored Responses through whole gateways: conversations go on over engines, restarts and replicas, and are nobody else's."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa

from backends.simengine import SimEngine, SimSettings
from domain.identity import TenantId
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.responses import ResponseSealer, StoredResponse
from tenancy.rights import Rights
from tenancy.stores.sql import SqlResponseKeeper, SqlResponses, open_engine
from tenancy.stores.sql.responses import stored_response
from tests.databases import migrated_file
from tests.gateway_harness import PEPPER, Gateway, gateway
from tests.timing import until

SIM = SimSettings(models=("sim",), speed=2000)
DAY_S = 86_400
MODELS = [{"name": "sim", "pool": "chat"}]
STORES: dict[str, Any] = {"tenant": "*", "models": MODELS, "responses": {"keep_days": 2, "max_bytes": 1024**2}}
PATH = "/v1/responses"


def body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "sim", "input": text, **fields}


@asynccontextmanager
async def store_in(file: Path, wall: Callable[[], float] = time.time) -> AsyncIterator[SqlResponses]:
    """Stored Responses in a SQLite file, as a process of its own opens them."""
    engine = open_engine(f"sqlite:///{file}")
    try:
        yield SqlResponses(engine, ResponseSealer([PEPPER], os.urandom), wall)
    finally:
        await engine.dispose()


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    await migrated_file(tmp_path / "store.db")
    return tmp_path / "store.db"


@asynccontextmanager
async def serving(file: Path, *engines: str, **options: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway whose Responses are in a file, and a client of `acme`."""
    wall = options.pop("wall", time.time)
    async with store_in(file, wall) as store, gateway(*engines, **{"policies": [STORES], "responses": store, **options}) as running:
        async with running.client() as client:
            yield running, client


async def streamed(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed Response; also of one that breaks."""
    raw = b""
    with contextlib.suppress(httpx.RemoteProtocolError):
        async with client.stream("POST", PATH, json=body(stream=True, **fields)) as reply:
            async for piece in reply.aiter_raw():
                raw += piece
    return [json.loads(line.removeprefix(b"data: ")) for line in raw.split(b"\n") if line.startswith(b"data: {")]


async def turn(client: httpx.AsyncClient, text: str, previous: str | None, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """One Response of a conversation."""
    fields |= {} if previous is None else {"previous_response_id": previous}
    if stream:
        told: dict[str, Any] = (await streamed(client, input=text, **fields))[-1]["response"]
        return told
    reply = await client.post(PATH, json=body(text, **fields))
    assert reply.status_code == 200, reply.text
    answered: dict[str, Any] = reply.json()
    return answered


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_conversation_of_20_turns_survives_other_engines_a_restart_and_a_second_replica(file: Path) -> None:
    said: list[dict[str, str]] = []
    previous = None
    async with SimEngine(SIM) as one, SimEngine(SIM) as other, serving(file, other.url) as (_, second):
        for half in range(2):  # the first gateway is started anew in the middle, and so is everything that it remembers
            async with serving(file, one.url) as (_, first):
                for number in range(10 * half, 10 * half + 10):
                    engine, client = ((one, first), (other, second))[number % 2]
                    answered = await turn(client, f"this is turn {number}", previous, stream=number % 3 == 0)
                    assert (answered["store"], answered["previous_response_id"]) == (True, previous)
                    said.append({"role": "user", "content": f"this is turn {number}"})
                    assert json.loads(engine.received[-1].body)["messages"] == said
                    said.append({"role": "assistant", "content": text_of(answered)})
                    previous = answered["id"]
        shown = (await second.get(f"{PATH}/{previous}")).json()
        assert (shown["id"], text_of(shown)) == (previous, said[-1]["content"])


async def test_nothing_of_a_stored_response_can_be_read_in_the_database(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        answered = await turn(client, "my secret is xylophone", None)
        assert (await client.get(f"{PATH}/{answered['id']}/input_items")).json()["data"][0]["content"][0][
            "text"
        ] == "my secret is xylophone"
    content = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert answered["id"].encode() in content
    assert b"xylophone" not in content
    assert text_of(answered).encode()[:20] not in content


async def test_another_tenants_responses_are_not_there(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client), running.client("bolt") as other:
        name = (await turn(client, "mine", None))["id"]
        unknown = "resp_" + "0" * 32
        for theirs in (name, unknown):
            reply = await other.post(PATH, json=body(previous_response_id=theirs))
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error["param"]) == (400, "previous_response_not_found", "previous_response_id")
            for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
                reply = await other.request(method, f"{PATH}/{theirs}{path}")
                assert (reply.status_code, reply.json()["error"]["type"]) == (404, "invalid_request_error")
        assert len(engine.received) == 1
        assert (await client.get(f"{PATH}/{name}")).status_code == 200


@pytest.mark.parametrize("name", ["resp_' OR 1=1", "a%00b", "x" * 65, "ä"])
async def test_what_is_no_id_is_not_looked_up(file: Path, name: str) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        assert (await client.get(f"{PATH}/{name}")).status_code == 404
        reply = await client.post(PATH, json=body(previous_response_id=name))
        assert reply.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("policy", "asked", "stored"),
    [
        (None, True, False),
        ({"store": True}, None, True),
        ({"store": True}, False, False),
        ({"store": False}, None, False),
        ({"store": False}, True, True),
    ],
    ids=["no-policy", "by-default", "declined", "not-by-default", "asked-for"],
)
async def test_a_response_is_stored_where_policy_and_request_say_so(
    file: Path, policy: dict[str, Any] | None, asked: bool | None, stored: bool
) -> None:
    policies = [{"tenant": "*", "models": MODELS, "responses": policy}]
    fields = {} if asked is None else {"store": asked}
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=policies) as (_, client):
        answered = (await client.post(PATH, json=body(**fields))).json()
        events = await streamed(client, **fields)
        assert answered["store"] is stored
        assert {event["response"]["store"] for event in events if "response" in event} == {stored}
        assert events[-1]["type"] == "response.completed"
        for name in (answered["id"], events[-1]["response"]["id"]):
            assert (await client.get(f"{PATH}/{name}")).status_code == (200 if stored else 404)


async def test_what_was_answered_is_shown_and_deleted(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        first = await turn(client, "one", None)
        second = await turn(client, "two", first["id"], stream=True)
        for answered in (first, second):
            reply = await client.get(f"{PATH}/{answered['id']}", params={"include": "message.output_text.logprobs", "stream": "false"})
            assert (reply.status_code, reply.json()) == (200, answered)
        for word in ("stream=true", "starting_after=3"):
            reply = await client.get(f"{PATH}/{first['id']}?{word}")
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, word.partition("=")[0])
        reply = await client.post(f"{PATH}/{first['id']}/cancel")
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
        for method, path, allowed in (("PUT", "", "GET, HEAD, DELETE"), ("POST", "/input_items", "GET, HEAD"), ("GET", "/cancel", "POST")):
            reply = await client.request(method, f"{PATH}/{first['id']}{path}")
            assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
        assert (await client.get(f"{PATH}/{first['id']}/outputs")).json()["error"]["code"] == "unknown_url"
        reply = await client.delete(f"{PATH}/{first['id']}")
        assert reply.json() == {"id": first["id"], "object": "response", "deleted": True}
        assert (await client.delete(f"{PATH}/{first['id']}")).status_code == 404
        reply = await client.post(PATH, json=body(previous_response_id=second["id"]))
        assert reply.json()["error"]["code"] == "previous_response_not_found"  # a part of the conversation is gone
        assert {record.endpoint for record in running.records} > {"/v1/responses/{id}", "/v1/responses/{id}/cancel"}


async def test_input_items_come_in_pages(file: Path) -> None:
    items = [{"role": "user", "content": f"part {number}"} for number in range(5)]
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        name = (await client.post(PATH, json=body(input=items))).json()["id"]

        async def page(**query: Any) -> tuple[list[str], dict[str, Any]]:
            reply = (await client.get(f"{PATH}/{name}/input_items", params=query)).json()
            return [item["content"][0]["text"][-1] for item in reply["data"]], reply

        assert (await page())[0] == ["4", "3", "2", "1", "0"]
        texts, reply = await page(order="asc", limit=2)
        assert (texts, reply["has_more"], reply["object"]) == (["0", "1"], True, "list")
        assert (reply["first_id"], reply["last_id"]) == (reply["data"][0]["id"], reply["data"][1]["id"])
        assert (await page(order="asc", after=reply["last_id"]))[0] == ["2", "3", "4"]
        assert (await page(order="desc", after=reply["last_id"], limit=1))[1]["has_more"] is False
        many = "&".join(f"p{number}=1" for number in range(40))
        assert (await client.get(f"{PATH}/{name}/input_items?{many}")).json()["error"]["code"] == "invalid_value"
        assert (await client.get(f"{PATH}/{name}/input_items?%FF=%&&=%zz")).status_code == 200
        for query, param in (({"limit": "0"}, "limit"), ({"limit": "x"}, "limit"), ({"order": "up"}, "order"), ({"after": "no"}, "after")):
            assert (await page_error(client, name, query)) == (400, param)


async def page_error(client: httpx.AsyncClient, name: str, query: dict[str, str]) -> tuple[int, str]:
    reply = await client.get(f"{PATH}/{name}/input_items", params=query)
    return reply.status_code, reply.json()["error"]["param"]


async def test_a_store_that_is_away_is_named_and_nothing_is_told_as_stored(file: Path) -> None:
    broken = file.with_name("broken.db")
    broken.write_bytes(b"no database")
    async with SimEngine(SIM) as engine, serving(broken, engine.url) as (running, client):
        reply = await client.post(PATH, json=body())
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "state_unavailable")
        assert "stores.sql" in reply.json()["error"]["message"]
        assert "retry-after" in reply.headers
        events = await streamed(client)
        assert [event["type"] for event in events].count("response.completed") == 0
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "failed")
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        sent = len(engine.received)
        reply = await client.post(PATH, json=body(previous_response_id="resp_1"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "state_unavailable")
        assert len(engine.received) == sent
        assert (await client.get(f"{PATH}/resp_1")).status_code == 503
        assert (await client.post(PATH, json=body(store=False))).status_code == 200
        assert [record.outcome for record in running.records] == [*["state_unavailable"] * 4, "ok"]
        assert [record.closing for record in running.records] == ["release", "settle", "", "release", "settle"]  # as far as it was sent
        assert running.open_holds == 0


async def test_a_tenant_without_room_is_refused_before_an_engine_works_for_it(file: Path) -> None:
    large = "x" * 300_000
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client), running.client("bolt") as other:
        replies = [await client.post(PATH, json=body(large)) for _ in range(5)]
        assert [reply.status_code for reply in replies] == [200, 200, 200, 429, 429]
        error = replies[-1].json()["error"]
        assert (error["code"], error["param"]) == ("insufficient_quota", "store")
        assert len(engine.received) == 4  # the last one was not sent
        assert (await client.post(PATH, json=body(large, store=False))).status_code == 200
        assert (await other.post(PATH, json=body(large))).status_code == 200
        await client.delete(f"{PATH}/{replies[0].json()['id']}")
        running.deps.full_of_responses.clear()  # as ten seconds later
        assert (await client.post(PATH, json=body(large))).status_code == 200


async def test_a_response_ends_after_its_days(file: Path) -> None:
    clock = {"now": time.time()}
    async with SimEngine(SIM) as engine, serving(file, engine.url, wall=lambda: clock["now"]) as (_, client):
        name = (await turn(client, "one", None))["id"]
        clock["now"] += 2 * DAY_S - 60
        assert (await client.get(f"{PATH}/{name}")).status_code == 200
        clock["now"] += 120
        assert (await client.get(f"{PATH}/{name}")).status_code == 404
        reply = await client.post(PATH, json=body(previous_response_id=name))
        assert reply.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_answers_that_are_kept_or_shared_are_stored_as_responses_of_their_own(file: Path, stream: bool) -> None:
    policies = [{**STORES, "cache": {}}]
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=policies) as (running, client):
        told = await asyncio.gather(*(turn(client, "the same", None, stream=stream, temperature=0) for _ in range(3)))
        told.append(await turn(client, "the same", None, stream=stream, temperature=0))
        assert len(engine.received) == 1
        assert len({text_of(answered) for answered in told}) == 1
        assert len({answered["id"] for answered in told}) == 4
        for answered in told:
            assert (await client.get(f"{PATH}/{answered['id']}")).json() == answered
        assert [record.cache for record in running.records[:4]].count("hit-exact") == 3


async def test_the_official_client_continues_shows_lists_and_deletes(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, _):
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.keys["acme"], max_retries=0) as client:
            first = await client.responses.create(model="sim", input="one", store=True)
            async with client.responses.stream(model="sim", input="two", previous_response_id=first.id) as events:
                second = await events.get_final_response()
            assert (second.previous_response_id, second.status) == (first.id, "completed")
            assert (await client.responses.retrieve(second.id)).output_text == second.output_text
            items = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=1)]
            assert [item.type for item in items] == ["message"]
            await client.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(first.id)
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model="sim", input="three", previous_response_id=second.id)
            assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
            with pytest.raises(openai.BadRequestError):
                await client.responses.cancel(second.id)


@pytest.mark.parametrize("where", ["caps", "for_project"])
async def test_a_conversation_counts_as_a_body_that_was_sent(file: Path, where: str) -> None:
    caps = {"caps": {"body_bytes": 2000}}
    policies = [{**STORES, **(caps if where == "caps" else {"for_project": {"default": caps}})}]
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=policies) as (running, client):
        first = await turn(client, "x" * 1500, None, max_output_tokens=4)
        reply = await client.post(PATH, json=body("y" * 500, previous_response_id=first["id"]))
        assert reply.status_code == 413
        assert len(engine.received) == 1
        await turn(client, "y", first["id"], max_output_tokens=4)
        assert running.records[-1].request_bytes > 1500


@pytest.mark.parametrize(("endpoint", "status"), [("/v1/responses", 404), ("/v1/chat/completions", 404), ("/v1/embeddings", 403)])
async def test_a_key_needs_the_right_to_responses_or_chats(file: Path, endpoint: str, status: int) -> None:
    rights = {"acme": Rights(endpoints=frozenset({endpoint}))}
    async with SimEngine(SIM) as engine, serving(file, engine.url, rights=rights) as (_, client):
        assert (await client.get(f"{PATH}/resp_1")).status_code == status


async def test_a_limit_on_requests_bounds_what_the_database_is_asked(file: Path) -> None:
    limits = [Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.DAY, 2)]
    async with SimEngine(SIM) as engine, serving(file, engine.url, limits=limits) as (running, client):
        assert [(await client.get(f"{PATH}/resp_1")).status_code for _ in range(3)] == [404, 404, 429]
        assert running.open_holds == 0
        assert (await client.get(f"{PATH}/resp_1", headers={"authorization": "Bearer none"})).status_code == 401


class GatedStore:
    """A store whose writes wait for the test."""

    def __init__(self, store: SqlResponses) -> None:
        self._store = store
        self.asked, self.open = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def add(self, new: StoredResponse, max_bytes: int) -> None:
        self.asked.set()
        await self.open.wait()
        await self._store.add(new, max_bytes)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
async def test_a_caller_hears_of_a_response_when_it_is_stored_and_not_before(file: Path, stream: bool, leaves: bool) -> None:
    async with store_in(file) as store, SimEngine(SIM) as engine:
        gated: Any = GatedStore(store)
        async with gateway(engine.url, policies=[STORES], responses=gated) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            content = json.dumps(body(stream=stream)).encode()
            head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.keys['acme']}\r\ncontent-type: application/json\r\n"
            writer.write(head.encode() + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
            await gated.asked.wait()
            early = reader.readuntil(b"response.completed") if stream else reader.read(1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(early, 0.2)
            if leaves:
                writer.transport.abort()
                await until(lambda: not running.connections.open)
            gated.open.set()
            raw = b"" if leaves else await reader.read(-1)
            (record,) = await running.recorded(1)
            assert (record.outcome, record.status, running.open_holds) == ("ok", 200, 0)
            writer.close()
            if not leaves:
                told = raw[raw.rindex(b'{"id":"resp_') :].partition(b"\n")[0]
                name = told[7 : told.index(b'"', 7)].decode()
                assert raw.count(b"response.completed") == 2 * stream
                assert await store.get(TenantId("acme"), name) is not None
                assert raw.index(b'"status":"completed"') > 0
        engine_of_test = open_engine(f"sqlite:///{file}")
        async with engine_of_test.connect() as connection:
            assert await connection.scalar(sa.select(sa.func.count()).select_from(stored_response)) == 1
        await engine_of_test.dispose()


async def test_what_an_end_users_response_was_is_found_by_a_digest_alone(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        answered = (await client.post(PATH, json=body(user="ann@acme.example"))).json()
        digest = running.deps.answers.digest_of_user("ann@acme.example")
        database = open_engine(f"sqlite:///{file}")
        assert await SqlResponseKeeper(database, time.time).erase(TenantId("acme"), [digest], None) == 1
        await database.dispose()
        assert (await client.get(f"{PATH}/{answered['id']}")).status_code == 404
    assert b"ann@acme.example" not in file.read_bytes()


async def test_a_caller_that_leaves_before_the_end_has_its_whole_answer_stored_or_none(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        async with client.stream("POST", PATH, json=body(stream=True, max_output_tokens=4000)) as reply:
            async for _ in reply.aiter_raw():
                break
        (record,) = await running.recorded(1)
        assert record.outcome in ("client_gone", "ok")
        database = open_engine(f"sqlite:///{file}")
        async with database.connect() as connection:
            stored = await connection.scalar(sa.select(sa.func.count()).select_from(stored_response))
        await database.dispose()
        assert stored == (1 if record.outcome == "ok" else 0)
