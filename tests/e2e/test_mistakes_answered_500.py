"""Callers' mistakes that llama.cpp answers with 500: the caller gets 400 on the field, the pool's other engine is not asked, and the
breaker counts no failure. The engines play the recorded replies of `tests/wire/engine_errors`."""

import json
from pathlib import Path
from typing import Any

import pytest

from backends.breaker import IN_A_ROW, BreakerState
from tests.gateway_harness import chat, gateway, stream
from tests.scripted_server import Peer, Script, scripted

RECORDED = Path(__file__).parents[1] / "wire" / "engine_errors"
MISTAKES = {
    "an image without a projector": ("llamacpp_image", "messages"),
    "audio without a projector": ("llamacpp_audio", "messages"),
    "a message without role": ("llamacpp_no_role", "messages"),
    "a tool without type": ("llamacpp_tool_without_type", "tools"),
    "two constraints": ("llamacpp_two_constraints", "response_format"),
    "an unknown reasoning format": ("llamacpp_reasoning_format", "reasoning_format"),
}
MODELS = b'{"object":"list","data":[{"id":"sim"}]}'
POOL = {"dialect": "llamacpp"}
BY_COUNT = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "routing": "least_load"}


def recorded(name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    assert case["status"] == 500
    return case


class Engine:
    """A llama.cpp server that answers each request with this text and 500, and counts the requests."""

    def __init__(self, body: str) -> None:
        self.body = body.encode()
        self.asked = 0

    @property
    def script(self) -> Script:
        async def play(peer: Peer) -> None:
            while request := await peer.request():
                generates = request.startswith(b"POST")
                self.asked += generates
                status, body = (b"500 Internal Server Error", self.body) if generates else (b"200 OK", MODELS)
                head = b"HTTP/1.1 %b\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: %d\r\n\r\n"
                await peer.send(head % (status, len(body)) + body)

        return play


@pytest.mark.req("ROUTERS-19")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("mistake", MISTAKES)
async def test_it_is_the_callers_400_of_one_engine_and_no_failure(mistake: str, streamed: bool) -> None:
    name, field = MISTAKES[mistake]
    a, b = Engine(recorded(name)["body"]), Engine(recorded(name)["body"])
    asked = 2 * IN_A_ROW
    """Twice as many as open both breakers where each counts as a failure of one engine."""
    async with scripted(a.script) as first, scripted(b.script) as second:
        async with gateway(first.url, second.url, poll=False, pool=POOL, policies=[BY_COUNT]) as running, running.client() as client:
            for _ in range(asked):
                if streamed:
                    seen = await stream(client)
                    status, error = seen.status, json.loads(seen.raw)["error"]
                else:
                    reply = await client.post("/v1/chat/completions", json=chat())
                    status, error = reply.status_code, reply.json()["error"]
                    assert reply.headers["x-should-retry"] == "false"
                assert (status, error["type"], error["code"], error["param"]) == (400, "invalid_request_error", "invalid_value", field)
                assert "mmproj" not in error["message"]
            records = await running.recorded(asked)
            breakers = running.deps.live.breakers
            assert {(record.outcome, record.attempts) for record in records} == {("invalid_value", 1)}
            assert a.asked + b.asked == asked, "each request is sent to one engine"
            assert (breakers.opens, breakers.troubled) == ({}, set())
            now = running.deps.clock()
            assert {breakers.of(backend).state(now) for backend in ("e0", "e1")} == {BreakerState.CLOSED}
            assert not running.deps.live.suspects.guilty


async def test_any_other_500_of_llama_cpp_is_tried_elsewhere_and_counted() -> None:
    body = recorded("llamacpp_bad_json")["body"]
    a, b = Engine(body), Engine(body)
    async with scripted(a.script) as first, scripted(b.script) as second:
        async with gateway(first.url, second.url, poll=False, pool=POOL, policies=[BY_COUNT]) as running, running.client() as client:
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 502
            assert (a.asked, b.asked) == (1, 1)
            for _ in range(2 * IN_A_ROW):
                await client.post("/v1/chat/completions", json=chat())
            records = await running.recorded(1 + 2 * IN_A_ROW)
            assert records[0].attempts == 2
            assert running.deps.live.breakers.opens
