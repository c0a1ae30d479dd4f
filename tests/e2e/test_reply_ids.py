"""The `id` in a reply's body is made of the gateway's own id of the request, on every route: an engine that counts its replies would tell
each caller how much all others send."""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from backends.dialects import DIALECTS
from backends.simengine import SimEngine, SimSettings
from domain.ask import Endpoint
from tests.gateway_harness import gateway
from tests.scripted_server import Peer, Script, scripted

OURS = re.compile(r"req-[0-9a-f]+-[0-9a-f]{24}")
PREFIX = {
    Endpoint.CHAT: "chatcmpl-",
    Endpoint.COMPLETIONS: "cmpl-",
    Endpoint.EMBEDDINGS: "embd-",
    Endpoint.RERANK: "rerank-",
    Endpoint.SCORE: "score-",
    Endpoint.CLASSIFY: "classify-",
    Endpoint.POOLING: "pool-",
}
COMPUTING = [endpoint for endpoint in Endpoint if endpoint.computes and not (endpoint.sound or endpoint.duplex)]
"""Replies of tokenizers have no id, nor have those about sound; streamed transcripts are below."""
ROUTES = [(endpoint, streamed) for endpoint in COMPUTING for streamed in (False, True) if endpoint.generates or not streamed]
VALUES = {"embedding": [0.5], "relevance_score": 0.5, "score": 0.5, "probs": [1.0], "data": [0.5]}
"""Values of the items of replies for which nothing is generated."""


def routes(*dialects: str) -> Any:
    """Every route of each dialect's engines, as a mark."""
    cases = {
        f"{dialect}-{endpoint.word}{' streamed' if streamed else ''}": (dialect, endpoint, streamed)
        for dialect in dialects
        for endpoint, streamed in ROUTES
        if DIALECTS[dialect].routes.get(endpoint, "") is not None
    }
    return pytest.mark.parametrize(("dialect", "endpoint", "streamed"), cases.values(), ids=cases.keys())


MODELS = b'{"object":"list","data":[{"id":"sim"}]}'
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def counting(spaced: bool) -> Script:
    """An engine that draws ids of its own, in order; `spaced` as Python writes JSON."""
    numbers = itertools.count(7)
    encoder = json.JSONEncoder(separators=None if spaced else (",", ":"))

    def dumped(document: dict[str, Any]) -> bytes:
        return encoder.encode(document).encode()

    def reply(path: str, body: dict[str, Any]) -> list[bytes]:
        own = {"id": f"x-{next(numbers)}", "model": "sim"}
        scoring = next((one for one in Endpoint if not one.generates and path in (one.path, *one.aliases)), None)
        if scoring is not None:
            item = {"index": 0, scoring.item_fields[0]: VALUES[scoring.item_fields[0]]}
            return [dumped({"object": "list", scoring.reply_field: [item], "usage": USAGE, **own})]
        chat = path == Endpoint.CHAT.path
        if not body.get("stream"):
            said: dict[str, Any] = {"message": {"content": "", "tool_calls": [CALL]}} if chat else {"text": 'an "id":"x-7"'}
            return [dumped({**own, "object": "reply", "choices": [{"index": 0, **said, "finish_reason": "stop"}], "usage": USAGE})]
        kind = "chat.completion.chunk" if chat else "text_completion"
        parts: list[dict[str, Any]] = [{"delta": {"content": "a"}}, {"delta": {"tool_calls": [CALL]}}] if chat else [{"text": "a"}] * 2
        events = [{**own, "object": kind, "choices": [{"index": 0, **part, "finish_reason": None}]} for part in parts]
        events.append({**own, "object": kind, "choices": [{"index": 0, **parts[-1], "finish_reason": "stop"}], "usage": USAGE})
        return [b"data: %b\n\n" % dumped(event) for event in events] + [b"data: [DONE]\n\n"]

    async def play(peer: Peer) -> None:
        while request := await peer.request():
            head, _, body = request.partition(b"\r\n\r\n")
            asked = json.loads(body) if body else {}
            parts = reply(head.split()[1].decode(), asked) if head.startswith(b"POST") else [MODELS]
            kind = b"text/event-stream" if asked.get("stream") else b"application/json"
            whole = b"".join(parts)
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(whole)))
            for part in parts:
                await peer.send(part)
                await asyncio.sleep(0)

    return play


