"""Requests to engines through a gateway, and what every answer has to hold whichever engine it came from."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx

from gateway.record import Record
from tests.fault.proxy import cut, proxied
from tests.gateway_harness import Stream, all_up, gateway, stream
from tests.pool_states import charged

LONG = "The quick brown fox jumps over the lazy dog near the old harbour wall. " * 20
"""Text of 200 to 800 tokens."""

LEAKS = ("vllm", "VLLM", "sglang", "SGLang", "llama", "File ", "/tmp", ".py", "Traceback", "127.0.0.1", "lora", "pydantic")
"""What no error may tell a caller."""


def ask(model: str, content: str = "hello", **fields: Any) -> dict[str, Any]:
    """A greedy chat of 8 tokens; `ignore_eos` because a random model ends when it likes."""
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}


async def post(client: httpx.AsyncClient, model: str, content: str = "hello", **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=ask(model, content, **fields))


def cached(reply: httpx.Response) -> int:
    """Prompt tokens the engine found in its cache."""
    assert reply.status_code == 200, reply.text
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def refused(reply: httpx.Response, *names: str) -> dict[str, Any]:
    """The error's object, with every member an OpenAI client reads and nothing that tells of the engine or of `names`."""
    assert not [leak for leak in (*LEAKS, *names) if leak in reply.text], reply.text
    error = reply.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    return dict(error)


async def until(reading: Callable[[], object], expected: object, within_s: float) -> float:
    """Wait for `reading()`, called in a thread, to be `expected`; how long it took, in seconds."""
    begun = time.monotonic()
    while (found := await asyncio.to_thread(reading)) != expected:
        assert time.monotonic() - begun < within_s, f"{found}, not {expected}, after {within_s} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - begun


async def asked_in_every_api(client: httpx.AsyncClient, model: str) -> None:
    """Ask the same at the chat's route, as a Message and as a Response, plain and streamed: the engine gets the same prompt, makes 8 tokens
    of it, and each answer has the form of its API."""
    usage = (await post(client, model)).json()["usage"]
    fields = {"model": model, "temperature": 0, "ignore_eos": True}
    message = {**fields, "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
    response = {**fields, "max_output_tokens": 8, "input": "hello"}
    for path, body, last in (("/v1/messages", message, "message_stop"), ("/v1/responses", response, "response.incomplete")):
        reply = await client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        whole = reply.json()
        counts = whole["usage"]
        prompt_tokens = counts["input_tokens"] + counts.get("cache_read_input_tokens", 0)
        assert (prompt_tokens, counts["output_tokens"]) == (usage["prompt_tokens"], 8), path
        streamed = await client.post(path, json={**body, "stream": True})
        lines = [line.removeprefix("event: ") for line in streamed.text.splitlines() if line.startswith("event: ")]
        assert lines[-1] == last
        assert any(line in ("content_block_delta", "response.output_text.delta") for line in lines)
        cut = whole.get("stop_reason") or whole["incomplete_details"]["reason"]
        assert cut in ("max_tokens", "max_output_tokens")


async def cut_and_continued(url: str, dialect: str, served: str, content: str, *, tokens: int = 40) -> tuple[Stream, Stream, Record]:
    """The same greedy stream twice: whole, and with its connection cut in the middle, so that the engine goes on with its own text.

    Returns:
        The whole stream, the one with the seam, and the record of the second.
    """
    fields = {**ask("sim", content, max_tokens=tokens), "ignore_eos": False, "stream_options": {"include_usage": True}}
    pool = {"model": served, "dialect": dialect, "continue_streams": True}
    async with proxied(url) as way, gateway(way.url, url, pool=pool, poll=False) as running, running.client() as client:
        running.deps.live.fleet = all_up(running.deps.live.fleet)
        charged(running.deps.pool_states, "e1", running.deps.clock(), tokens=100_000)  # so that the one behind the way is tried first
        whole = await stream(client, **fields)
        way.fault = cut(len(whole.raw) // 2)
        seen = await stream(client, **fields)
        return whole, seen, (await running.recorded(2))[1]
