"""OpenAI's Responses API through a whole gateway: what it alone has. What all routes have is in `test_routes_by_feature.py`."""

import contextlib
import json
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.gateway_harness import gateway
from tests.scripted_server import Peer, scripted

THINKS = SimSettings(models=("sim",), speed=2000, reasoning=True)
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ODD = b'{"id":"x","model":"sim","choices":[{"index":0,"finish_reason":"stop","message":{"tool_calls":5},"delta":{"tool_calls":5}}]}'


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "sim", "input": "hi", **fields}


async def test_reasoning_and_a_call_come_back_and_reach_the_engine() -> None:
    async with SimEngine(THINKS) as engine, gateway(engine.url) as running, running.client() as client:
        first = (await client.post("/v1/responses", json=body(tools=[TOOL]))).json()
        assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
        thought, call = first["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        conversation = [{"role": "user", "content": "hi"}, *first["output"], result]
        second = (await client.post("/v1/responses", json=body(tools=[TOOL], input=conversation))).json()
        assert (second["status"], second["output"][-1]["type"]) == ("completed", "message")
        sent = json.loads(engine.received[-1].body)["messages"]
        assert sent[1]["reasoning_content"] == thought["content"][0]["text"]
        assert (sent[1]["tool_calls"][0]["id"], sent[1]["tool_calls"][0]["function"]["arguments"]) == (call["call_id"], call["arguments"])
        assert sent[2] == {"role": "tool", "tool_call_id": call["call_id"], "content": "rain"}


async def test_what_needs_more_state_than_there_is_is_refused_with_what_to_do() -> None:
    async with SimEngine(THINKS) as engine, gateway(engine.url) as running, running.client() as client:
        for fields, expected in (({"conversation": "conv_1"}, (503, None)), ({"background": True}, (400, "background"))):
            reply = await client.post("/v1/responses", json=body(**fields))
            assert (reply.status_code, reply.json()["error"]["param"]) == expected
        assert not engine.received


async def test_tokens_of_a_request_that_is_not_sent() -> None:
    async with SimEngine(THINKS) as engine, gateway(engine.url) as running, running.client() as client:
        counts = []
        for fields in ({}, {"instructions": "You know the weather."}, {"instructions": "You know the weather.", "tools": [TOOL]}):
            reply = await client.post("/v1/responses/input_tokens", json=body(**fields))
            assert (reply.status_code, reply.json()["object"]) == (200, "response.input_tokens")
            counts.append(reply.json()["input_tokens"])
        assert 0 < counts[0] < counts[1] < counts[2]
        reply = await client.post("/v1/responses/input_tokens", json=body(background=True))
        assert reply.json()["input_tokens"] == counts[0]
        assert not engine.received
        assert {record.endpoint for record in await running.recorded(4)} == {"/v1/responses/input_tokens"}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_an_answer_that_cannot_be_translated_is_the_engines_fault(path: str, stream: bool) -> None:
    models = (b"application/json", b'{"object":"list","data":[{"id":"sim","object":"model"}]}')
    reply = (b"text/event-stream", b"data: %b\n\ndata: [DONE]\n\n" % ODD) if stream else (b"application/json", ODD)

    async def odd(peer: Peer) -> None:
        while request := await peer.request():
            kind, text = models if request.startswith(b"GET") else reply
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(text), text))

    prompt = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    async with scripted(odd) as engine, gateway(engine.url) as running, running.client() as client:
        request = client.stream("POST", path, json={"model": "sim", "stream": stream, **prompt})
        raw = b""
        with contextlib.suppress(httpx.RemoteProtocolError):  # a stream that has begun ends with an error event and without its last chunk
            async with request as answer:
                async for piece in answer.aiter_raw():
                    raw += piece
        (record,) = await running.recorded(1)
        assert (answer.status_code, record.outcome) == (200 if stream else 502, "invalid_reply")
        assert b"The engine sent no usable answer" in raw
        assert running.open_holds == 0
        assert running.defects == []