def documents(reply: httpx.Response) -> list[dict[str, Any]]:
    """The JSON documents of a reply, one for each event of a stream."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return [reply.json()]
    return [json.loads(line[6:]) for line in reply.text.split("\n\n") if line.startswith("data: {")]


async def ids(client: httpx.AsyncClient, endpoint: Endpoint, streamed: bool) -> tuple[str | None, str]:
    """The id in every document of one reply (None where it has none), and the gateway's own id of the request."""
    body = {**json.loads(endpoint.probe), "model": "sim", **({"stream": True} if streamed else {})}
    if endpoint.generates:
        body |= {"max_tokens": None, "temperature": 0}  # an answer that ends by itself is kept
    reply = await client.post(endpoint.path, json=body)
    assert reply.status_code == 200, reply.text
    (found,) = {document.get("id") for document in documents(reply)}
    if endpoint is Endpoint.CHAT:
        calls = [call["id"] for document in documents(reply) for choice in document["choices"] for call in _calls(choice)]
        assert set(calls) <= {"call_1"}, "the ids of calls are the engine's"
    return found, reply.headers["x-tidegate-request-id"]


def _calls(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or []


@contextlib.asynccontextmanager
async def behind(url: str, dialect: str, cache: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    policy: dict[str, Any] = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}]}
    if cache:
        policy["cache"] = {}
    async with gateway(url, policies=(policy,), pool={"dialect": dialect}, poll=False) as running, running.client() as client:
        yield client


@routes("openai", "sglang", "llamacpp")
@pytest.mark.parametrize("spaced", [False, True], ids=["compact", "spaced"])
async def test_an_engine_that_counts_its_replies_tells_nobody(dialect: str, spaced: bool, endpoint: Endpoint, streamed: bool) -> None:
    async with scripted(counting(spaced)) as engine, behind(engine.url, dialect) as client:
        for _ in range(2):
            found, own = await ids(client, endpoint, streamed)
            assert OURS.fullmatch(own)
            assert found == PREFIX[endpoint] + own


@routes("vllm", "sglang")
async def test_simulated_engines_and_kept_answers_too(dialect: str, endpoint: Endpoint, streamed: bool) -> None:
    settings = SimSettings(models=("sim",), dialect=dialect, speed=5000)
    async with SimEngine(settings) as engine, behind(engine.url, dialect, cache=True) as client:
        seen = [await ids(client, endpoint, streamed) for _ in range(3)]
        assert engine.count == (1 if endpoint.kept else 3), "the others are kept answers"
    kept = [] if endpoint is Endpoint.EMBEDDINGS else seen[1:]
    assert [found for found, _ in seen[:1] + kept] == [PREFIX[endpoint] + own for _, own in seen[:1] + kept]
    assert kept or {found for found, _ in seen[1:]} == {None}, "kept vectors come without an id, as OpenAI's do"
    assert len({own for _, own in seen}) == 3


def test_every_dialect_says_whose_ids_its_replies_have() -> None:
    assert {name for name, dialect in DIALECTS.items() if dialect.ids_from_requests} == {"vllm"}


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_a_streamed_transcript_has_the_gateways_id(dialect: str) -> None:
    sim = SimSettings(models=("sim",), dialect=dialect, speed=5000)
    async with SimEngine(sim) as engine, behind(engine.url, dialect) as client:
        fields = {"model": "sim", "stream": "true"}
        reply = await client.post("/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", b"x" * 9)})
        (found,) = {document["id"] for document in documents(reply)}
        assert found == f"trsc-{reply.headers['x-tidegate-request-id']}"
