"""Responses in the background through whole gateways: they go on without their callers, and any gateway shows, streams and cancels them."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa

from backends.simengine import SimEngine, SimSettings
from domain.identity import TenantId
from gateway.background.runs import BackgroundTimes
from gateway.config.settings import DrainSettings
from gateway.process.drain import drain
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.stores.sql import SqlResponseKeeper, open_engine
from tenancy.stores.sql.responses import stored_bytes
from tests.databases import migrated_file
from tests.gateway_harness import Gateway, gateway
from tests.response_stores import QUICK, response_stores
from tests.responses_wire import events as checked_events
from tests.timing import until

SIM = SimSettings(models=("sim",), speed=2000)
SLOW = SimSettings(models=("sim",), speed=1)
MODELS = [{"name": "sim", "pool": "chat"}]
STORES: dict[str, Any] = {"tenant": "*", "models": MODELS, "responses": {"max_bytes": 4 * 1024**2, "max_background": 3}}
PATH = "/v1/responses"
OVER = ("completed", "failed", "incomplete", "cancelled")
LONG = {"max_output_tokens": 60_000, "ignore_eos": True}
"""An answer that is not over before a test is."""


def body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "sim", "input": text, "background": True, **fields}


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    await migrated_file(tmp_path / "store.db")
    return tmp_path / "store.db"


@asynccontextmanager
async def serving(
    file: Path, *engines: str, times: BackgroundTimes = QUICK, **options: Any
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway whose Responses are in a file, and a client of `acme`."""
    async with response_stores(file, times) as (responses, runs):
        options = {"policies": [STORES], "responses": responses, "background": runs, **options}
        async with gateway(*engines, **options) as running, running.client() as client:
            yield running, client
            await until(lambda: not runs.running)


