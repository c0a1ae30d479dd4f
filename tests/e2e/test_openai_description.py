"""Answers are as OpenAI's own description of its API says, plain and streamed, on the routes of `tests.openai_description.ROUTES`."""

import json
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.telemetry.families import ENDPOINTS
from tenancy.responses import ResponseSealer
from tenancy.stores.sql import SqlResponses, open_engine
from tests.databases import migrated_file
from tests.gateway_harness import PEPPER, gateway
from tests.openai_description import ERROR, EVENTS, ROUTES, differences
from tests.stored_files import file_service

SIM = SimSettings(models=("sim",), speed=2000)
POLICY: dict[str, Any] = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "responses": {}}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
ASK: list[dict[str, str]] = [{"role": "user", "content": "what is the weather in Rome?"}]
RECORDING = {"file": ("a.wav", b"RIFF" + bytes(20_000))}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "of two choices": {"n": 2},
    "with log probabilities": {"logprobs": True, "top_logprobs": 3},
    "that calls a tool": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    "cut off": {"max_tokens": 2},
    "with usage": {"stream_options": {"include_usage": True}},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "that calls a tool": {
        "tools": [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}],
        "tool_choice": {"type": "function", "name": "weather"},
    },
    "cut off": {"max_output_tokens": 16},
    "with log probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
}
PASSED_ON: dict[str, str] = {
    r"(message|logprobs|data\.\d+): 'refusal' is a required property": "engines leave it out, and chats are passed on unchanged",
    r"choices\.\d+\.finish_reason: None is not (of type 'string'|one of .*)": "OpenAI's own chunks have null until the last one",
    r"choices\.\d+\.logprobs: None is not of type 'object'": "OpenAI's own chunks have it, too",
    r"usage: None is not of type 'object'": "OpenAI's own chunks have it, too, where the usage was asked for",
    r"data\.\d+\.role: '(user|system)' is not one of \['assistant'\]": "the messages of a request are seldom the assistant's",
    r"(^|\.)(\w+_at|\w+_file_id|errors|model): None is not of type '(integer|string|object)'": "OpenAI's own batches have null, too",
}
"""What may differ, and why."""


def check(route: str, answer: Any, kind: str = "application/json") -> None:
    """The answer is as described, but for `PASSED_ON`."""
    found = [one for one in differences(route, answer, kind) if not any(re.search(f"{known}$", one) for known in PASSED_ON)]
    assert found == [], json.dumps(answer)[:2000]


