"""Conversations through whole gateways: what Responses add goes on over engines and replicas, and is nobody else's."""

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from backends.simengine import SimEngine, SimSettings
from domain.identity import TenantId
from gateway.telemetry.families import ENDPOINTS
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.responses import ResponseSealer
from tenancy.rights import Rights
from tenancy.stores.sql import SqlConversations, SqlResponseKeeper, SqlResponses, open_engine
from tests.databases import migrated_file
from tests.gateway_harness import PEPPER, Gateway, gateway

SIM = SimSettings(models=("sim",), speed=2000)
DAY_S = 86_400
MODELS = [{"name": "sim", "pool": "chat"}]
KEEPS: dict[str, Any] = {"tenant": "*", "models": MODELS, "responses": {"keep_days": 2, "max_bytes": 1024**2}}
PATH, RESPONSES = "/v1/conversations", "/v1/responses"


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    await migrated_file(tmp_path / "store.db")
    return tmp_path / "store.db"


@asynccontextmanager
async def serving(file: Path, *engines: str, **options: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway whose state is in a file, and a client of `acme`."""
    wall: Callable[[], float] = options.pop("wall", time.time)
    database = open_engine(f"sqlite:///{file}")
    sealer = ResponseSealer([PEPPER], os.urandom)
    stores = {"responses": SqlResponses(database, sealer, wall), "conversations": SqlConversations(database, sealer, wall)}
    try:
        async with gateway(*engines, **{"policies": [KEEPS], **stores, **options}) as running, running.client() as client:
            yield running, client
            assert {one.endpoint for one in running.records if one.outcome == "ok"} <= ENDPOINTS, "each route has its label in the metrics"
    finally:
        await database.dispose()


async def created(client: httpx.AsyncClient, **fields: Any) -> str:
    reply = await client.post(PATH, json=fields)
    assert reply.status_code == 200, reply.text
    name: str = reply.json()["id"]
    return name


async def turn(client: httpx.AsyncClient, name: str | dict[str, str], sent: Any, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """One Response in a conversation."""
    asked = {"model": "sim", "input": sent, "conversation": name, "max_output_tokens": 4, **fields}
    if not stream:
        reply = await client.post(RESPONSES, json=asked)
        assert reply.status_code == 200, reply.text
        answered: dict[str, Any] = reply.json()
        return answered
    raw = (await client.post(RESPONSES, json={**asked, "stream": True})).content
    events = [json.loads(line.removeprefix(b"data: ")) for line in raw.split(b"\n") if line.startswith(b"data: {")]
    assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]
    told: dict[str, Any] = events[-1]["response"]
    return told


async def refused(client: httpx.AsyncClient, method: str, path: str, **request: Any) -> tuple[int, str | None, str | None]:
    reply = await client.request(method, path, **request)
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


async def items_of(client: httpx.AsyncClient, name: str, **query: Any) -> list[dict[str, Any]]:
    reply = await client.get(f"{PATH}/{name}/items", params={"order": "asc", "limit": 100, **query})
    assert reply.status_code == 200, reply.text
    told: list[dict[str, Any]] = reply.json()["data"]
    return told


def text_of(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])


async def test_twenty_turns_over_two_gateways_are_one_conversation(file: Path) -> None:
    async with (
        SimEngine(SIM) as one,
        SimEngine(SIM) as other,
        serving(file, one.url) as (_, first),
        serving(file, other.url) as (_, second),
    ):
        name = await created(first, items=[{"role": "developer", "content": "be brief"}])
        told = [("developer", "be brief")]
        for number in range(20):
            engine, client = ((one, first), (other, second))[number % 2]
            given: str | dict[str, str] = name if number % 3 else {"id": name}
            answered = await turn(client, given, f"this is turn {number}", stream=number % 4 == 0)
            assert answered["conversation"] == {"id": name}
            assert answered["previous_response_id"] is None
            told.append(("user", f"this is turn {number}"))
            sent = [(message["role"], message["content"]) for message in json.loads(engine.received[-1].body)["messages"]]
            assert [text for _, text in sent] == [text for _, text in told]
            told += [("assistant", text_of(item)) for item in answered["output"]]
        items = await items_of(second, name)
        assert [(item["role"], text_of(item)) for item in items] == told
        assert items[-1] == answered["output"][-1]
        assert len({item["id"] for item in items}) == len(items)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_responses_at_once_lose_nothing_and_each_stays_together(file: Path, stream: bool) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, first), serving(file, engine.url) as (_, second):
        name = await created(first)
        answers = await asyncio.gather(*(turn((first, second)[n % 2], name, f"turn {n}", stream=stream) for n in range(8)))
        texts = [text_of(item) for item in await items_of(first, name)]
        turns = {(f"turn {number}", text_of(answered["output"][0])) for number, answered in enumerate(answers)}
        assert {(texts[at], texts[at + 1]) for at in range(0, len(texts), 2)} == turns


async def test_a_conversation_is_created_shown_changed_and_deleted(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        reply = await client.post(PATH, json={"metadata": {"topic": "tides"}, "items": [{"role": "user", "content": "hi"}]})
        made = reply.json()
        assert (made["object"], made["metadata"], type(made["created_at"])) == ("conversation", {"topic": "tides"}, int)
        assert made["id"].startswith("conv_")
        where = f"{PATH}/{made['id']}"
        assert (await client.get(where)).json() == made
        changed = (await client.post(where, json={"metadata": {"a": "b"}})).json()
        assert changed == {**made, "metadata": {"a": "b"}}
        assert (await client.get(where)).json() == changed
        assert (await client.delete(where)).json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
        for method, below in (
            ("GET", ""),
            ("POST", ""),
            ("DELETE", ""),
            ("GET", "/items"),
            ("GET", "/items/msg_1"),
            ("DELETE", "/items/msg_1"),
        ):
            request = {"json": {"metadata": {}}} if method == "POST" else {}
            assert await refused(client, method, where + below, **request) == (404, None, None)
        asked = {"model": "sim", "input": "x", "conversation": made["id"]}
        assert await refused(client, "POST", RESPONSES, json=asked) == (404, None, "conversation")
        assert (await client.post(PATH)).json()["metadata"] == {}  # a body is not needed
        assert not engine.received
        forms = {"/v1/conversations", "/v1/conversations/{id}", "/v1/conversations/{id}/items", "/v1/conversations/{id}/items/{item_id}"}
        assert {record.endpoint for record in running.records} == {*forms, RESPONSES}
        assert running.open_holds == 0


async def test_items_are_added_listed_shown_and_deleted(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        name = await created(client)
        where = f"{PATH}/{name}/items"
        empty = (await client.get(where)).json()
        assert empty == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
        call = {"type": "function_call", "call_id": "c1", "name": "tide", "arguments": "{}", "id": "fc_own"}
        sent = [{"role": "user", "content": "high?"}, call, {"type": "function_call_output", "call_id": "c1", "output": "2 m"}]
        added = (await client.post(where, json={"items": sent})).json()
        names = [item["id"] for item in added["data"]]
        assert (names[1], added["first_id"], added["last_id"], added["has_more"]) == ("fc_own", names[0], names[2], False)
        assert added["data"][0]["content"] == [{"type": "input_text", "text": "high?"}]
        assert await items_of(client, name) == added["data"]
        assert [item["id"] for item in (await client.get(where)).json()["data"]] == names[::-1]
        page = (await client.get(where, params={"order": "asc", "limit": 1, "after": names[0]})).json()
        assert ([item["id"] for item in page["data"]], page["has_more"]) == ([names[1]], True)
        included = {"include[]": ["message.output_text.logprobs", "reasoning.encrypted_content"]}
        assert (await client.get(f"{where}/{names[2]}", params=included)).json() == added["data"][2]
        answered = await turn(client, name, "so?")
        messages = json.loads(engine.received[-1].body)["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
        kept = (await client.delete(f"{where}/{names[2]}")).json()
        assert (kept["id"], kept["object"]) == (name, "conversation")
        assert await refused(client, "GET", f"{where}/{names[2]}") == (404, None, None)
        assert [item["id"] for item in await items_of(client, name)] == [*names[:2], (await items_of(client, name))[2]["id"]] + [
            item["id"] for item in answered["output"]
        ]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "invalid_value", "metadata"),
        ({"metadata": {"k": "x" * 513}}, "invalid_value", "metadata"),
        ({"metadata": {"k": 1}}, "invalid_value", "metadata"),
        ({"items": "text"}, "invalid_value", "items"),
        ({"items": [{"role": "user", "content": "x"}] * 21}, "invalid_value", "items"),
        ({"items": [{"role": "king", "content": "x"}]}, "invalid_value", "items[0].role"),
        ({"items": [{"role": "user", "content": "x"}, {"type": "web_search_call"}]}, "unsupported_parameter", "items[1].type"),
        ({"items": [{"role": "user", "content": "x", "id": "a/b"}]}, "invalid_value", "items[0].id"),
        ({"items": [{"role": "user", "content": "x", "id": "a"}] * 2}, "invalid_value", "items[1].id"),
        ([], None, None),
    ],
    ids=["pairs", "key", "value", "number", "text", "many", "role", "hosted", "no-id", "twice", "array"],
)
async def test_what_cannot_be_kept_is_refused_by_name(file: Path, body: Any, code: str | None, param: str | None) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        assert await refused(client, "POST", PATH, json=body) == (400, code, param)


async def test_bad_requests_of_items_say_where(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        name = await created(client, items=[{"role": "user", "content": "x", "id": "msg_a"}])
        where = f"{PATH}/{name}"
        again = [{"role": "user", "content": "y"}, {"role": "user", "content": "x", "id": "msg_a"}]
        for method, path, request, expected in (
            ("POST", where, {"json": {}}, ("missing_required_parameter", "metadata")),
            ("POST", f"{where}/items", {"json": {}}, ("missing_required_parameter", "items")),
            ("POST", f"{where}/items", {"json": {"items": []}}, ("invalid_value", "items")),
            ("POST", f"{where}/items", {"json": {"items": again}}, ("invalid_value", "items[1].id")),
            ("POST", f"{where}/items", {"content": b"{"}, (None, None)),
            ("GET", f"{where}/items", {"params": {"limit": "0"}}, ("invalid_value", "limit")),
            ("GET", f"{where}/items", {"params": {"order": "up"}}, ("invalid_value", "order")),
            ("GET", f"{where}/items", {"params": {"after": "no"}}, ("invalid_value", "after")),
            ("GET", f"{where}/items", {"params": {"include": "all"}}, ("invalid_value", "include[0]")),
        ):
            assert await refused(client, method, path, **request) == (400, *expected), (method, path, request)
        for method, path, allowed in (
            ("GET", PATH, "POST"),
            ("PUT", where, "GET, HEAD, POST, DELETE"),
            ("DELETE", f"{where}/items", "GET, HEAD, POST"),
            ("POST", f"{where}/items/msg_a", "GET, HEAD, DELETE"),
        ):
            reply = await client.request(method, path)
            assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
        assert [item["id"] for item in await items_of(client, name)] == ["msg_a"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "mutually_exclusive_parameters", "conversation"),
        ({"conversation": "conv_1", "background": True}, "unsupported_parameter", "conversation"),
        ({"conversation": 7}, "invalid_value", "conversation"),
        ({"conversation": ""}, "invalid_value", "conversation"),
        ({"conversation": {}}, "missing_required_parameter", "conversation.id"),
        ({"conversation": {"id": 7}}, "invalid_value", "conversation.id"),
    ],
    ids=["both", "background", "number", "empty", "no-id", "id-number"],
)
async def test_a_response_names_its_conversation_well_or_is_refused(file: Path, fields: dict[str, Any], code: str, param: str) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        assert await refused(client, "POST", RESPONSES, json={"model": "sim", "input": "x", **fields}) == (400, code, param)
        assert not engine.received


async def test_an_item_that_the_conversation_has_is_not_sent_again(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        name = await created(client)
        answered = await turn(client, name, "hi")
        again = {"model": "sim", "input": [*answered["output"], {"role": "user", "content": "go on"}], "conversation": name}
        assert await refused(client, "POST", RESPONSES, json=again) == (400, "invalid_value", "input[0].id")
        assert len(engine.received) == 1


async def test_another_tenants_conversations_are_not_there(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client), running.client("bolt") as other:
        name = await created(client, items=[{"role": "user", "content": "mine", "id": "msg_a"}])
        mine = await items_of(client, name)
        for theirs in (name, "conv_" + "0" * 32, "conv_' OR 1=1"):
            for method, below, request in (
                ("GET", "", {}),
                ("POST", "", {"json": {"metadata": {"a": "b"}}}),
                ("DELETE", "", {}),
                ("GET", "/items", {}),
                ("POST", "/items", {"json": {"items": [{"role": "user", "content": "x"}]}}),
                ("GET", "/items/msg_a", {}),
                ("DELETE", "/items/msg_a", {}),
            ):
                assert await refused(other, method, f"{PATH}/{theirs}{below}", **request) == (404, None, None)
            asked = {"model": "sim", "input": "x", "conversation": theirs}
            assert await refused(other, "POST", RESPONSES, json=asked) == (404, None, "conversation")
        assert not engine.received
        assert await items_of(client, name) == mine


async def test_nothing_of_a_conversation_can_be_read_in_the_database(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        name = await created(client, metadata={"word": "quetzal"}, items=[{"role": "user", "content": "a xylophone"}])
        answered = await turn(client, name, "a zeppelin", user="ann@acme.example")
    content = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert name.encode() in content
    for text in ("quetzal", "xylophone", "zeppelin", "ann@acme.example", text_of(answered["output"][0])[:20]):
        assert text.encode() not in content


@pytest.mark.parametrize("store", [False, True, None], ids=["declined", "asked-for", "default"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_the_conversation_has_the_answer_whether_the_response_is_stored_or_not(file: Path, stream: bool, store: bool | None) -> None:
    fields = {} if store is None else {"store": store}
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        name = await created(client)
        answered = await turn(client, name, "hi", stream=stream, **fields)
        assert answered["store"] is (store is not False)
        assert (await client.get(f"{RESPONSES}/{answered['id']}")).status_code == (404 if store is False else 200)
        assert [text_of(item) for item in await items_of(client, name)] == ["hi", text_of(answered["output"][0])]


async def test_a_policy_that_keeps_nothing_keeps_no_conversations(file: Path) -> None:
    async with SimEngine(SIM) as engine:
        async with serving(file, engine.url) as (_, client):
            name = await created(client)
        policies = [{"tenant": "*", "models": MODELS}]
        async with serving(file, engine.url, policies=policies) as (_, client):
            assert await refused(client, "POST", PATH, json={}) == (403, "insufficient_permissions", None)
            item = {"items": [{"role": "user", "content": "x"}]}
            assert await refused(client, "POST", f"{PATH}/{name}/items", json=item) == (403, "insufficient_permissions", None)
            asked = {"model": "sim", "input": "x", "conversation": name}
            assert await refused(client, "POST", RESPONSES, json=asked) == (403, "insufficient_permissions", "conversation")
            assert not engine.received
            assert (await client.get(f"{PATH}/{name}")).status_code == 200
            assert (await client.delete(f"{PATH}/{name}")).status_code == 200


async def test_a_conversation_ends_after_its_days(file: Path) -> None:
    clock = {"now": time.time()}
    async with SimEngine(SIM) as engine, serving(file, engine.url, wall=lambda: clock["now"]) as (_, client):
        name = await created(client)
        clock["now"] += 2 * DAY_S - 60
        await turn(client, name, "hi", store=False)
        clock["now"] += 120
        assert (await client.get(f"{PATH}/{name}")).status_code == 404
        assert await refused(client, "POST", RESPONSES, json={"model": "sim", "input": "x", "conversation": name}) == (
            404,
            None,
            "conversation",
        )
        database = open_engine(f"sqlite:///{file}")
        assert await SqlResponseKeeper(database, lambda: clock["now"]).sweep() == 1
        await database.dispose()


async def test_a_conversation_without_room_is_refused_before_an_engine_works_for_it(file: Path) -> None:
    large = "x" * 300_000
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        names = [await created(client) for _ in range(4)]
        name = names[0]
        asked = [{"model": "sim", "input": large, "conversation": one, "store": False} for one in names]
        assert [(await client.post(RESPONSES, json=one)).status_code for one in asked[:3]] == [200, 200, 200]
        for _ in range(2):
            assert await refused(client, "POST", RESPONSES, json=asked[3]) == (429, "insufficient_quota", "conversation")
        assert len(engine.received) == 4  # the last one was not sent
        item = {"items": [{"role": "user", "content": large}]}
        assert await refused(client, "POST", f"{PATH}/{name}/items", json=item) == (429, "insufficient_quota", None)
        assert [len(await items_of(client, one)) for one in names] == [2, 2, 2, 0]
        assert running.open_holds == 0


async def test_a_store_that_is_away_is_named_and_nothing_is_told_as_kept(file: Path) -> None:
    broken = file.with_name("broken.db")
    broken.write_bytes(b"no database")
    async with SimEngine(SIM) as engine, serving(broken, engine.url) as (running, client):
        for method, path, request in (
            ("POST", PATH, {"json": {}}),
            ("GET", f"{PATH}/conv_1", {}),
            ("GET", f"{PATH}/conv_1/items", {}),
            ("POST", RESPONSES, {"json": {"model": "sim", "input": "x", "conversation": "conv_1"}}),
        ):
            reply = await client.request(method, path, **request)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "state_unavailable")
            assert "stores.sql" in reply.json()["error"]["message"]
        assert not engine.received
        assert running.open_holds == 0
    async with SimEngine(SIM) as engine, serving(file, engine.url, conversations=None) as (_, client):
        assert (await refused(client, "GET", f"{PATH}/conv_1"))[:2] == (503, "state_unavailable")


async def test_what_the_guard_lets_pass_of_an_answer_is_what_the_conversation_has(file: Path) -> None:
    rule = {"id": "words", "kind": "pattern", "pattern": "[a-z]{4}", "mode": "redact", "on": ["output"]}
    policies = [{**KEEPS, "guards": {"rules": [rule]}}]
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=policies) as (_, client):
        name = await created(client)
        for stream in (False, True):
            answered = await turn(client, name, "hi", stream=stream, max_output_tokens=30)
            kept = (await items_of(client, name))[-1]
            assert kept == answered["output"][-1]
            assert "[" in text_of(kept)
            assert re.search("[a-z]{4}", re.sub(r"\[[^]]*\]", "", text_of(kept))) is None


async def test_erasing_an_end_user_removes_the_conversation(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        name, other = await created(client, items=[{"role": "user", "content": "seed"}]), await created(client)
        await turn(client, name, "hi", user="ann@acme.example", store=False)
        await turn(client, other, "hi", user="bob@acme.example", store=False)
        digest = running.deps.answers.digest_of_user("ann@acme.example")
        database = open_engine(f"sqlite:///{file}")
        assert await SqlResponseKeeper(database, time.time).erase(TenantId("acme"), [digest], None) == 1
        await database.dispose()
        assert (await client.get(f"{PATH}/{name}")).status_code == 404
        assert len(await items_of(client, other)) == 2


@pytest.mark.parametrize(("endpoint", "status"), [("/v1/responses", 404), ("/v1/chat/completions", 404), ("/v1/embeddings", 403)])
async def test_a_key_needs_the_right_to_responses_or_chats(file: Path, endpoint: str, status: int) -> None:
    rights = {"acme": Rights(endpoints=frozenset({endpoint}))}
    async with SimEngine(SIM) as engine, serving(file, engine.url, rights=rights) as (_, client):
        assert (await client.get(f"{PATH}/conv_1")).status_code == status


async def test_a_limit_on_requests_bounds_what_the_database_is_asked(file: Path) -> None:
    limits = [Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.DAY, 2)]
    async with SimEngine(SIM) as engine, serving(file, engine.url, limits=limits) as (running, client):
        assert [(await client.get(f"{PATH}/conv_1")).status_code for _ in range(3)] == [404, 404, 429]
        assert running.open_holds == 0
        assert (await client.get(f"{PATH}/conv_1", headers={"authorization": "Bearer none"})).status_code == 401


async def test_a_count_of_tokens_reads_the_conversation_and_adds_nothing(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        name = await created(client, items=[{"role": "user", "content": "word " * 400}])
        counted = [
            (await client.post(f"{RESPONSES}/input_tokens", json={"model": "sim", "input": "x", **fields})).json()["input_tokens"]
            for fields in ({}, {"conversation": name})
        ]
        assert counted[1] > counted[0] + 100
        assert len(await items_of(client, name)) == 1
        assert not engine.received


async def test_a_conversation_counts_as_a_body_that_was_sent(file: Path) -> None:
    policies = [{**KEEPS, "caps": {"body_bytes": 2000}}]
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=policies) as (_, client):
        name = await created(client, items=[{"role": "user", "content": "x" * 1500}])
        reply = await client.post(RESPONSES, json={"model": "sim", "input": "y" * 500, "conversation": name})
        assert (reply.status_code, len(engine.received)) == (413, 0)
        assert (await client.post(f"{PATH}/{name}/items", json={"items": [{"role": "user", "content": "x" * 2000}]})).status_code == 413


async def test_browsers_may_ask_where_an_origin_is_allowed(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        reply = await client.options(f"{PATH}/conv_1", headers={"origin": "https://app.example"})
        assert reply.status_code == 405  # as everywhere without an allowed origin


async def test_the_official_client_has_a_conversation(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, _):
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.keys["acme"], max_retries=0) as client:
            made = await client.conversations.create(metadata={"a": "b"}, items=[{"role": "user", "content": "hi"}])
            async with client.responses.stream(model="sim", input="two", conversation=made.id) as events:
                answered = await events.get_final_response()
            assert answered.conversation is not None
            assert answered.conversation.id == made.id
            listed = [item async for item in client.conversations.items.list(made.id, order="asc", limit=1)]
            assert [item.type for item in listed] == ["message"] * 3
            shown = await client.conversations.items.retrieve(listed[2].id or "", conversation_id=made.id)
            assert shown == listed[2]
            assert (await client.conversations.delete(made.id)).deleted is True
            with pytest.raises(openai.NotFoundError):
                await client.conversations.retrieve(made.id)