async def begun(client: httpx.AsyncClient, text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A Response in the background, as it was answered."""
    reply = await client.post(PATH, json=body(text, **fields))
    assert reply.status_code == 200, reply.text
    answered: dict[str, Any] = reply.json()
    assert (answered["status"], answered["background"], answered["output"], answered["store"]) == ("queued", True, [], True)
    return answered


async def shown(client: httpx.AsyncClient, name: str, *states: str) -> dict[str, Any]:
    """The Response once it is in one of these states."""
    while True:
        reply = await client.get(f"{PATH}/{name}")
        assert reply.status_code == 200, reply.text
        seen: dict[str, Any] = reply.json()
        if seen["status"] in states:
            return seen
        assert seen["status"] not in OVER, seen
        await asyncio.sleep(0.01)


async def replayed(client: httpx.AsyncClient, name: str, after: int | None = None) -> bytes:
    """The bytes of the events behind a number."""
    more = "" if after is None else f"&starting_after={after}"
    reply = await client.get(f"{PATH}/{name}?stream=true{more}")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), reply.text
    return b"".join(event + b"\n\n" for event in reply.content.split(b"\n\n")[:-1] if not event.startswith(b":"))


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_response_goes_from_queued_to_completed_and_can_be_continued(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        first = await begun(client, "my secret is xylophone")
        done = await shown(client, first["id"], *OVER)
        assert (done["status"], done["id"], done["background"], done["error"]) == ("completed", first["id"], True, None)
        assert done["usage"]["output_tokens"] > 0
        items = (await client.get(f"{PATH}/{first['id']}/input_items")).json()["data"]
        assert items[0]["content"][0]["text"] == "my secret is xylophone"
        reply = await client.post(PATH, json={"model": "sim", "input": "and?", "previous_response_id": first["id"]})
        assert reply.status_code == 200
        said = [message["content"] for message in json.loads(engine.received[-1].body)["messages"]]
        assert said == ["my secret is xylophone", text_of(done), "and?"]
        (record, *_) = [record for record in running.records if record.endpoint == PATH]
        assert (record.outcome, record.closing, record.status) == ("ok", "settle", 200)
        assert record.usage.completion_tokens == done["usage"]["output_tokens"]
        assert running.open_holds == 0
    content = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"xylophone" not in content
    assert text_of(done).encode()[:20] not in content


async def test_the_events_behind_every_number_are_those_of_the_stream(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client), serving(file, engine.url) as (_, other):
        raw = b""
        async with client.stream("POST", PATH, json=body("hi", stream=True, max_output_tokens=12)) as reply:
            async for piece in reply.aiter_raw():
                raw += piece
        events = checked_events(raw)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        names = [event["type"] for event in events]
        assert names[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert names[-1] in ("response.completed", "response.incomplete")
        name = events[0]["response"]["id"]
        assert (await client.get(f"{PATH}/{name}")).json() == events[-1]["response"]
        assert await replayed(other, name) == raw
        for after in range(len(events)):
            assert checked_events(await replayed(other, name, after)) == events[after + 1 :]
        assert await replayed(other, name, 10_000) == b""


async def test_events_come_while_the_response_is_made_at_another_gateway(file: Path) -> None:
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (_, client), serving(file, engine.url) as (_, other):
        name = (await begun(client, max_output_tokens=60))["id"]
        live, late = await asyncio.gather(replayed(other, name), replayed(client, name, 1))
        events = checked_events(live)
        assert events[-1]["response"]["status"] in ("completed", "incomplete")
        assert checked_events(late) == events[2:]


async def test_the_caller_may_leave_its_stream(file: Path) -> None:
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (running, client):
        seen = b""
        async with client.stream("POST", PATH, json=body(stream=True, max_output_tokens=80)) as reply:
            async for piece in reply.aiter_raw():
                seen += piece
                if b"output_text.delta" in seen:
                    break
        name = checked_events(seen[: seen.rindex(b"\n\n") + 2])[0]["response"]["id"]
        done = await shown(client, name, "completed", "incomplete")
        assert text_of(done)
        whole = await replayed(client, name)
        assert whole.startswith(seen[: seen.rindex(b"\n\n") + 2])
        assert engine.counters.aborted == 0
        assert next(record.outcome for record in running.records if record.endpoint == PATH) == "ok"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_cancelled_response_stops_its_engine_and_is_booked_once(file: Path, where: str) -> None:
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (running, client), serving(file, engine.url) as (_, other):
        asked = client if where == "here" else other
        name = (await begun(client, **LONG))["id"]
        following = asyncio.create_task(replayed(other, name))
        await shown(client, name, "in_progress")
        reply = await asked.post(f"{PATH}/{name}/cancel")
        assert (reply.status_code, reply.json()["status"], reply.json()["id"]) == (200, "cancelled", name)
        await until(lambda: engine.counters.aborted == 1)
        again = await asked.post(f"{PATH}/{name}/cancel")
        assert (again.status_code, again.json()) == (200, reply.json())
        assert (await client.get(f"{PATH}/{name}")).json() == reply.json()
        events = checked_events(await following)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (events[-1]["type"], events[-1]["response"]) == ("response.incomplete", reply.json())
        await until(lambda: any(record.endpoint == PATH for record in running.records))
        (record,) = [record for record in running.records if record.endpoint == PATH]
        assert (record.outcome, record.closing) == ("client_gone", "estimate")  # as of a caller that leaves
        assert record.usage.completion_tokens > 0
        assert running.open_holds == 0
        refused = await client.post(PATH, json={"model": "sim", "input": "and?", "previous_response_id": name})
        assert refused.json()["error"]["code"] == "previous_response_not_found"


async def test_a_response_that_is_over_is_not_cancelled(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        name = (await begun(client, max_output_tokens=4))["id"]
        done = await shown(client, name, *OVER)
        reply = await client.post(f"{PATH}/{name}/cancel")
        assert (reply.status_code, reply.json()) == (200, done)


async def test_a_deleted_response_is_not_there_and_its_engine_stops(file: Path) -> None:
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (_, client), serving(file, engine.url) as (_, other):
        name = (await begun(client, **LONG))["id"]
        await shown(client, name, "in_progress")
        assert (await other.delete(f"{PATH}/{name}")).json()["deleted"] is True
        await until(lambda: engine.counters.aborted == 1)
        for method, path in (("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            assert (await other.request(method, f"{PATH}/{name}{path}")).status_code == 404
        assert await bytes_of(file) == 0


async def bytes_of(file: Path) -> int:
    """What the database counts as stored, of all tenants."""
    database = open_engine(f"sqlite:///{file}")
    async with database.connect() as connection:
        total = await connection.scalar(sa.select(sa.func.coalesce(sa.func.sum(stored_bytes.c.bytes), 0)))
    await database.dispose()
    return int(total or 0)


async def test_another_tenants_responses_are_not_there(file: Path) -> None:
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (running, client), running.client("bolt") as other:
        name = (await begun(client, max_output_tokens=40))["id"]
        for method, path in (("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            reply = await other.request(method, f"{PATH}/{name}{path}")
            assert (reply.status_code, reply.json()["error"]["type"]) == (404, "invalid_request_error")
        assert (await shown(client, name, *OVER))["status"] in ("completed", "incomplete")


@pytest.mark.parametrize(
    ("policy", "fields", "param"),
    [
        ({}, {"store": False}, "store"),
        ({"store": False}, {}, "store"),
        (None, {"store": True}, "background"),
        ({"max_background": 0}, {}, "background"),
        ({}, {"stream": "yes"}, "stream"),
    ],
    ids=["declined", "not-by-default", "no-policy", "none-allowed", "stream-is-none"],
)
async def test_what_cannot_be_stored_is_not_run(file: Path, policy: Any, fields: dict[str, Any], param: str) -> None:
    policies = [{"tenant": "*", "models": MODELS, "responses": policy}]
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=policies) as (_, client):
        reply = await client.post(PATH, json=body(**fields))
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
        assert not [one for one in engine.received if one.body]


async def test_events_are_kept_of_responses_in_the_background_alone(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        usual = (await client.post(PATH, json={"model": "sim", "input": "hi"})).json()["id"]
        reply = await client.get(f"{PATH}/{usual}?stream=true")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")
        assert (await client.post(f"{PATH}/{usual}/cancel")).status_code == 400
        name = (await begun(client))["id"]
        for query, param in (
            ("stream=1", "stream"),
            ("starting_after=1", "starting_after"),
            ("stream=true&starting_after=x", "starting_after"),
        ):
            reply = await client.get(f"{PATH}/{name}?{query}")
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_tenant_has_so_many_under_way(file: Path) -> None:
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (running, client), running.client("bolt") as other:
        names = [(await begun(client, f"{number}", **LONG))["id"] for number in range(3)]
        reply = await client.post(PATH, json=body())
        assert (reply.status_code, reply.json()["error"]["param"]) == (429, "background")
        theirs = (await begun(other, max_output_tokens=4))["id"]
        assert (await client.post(f"{PATH}/{names[0]}/cancel")).status_code == 200
        names.append((await begun(client, "again", **LONG))["id"])
        for name in names:
            assert (await client.post(f"{PATH}/{name}/cancel")).status_code == 200
        await shown(other, theirs, *OVER)
        await until(lambda: running.open_holds == 0)


async def test_limits_refuse_before_anything_is_kept(file: Path) -> None:
    limits = [Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 5)]
    async with SimEngine(SIM) as engine, serving(file, engine.url, limits=limits) as (_, client):
        reply = await client.post(PATH, json=body("a long text " * 20))
        assert reply.status_code in (400, 429)
        assert await bytes_of(file) == 0


async def test_an_engine_that_fails_fails_the_response(file: Path) -> None:
    async with serving(file, "http://127.0.0.1:9", engines={"connect_timeout_s": 0.2}) as (_, client):
        reply = await client.post(PATH, json=body())
        if reply.status_code == 200:  # the engine is not known to be away yet
            done = await shown(client, reply.json()["id"], "failed")
            assert done["error"]["message"]
            events = checked_events(await replayed(client, done["id"]))
            assert [event["type"] for event in events] == ["response.created", "response.queued", "response.failed"]
            assert events[-1]["response"] == done
        else:
            assert reply.status_code == 503


async def test_a_response_without_room_fails_by_name(file: Path) -> None:
    policies = [{**STORES, "responses": {"max_bytes": 1024**2}}]
    fast = SimSettings(models=("sim",), speed=100_000)
    async with SimEngine(fast) as engine, serving(file, engine.url, policies=policies) as (_, client):
        for _ in range(3):
            assert (await client.post(PATH, json={"model": "sim", "input": "x" * 300_000})).status_code == 200
        name = (await begun(client, "x" * 100_000, max_output_tokens=20_000))["id"]
        done = await shown(client, name, "failed")
        assert "bytes that the policy allows" in done["error"]["message"]
        assert checked_events(await replayed(client, name))[-1]["response"] == done
        reply = await client.post(PATH, json=body("x" * 300_000))
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "insufficient_quota")


async def test_a_response_whose_worker_died_fails_once_the_lease_is_over(file: Path) -> None:
    times = BackgroundTimes(flush_s=0.02, look_s=3600.0, lease_s=0.0)
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (_, other):
        async with serving(file, engine.url, times=times) as (running, client):
            name = (await begun(client, **LONG))["id"]
            await until(lambda: bool(running.deps.background and running.deps.background.running))
            seen = await shown(other, name, "failed")  # its worker renews no lease, as one that was killed
            assert (seen["error"]["code"], "stopped before it was complete" in seen["error"]["message"]) == ("server_error", True)
            assert checked_events(await replayed(other, name))[-1]["response"] == seen
            await until(lambda: engine.counters.aborted == 1)  # it lives nevertheless, and stops where it finds out


async def test_what_is_left_at_the_end_of_the_grace_fails_and_the_rest_is_complete(file: Path) -> None:
    async with SimEngine(SLOW) as slow, SimEngine(SIM) as quick, serving(file, quick.url) as (_, other):
        async with serving(file, slow.url) as (running, client):
            name = (await begun(client, **LONG))["id"]
            await shown(client, name, "in_progress")

            class Server:
                def close(self) -> None:
                    pass

            await drain(Server(), running.connections, running.deps, DrainSettings(accept_s=0, grace_s=0), 0)
            assert running.deps.background is not None
            assert not running.deps.background.running
        done = await shown(other, name, "failed")
        assert done["error"]["code"] == "server_error"
        assert slow.counters.aborted == 1


async def test_an_erased_end_users_response_ends(file: Path) -> None:
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (running, client):
        name = (await begun(client, user="ann@acme.example", **LONG))["id"]
        await shown(client, name, "in_progress")
        digest = running.deps.answers.digest_of_user("ann@acme.example")
        database = open_engine(f"sqlite:///{file}")
        assert await SqlResponseKeeper(database, time.time).erase(TenantId("acme"), [digest], None) == 1
        await database.dispose()
        await until(lambda: engine.counters.aborted == 1)
        assert (await client.get(f"{PATH}/{name}")).status_code == 404


async def test_equal_requests_and_kept_answers_are_responses_of_their_own(file: Path) -> None:
    policies = [{**STORES, "cache": {}}]
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=policies) as (_, client):
        names = [(await begun(client, "the same", temperature=0))["id"] for _ in range(2)]
        told = [await shown(client, name, "completed") for name in names]
        names.append((await begun(client, "the same", temperature=0))["id"])
        told.append(await shown(client, names[2], "completed"))
        assert len({text_of(answered) for answered in told}) == 1
        assert len({answered["id"] for answered in told}) == 3
        assert len([one for one in engine.received if one.body]) == 1


async def test_what_a_guard_rule_blocks_is_a_response_that_failed(file: Path) -> None:
    rule = {"id": "keys", "kind": "words", "words": ["open sesame"], "mode": "block"}
    policies = [{**STORES, "guards": {"rules": [rule]}}]
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=policies) as (running, client):
        name = (await begun(client, "say open sesame"))["id"]
        done = await shown(client, name, "failed")
        assert (done["error"]["code"], done["output"]) == ("invalid_prompt", [])
        assert not [one for one in engine.received if one.body]
        record = next(record for record in running.records if record.endpoint == PATH)
        assert (record.outcome, record.status, running.open_holds) == ("guard_blocked", 400, 0)


async def test_the_official_client_polls_streams_and_cancels(file: Path) -> None:
    async with SimEngine(SLOW) as engine, serving(file, engine.url) as (running, _):
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.keys["acme"], max_retries=0) as client:
            made = await client.responses.create(model="sim", input="hi", background=True, max_output_tokens=30)
            assert (made.status, made.background) == ("queued", True)
            while (made := await client.responses.retrieve(made.id)).status in ("queued", "in_progress"):
                await asyncio.sleep(0.01)
            stream = await client.responses.retrieve(made.id, stream=True, starting_after=2)
            events = [event async for event in stream]
            assert events[0].sequence_number == 3
            assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == made.output_text
            long = await client.responses.create(
                model="sim", input="hi", background=True, stream=True, max_output_tokens=60_000, extra_body={"ignore_eos": True}
            )
            name = ""
            with contextlib.suppress(StopAsyncIteration):
                async for event in long:
                    if event.type == "response.created":
                        name = event.response.id
                    if event.type == "response.output_text.delta":
                        break
            await long.close()
            ended = await client.responses.cancel(name)
            assert ended.status == "cancelled"
