"""Anthropic's Messages API through a whole gateway: what it alone has. What all routes have is in `test_routes_by_feature.py`."""

import contextlib
import json
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.gateway_harness import gateway

SIM = SimSettings(models=("sim",), speed=2000)
THINKS = SimSettings(models=("sim",), speed=2000, reasoning=True)
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "sim", "max_tokens": 200, "messages": HI, **fields}


async def test_thinking_and_a_call_come_back_and_reach_the_engine() -> None:
    async with SimEngine(THINKS) as engine, gateway(engine.url) as running, running.client() as client:
        first = (await client.post("/v1/messages", json=body(tools=[TOOL]))).json()
        assert [block["type"] for block in first["content"]] == ["thinking", "tool_use"]
        assert first["stop_reason"] == "tool_use"
        thinking, call = first["content"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]}
        turns = [*HI, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = await client.post("/v1/messages", json=body(tools=[TOOL], messages=turns))
        assert second.json()["stop_reason"] in ("end_turn", "max_tokens")
        sent = json.loads(engine.received[-1].body)["messages"]
        assert sent[1]["reasoning_content"] == thinking["thinking"]
        assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == call["input"]
        assert sent[2] == {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
        turns[1]["content"][0]["thinking"] += "!"
        forged = await client.post("/v1/messages", json=body(tools=[TOOL], messages=turns))
        assert (forged.status_code, forged.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "messages.1.content.0.signature" in forged.json()["error"]["message"]


async def test_tokens_are_counted_as_those_of_the_prompt_that_is_served() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        counts = []
        for fields in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "system": "You know the weather."}):
            reply = await client.post("/v1/messages/count_tokens", json={"model": "sim", "messages": HI, **fields})
            assert reply.status_code == 200
            counts.append(reply.json()["input_tokens"])
        assert 0 < counts[0] < counts[1] < counts[2], "tools and system count"
        assert not engine.received, "nothing is sent to an engine"
        records = await running.recorded(3)
        assert {record.endpoint for record in records} == {"/v1/messages/count_tokens"}
        assert running.open_holds == 0


async def test_models_in_the_apis_shape_for_callers_that_send_its_version() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        version = {"anthropic-version": "2023-06-01"}
        listed = (await client.get("/v1/models", headers=version)).json()
        assert ([model["id"] for model in listed["data"]], listed["has_more"], listed["first_id"]) == (["sim"], False, "sim")
        assert (await client.get("/v1/models/sim", headers=version)).json()["type"] == "model"
        assert (await client.get("/v1/models/sim")).json()["object"] == "model"
        missing = await client.get("/v1/models/none", headers=version)
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages/count_tokens", 405, "invalid_request_error"),
    ],
)
async def test_errors_have_the_apis_shape_whatever_fails(method: str, path: str, status: int, kind: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        reply = await client.request(method, path)
        answer = reply.json()
        assert (reply.status_code, answer["type"], answer["error"]["type"]) == (status, "error", kind)
        assert answer["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]


async def test_both_headers_carry_the_key() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        headers = {"x-api-key": running.keys["acme"], "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
        del client.headers["authorization"]
        assert (await client.post("/v1/messages", json=body(), headers=headers)).status_code == 200
        assert (await client.post("/v1/messages", json=body())).json()["error"]["type"] == "authentication_error"


async def test_a_base_url_with_one_v1_too_many_is_told() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        reply = await client.post("/v1/v1/messages", json=body(), headers={"anthropic-version": "2023-06-01"})
        assert reply.status_code == 404
        assert "set its base URL to end before it" in reply.json()["error"]["message"]


async def test_a_stream_that_breaks_ends_with_the_apis_error_event() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        engine.misbehave([FaultRule("reset_mid_stream", after=3)])
        raw = b""
        with contextlib.suppress(httpx.RemoteProtocolError):
            async with client.stream("POST", "/v1/messages", json=body(stream=True)) as reply:
                async for piece in reply.aiter_raw():
                    raw += piece
        last = raw.decode().strip().split("\n\n")[-1]
        name, _, data = last.partition("\n")
        assert name == "event: error"
        error = json.loads(data.removeprefix("data: "))
        assert (error["type"], error["error"]["type"]) == ("error", "api_error")
        assert error["request_id"] == (await running.recorded(1))[0].gateway_id


async def test_a_refusal_for_the_address_has_the_apis_shape_too() -> None:
    edge = {"per_address": {"requests_per_minute": 2}}
    async with SimEngine(SIM) as engine, gateway(engine.url, data=edge) as running, running.client() as client:
        replies = [await client.post("/v1/messages/count_tokens", json=body()) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[-1].json()["error"]["type"] == "rate_limit_error"
        assert replies[-1].headers["request-id"]
