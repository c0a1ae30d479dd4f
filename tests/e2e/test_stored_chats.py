"""Stored chat completions through whole gateways: kept where the policy keeps them, found again, changed, deleted, and nobody else's."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa

from backends.simengine import FaultRule, SimEngine, SimSettings
from domain.identity import TenantId
from tenancy.stores.sql import SqlResponseKeeper
from tenancy.stores.sql.responses import stored_response
from tests.e2e.test_responses_state import MODELS, STORES, file, serving, store_in

SIM = SimSettings(models=("sim",), speed=2000)
PATH = "/v1/chat/completions"
__all__ = ["file"]


async def say(client: httpx.AsyncClient, text: str = "hi", **fields: Any) -> dict[str, Any]:
    body = {
        "model": "sim",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}],
        "store": True,
        **fields,
    }
    reply = await client.post(PATH, json=body)
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()
    return told


async def streamed(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    reply = await client.post(
        PATH, json={"model": "sim", "messages": [{"role": "user", "content": "hi"}], "stream": True, "store": True, **fields}
    )
    assert reply.text.endswith("data: [DONE]\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n") if line.startswith("data: {")]


async def test_a_plain_completion_is_found_as_it_was_answered(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        told = await say(client, metadata={"topic": "greeting"})
        assert (await client.get(f"{PATH}/{told['id']}")).json() == {**told, "metadata": {"topic": "greeting"}}
        messages = (await client.get(f"{PATH}/{told['id']}/messages")).json()
        assert [(one["role"], one["content"]) for one in messages["data"]] == [("system", "be brief"), ("user", "hi")]
        assert messages["first_id"] == f"{told['id']}-0"
        rest = (await client.get(f"{PATH}/{told['id']}/messages", params={"after": messages["first_id"], "limit": 1})).json()
        assert ([one["role"] for one in rest["data"]], rest["has_more"]) == (["user"], False)


@pytest.mark.parametrize("with_usage", [True, False], ids=["asked for usage", "without usage"])
async def test_a_stream_is_stored_as_the_plain_reply_that_it_amounts_to(file: Path, with_usage: bool) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        options = {"stream_options": {"include_usage": True}} if with_usage else {}
        events = await streamed(client, logprobs=True, top_logprobs=2, **options)
        told = (await client.get(f"{PATH}/{events[0]['id']}")).json()
        assert told["object"] == "chat.completion"
        (choice,) = told["choices"]
        assert choice["message"]["content"] == "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
        assert choice["finish_reason"] in ("stop", "length")
        said = [token for e in events if e["choices"] for token in (e["choices"][0].get("logprobs") or {}).get("content") or ()]
        assert ((choice.get("logprobs") or {}).get("content") or []) == said
        usage = (await running.recorded(1))[0].usage
        assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (usage.prompt_tokens, usage.completion_tokens)


async def test_pages_have_every_completion_once_in_either_order_and_by_filter(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        ids = [(await say(client, f"number {n}", metadata={"half": str(n // 4)}))["id"] for n in range(7)]
        for order, expected in (("asc", ids), ("desc", ids[::-1])):
            found: list[str] = []
            after: dict[str, str] = {}
            while True:
                page = (await client.get(PATH, params={"limit": 3, "order": order, **after})).json()
                found += [one["id"] for one in page["data"]]
                assert page["last_id"] == found[-1]
                if not page["has_more"]:
                    break
                after = {"after": page["last_id"]}
            assert found == expected
        halves = (await client.get(PATH, params={"metadata[half]": "1"})).json()
        assert [one["id"] for one in halves["data"]] == ids[4:]
        assert len((await client.get(PATH, params={"model": "sim"})).json()["data"]) == 7
        assert (await client.get(PATH, params={"model": "other"})).json()["data"] == []
        for params in ({"after": "chatcmpl-none"}, {"limit": "0"}, {"order": "up"}):
            refused = await client.get(PATH, params=params)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(params)))


async def test_what_is_stored_is_no_other_tenants_and_no_response(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        told = await say(client)
        response = (await client.post("/v1/responses", json={"model": "sim", "input": "hi"})).json()
        async with running.client("bolt") as other:
            for reply in (
                await other.get(f"{PATH}/{told['id']}"),
                await other.get(f"{PATH}/{told['id']}/messages"),
                await other.post(f"{PATH}/{told['id']}", json={"metadata": {"a": "b"}}),
                await other.delete(f"{PATH}/{told['id']}"),
                await client.get(f"/v1/responses/{told['id']}"),
                await client.get(f"{PATH}/{response['id']}"),
                await client.get(f"{PATH}/chatcmpl-never"),
            ):
                assert reply.status_code == 404, reply.text
            assert (await other.get(PATH)).json()["data"] == []
        assert [one["id"] for one in (await client.get(PATH)).json()["data"]] == [told["id"]]
        continued = await client.post("/v1/responses", json={"model": "sim", "input": "hi", "previous_response_id": told["id"]})
        assert continued.json()["error"]["code"] == "previous_response_not_found"


async def test_metadata_can_be_changed_and_a_completion_deleted(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        told = await say(client, metadata={"a": "b"})
        changed = (await client.post(f"{PATH}/{told['id']}", json={"metadata": {"c": "d" * 512}})).json()
        assert changed == {**told, "metadata": {"c": "d" * 512}} == (await client.get(f"{PATH}/{told['id']}")).json()
        for wrong, kind in (
            ({"metadata": {"a": 1}}, "metadata"),
            ({"metadata": {"a": "x" * 513}}, "metadata"),
            ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
            ({}, "metadata"),
        ):
            refused = await client.post(f"{PATH}/{told['id']}", json=wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, kind)
        assert (await client.post(f"{PATH}/{told['id']}", content=b"[1]")).status_code == 400
        assert (await client.put(f"{PATH}/{told['id']}")).status_code == 405
        assert (await client.delete(f"{PATH}/{told['id']}")).json() == {
            "id": told["id"],
            "object": "chat.completion.deleted",
            "deleted": True,
        }
        assert (await client.get(f"{PATH}/{told['id']}")).status_code == 404
        assert (await client.delete(f"{PATH}/{told['id']}")).status_code == 404


async def test_nothing_is_stored_that_is_not_asked_for_or_that_the_policy_does_not_keep(file: Path) -> None:
    async with SimEngine(SIM) as engine:
        async with serving(file, engine.url) as (_, client):
            await say(client, store=False)
            await say(client, store=None)
            refused = await client.post(PATH, json={"model": "sim", "messages": [{"role": "user", "content": "hi"}], "store": "yes"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")
            wrong = await client.post(
                PATH, json={"model": "sim", "messages": [{"role": "user", "content": "hi"}], "store": True, "metadata": {"a": 1}}
            )
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "metadata")
            assert (await client.get(PATH)).json()["data"] == []
        async with serving(file, engine.url, policies=[{"tenant": "*", "models": MODELS}]) as (_, client):
            told = await say(client)
            assert (await client.get(f"{PATH}/{told['id']}")).status_code == 404


async def test_a_broken_answer_is_not_stored(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        engine.inject([FaultRule("reset_mid_stream", after=2)])
        with pytest.raises(httpx.RemoteProtocolError):
            await streamed(client)
        assert (await client.get(PATH)).json()["data"] == []


async def test_what_is_kept_is_sealed_expires_counts_and_is_erased(file: Path) -> None:
    policy = {**STORES, "responses": {"keep_days": 2, "max_bytes": 1024**2}}
    async with SimEngine(SIM) as engine, serving(file, engine.url, policies=[policy]) as (running, client):
        told = await say(client, "a secret of Ann", user="ann", metadata={"name": "Ann"})
        async with store_in(file) as store:
            async with store._engine.connect() as connection:
                (row,) = (await connection.execute(sa.select(stored_response))).mappings().all()
            assert b"Ann" not in row["sealed"]
            assert b"secret" not in row["sealed"]
            digest = running.deps.answers.digest_of_user("ann")
            assert await SqlResponseKeeper(store._engine, time.time).erase(TenantId("acme"), [digest], None) == 1
        assert (await client.get(f"{PATH}/{told['id']}")).status_code == 404
        replies = [
            await client.post(PATH, json={"model": "sim", "messages": [{"role": "user", "content": "x" * 100_000}], "store": True})
            for _ in range(12)
        ]
        assert {reply.status_code for reply in replies[:9]} == {200}
        assert {reply.status_code for reply in replies[10:]} == {429}
        large = replies[-1]
        assert "stored" in large.json()["error"]["message"]


async def test_changes_at_once_keep_one_of_them_whole(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (_, client):
        told = await say(client)
        await asyncio.gather(*(client.post(f"{PATH}/{told['id']}", json={"metadata": {"n": str(n) * 100}}) for n in range(8)))
        kept = (await client.get(f"{PATH}/{told['id']}")).json()["metadata"]["n"]
        assert len(set(kept)) == 1
        await client.delete(f"{PATH}/{told['id']}")
        async with store_in(file) as store, store._engine.connect() as connection:
            assert await connection.scalar(sa.text("SELECT bytes FROM stored_bytes")) == 0


async def test_the_official_client_finds_changes_and_deletes_what_it_stored(file: Path) -> None:
    async with SimEngine(SIM) as engine, serving(file, engine.url) as (running, client):
        async with openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key=running.keys["acme"], max_retries=0) as api:
            messages: Any = [{"role": "user", "content": "hi"}]
            made = await api.chat.completions.create(model="sim", messages=messages, store=True, metadata={"a": "b"})
            assert [one.id async for one in api.chat.completions.list(metadata={"a": "b"})] == [made.id]
            assert [one.id async for one in api.chat.completions.list(metadata={"a": "c"})] == []
            assert (await api.chat.completions.update(made.id, metadata={"a": "c"})).metadata == {"a": "c"}
            assert [one.content async for one in api.chat.completions.messages.list(made.id)] == ["hi"]
            assert (await api.chat.completions.delete(made.id)).deleted
            with pytest.raises(openai.NotFoundError):
                await api.chat.completions.retrieve(made.id)