def events(reply: httpx.Response) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n") if line.startswith("data: {")]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway with everything that is stored."""
    await migrated_file(tmp_path / "store.db")
    engine = open_engine(f"sqlite:///{tmp_path / 'store.db'}")
    store = SqlResponses(engine, ResponseSealer([PEPPER], os.urandom), time.time)
    (tmp_path / "files").mkdir()
    async with SimEngine(SIM) as one, file_service(tmp_path / "files") as files:
        async with gateway(one.url, policies=[POLICY], responses=store, files=files) as running, running.client() as made:
            yield made
            assert {one.endpoint for one in running.records if one.outcome == "ok"} <= ENDPOINTS, "each route has its label in the metrics"
    await engine.dispose()


@pytest.mark.parametrize("fields", CHATS.values(), ids=CHATS)
async def test_chats(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    body = {"model": "sim", "messages": ASK, **fields}
    if "stream_options" not in fields:
        check("post /chat/completions", (await client.post("/v1/chat/completions", json=body)).json())
    streamed = events(await client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert streamed
    for event in streamed:
        check("post /chat/completions", event, EVENTS)


@pytest.mark.parametrize("fields", RESPONSES.values(), ids=RESPONSES)
async def test_responses(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    body = {"model": "sim", "input": "what is the weather in Rome?", **fields}
    made = (await client.post("/v1/responses", json=body)).json()
    check("post /responses", made)
    check("get /responses/{response_id}", (await client.get(f"/v1/responses/{made['id']}")).json())
    check("get /responses/{response_id}/input_items", (await client.get(f"/v1/responses/{made['id']}/input_items")).json())
    check("post /responses/input_tokens", (await client.post("/v1/responses/input_tokens", json=body)).json())
    streamed = events(await client.post("/v1/responses", json={**body, "stream": True}))
    assert len(streamed) > 3
    for event in streamed:
        check("post /responses", event, EVENTS)


async def test_what_else_models_answer(client: httpx.AsyncClient) -> None:
    check("get /models", (await client.get("/v1/models")).json())
    check("get /models/{model}", (await client.get("/v1/models/sim")).json())
    for fields in ({}, {"logprobs": 2}, {"n": 2}):
        check("post /completions", (await client.post("/v1/completions", json={"model": "sim", "prompt": "hi", **fields})).json())
    check("post /embeddings", (await client.post("/v1/embeddings", json={"model": "sim", "input": ["a", "b"]})).json())
    for route in ("transcriptions", "translations"):
        for form in ("json", "verbose_json"):
            heard = await client.post(f"/v1/audio/{route}", data={"model": "sim", "response_format": form}, files=RECORDING)
            check(f"post /audio/{route}", heard.json())


async def test_stored_chats(client: httpx.AsyncClient) -> None:
    made = (await client.post("/v1/chat/completions", json={"model": "sim", "messages": ASK, "store": True, "metadata": {"a": "b"}})).json()
    one = f"/v1/chat/completions/{made['id']}"
    check("get /chat/completions", (await client.get("/v1/chat/completions")).json())
    check("get /chat/completions/{completion_id}", (await client.get(one)).json())
    check("get /chat/completions/{completion_id}/messages", (await client.get(f"{one}/messages")).json())
    check("post /chat/completions/{completion_id}", (await client.post(one, json={"metadata": {"c": "d"}})).json())
    check("delete /chat/completions/{completion_id}", (await client.delete(one)).json())


async def test_files_uploads_and_batches(client: httpx.AsyncClient) -> None:
    line = json.dumps(
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "sim", "messages": ASK}}
    ).encode()
    file = (await client.post("/v1/files", files={"file": ("a.jsonl", line)}, data={"purpose": "batch"})).json()
    check("post /files", file)
    check("get /files", (await client.get("/v1/files")).json())
    check("get /files/{file_id}", (await client.get(f"/v1/files/{file['id']}")).json())
    sent = {"purpose": "batch", "filename": "b.jsonl", "bytes": len(line), "mime_type": "application/jsonl"}
    upload = (await client.post("/v1/uploads", json=sent)).json()
    check("post /uploads", upload)
    part = (await client.post(f"/v1/uploads/{upload['id']}/parts", files={"data": ("b", line)})).json()
    check("post /uploads/{upload_id}/parts", part)
    done = await client.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [part["id"]]})
    check("post /uploads/{upload_id}/complete", done.json())
    dropped = (await client.post("/v1/uploads", json=sent)).json()
    check("post /uploads/{upload_id}/cancel", (await client.post(f"/v1/uploads/{dropped['id']}/cancel")).json())
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"a": "b"}}
    batch = (await client.post("/v1/batches", json=wanted)).json()
    check("post /batches", batch)
    check("get /batches", (await client.get("/v1/batches")).json())
    check("get /batches/{batch_id}", (await client.get(f"/v1/batches/{batch['id']}")).json())
    check("post /batches/{batch_id}/cancel", (await client.post(f"/v1/batches/{batch['id']}/cancel")).json())
    check("delete /files/{file_id}", (await client.delete(f"/v1/files/{file['id']}")).json())


async def test_errors(client: httpx.AsyncClient) -> None:
    for reply in (
        await client.post("/v1/chat/completions", json={"model": "none", "messages": ASK}),
        await client.post("/v1/chat/completions", json={"model": "sim"}),
        await client.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"}),
        await client.get("/v1/nowhere"),
        await client.get("/v1/responses/resp_none"),
        await client.get("/v1/files/file-none"),
        await client.post("/v1/embeddings", json={"model": "sim", "input": "a"}, headers={"authorization": "Bearer none"}),
    ):
        assert reply.status_code >= 400
        check(ERROR, reply.json())


def test_a_wrong_answer_differs() -> None:
    assert differences("get /models", {"object": "list", "data": [{"id": "a"}]})
    assert differences(ERROR, {"message": "no"})


def test_no_route_of_the_description_is_left_out() -> None:
    source = Path(__file__).read_text()
    assert [route for route in ROUTES if f'"{route}"' not in source and not route.startswith("post /audio/")] == []
