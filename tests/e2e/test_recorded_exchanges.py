"""Requests that applications sent to the OpenAI API and its replies, replayed both ways: towards an engine, and back to the caller."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, Final

import httpx
import pytest

from tests.gateway_harness import gateway
from tests.recorded_exchanges import MODEL, PASSED, RESPONSES, Exchange, exchanges
from tests.scripted_server import Peer, scripted

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
OWN_ERRORS: Final = {
    "ai-gateway: chat-multimodal": "messages[0].content[1].image_url.url",
    "pydantic-ai: test_image_url_tool_response#1": "messages[3].content[1].image_url.url",
    "pydantic-ai: test_multimodal_tool_return_matrix[direct-uploaded_file-document-openai_chat]#1": "messages[3].content[1].file.file_id",
    "pydantic-ai: test_multimodal_tool_return_matrix[tool_return_content-uploaded_file-document-openai_chat]#1": (
        "messages[3].content[0].file.file_id"
    ),
}
"""Requests that OpenAI answered and the gateway refuses, as engines read neither its files nor, by default, images by URL."""
NOT_HERE: Final = ("background", "context_management", "conversation", "include", "moderation", "previous_response_id")
"""Members of recorded requests that need OpenAI's own servers, or a store."""
READ: Final = frozenset({"message", "function_call", "function_call_output", "reasoning", "input_text", "output_text", "input_image"})
"""Kinds of input items and of their parts that do not."""


class Engine:
    """An engine that answers with what it is told."""

    def __init__(self) -> None:
        self.status = 200
        self.reply: tuple[str, str] = (JSON, "{}")
        self.asked: list[dict[str, Any]] = []

    async def serve(self, peer: Peer) -> None:
        """Answer the gateway's questions, and each request with the reply."""
        models = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 400_000}]})
        while request := await peer.request():
            head, _, body = request.partition(b"\r\n\r\n")
            method, path = head.split()[:2]
            status, kind, text = self.status, *self.reply
            if method == b"GET":
                status, kind, text = (200 if path in (b"/health", b"/v1/models") else 404), JSON, models
            else:
                self.asked.append(json.loads(body))
            sent = text.encode()
            await peer.send(b"HTTP/1.1 %d -\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, kind.encode(), len(sent)) + sent)


@asynccontextmanager
async def replaying() -> AsyncIterator[tuple[Engine, httpx.AsyncClient]]:
    """An engine, and a client of a gateway before it."""
    engine = Engine()
    async with scripted(engine.serve) as server, gateway(server.url, poll=False) as running, running.client() as client:
        yield engine, client


def expected(one: Exchange) -> dict[str, Any]:
    """What the engine is asked: the same, with what engines need."""
    asked = one.asked
    for message in asked.get("messages", ()):
        if "tool_calls" in message:
            message.setdefault("content", None)
    if one.streamed:
        asked["stream_options"] = {"include_usage": True}
    return asked


@pytest.mark.parametrize("path", sorted(PASSED))
async def test_what_is_not_translated_passes_byte_by_byte(path: str) -> None:
    recorded = [one for one in exchanges(path) if one.status == 200]
    assert len(recorded) >= 4
    async with replaying() as (engine, client):
        for one in recorded:
            engine.reply = (one.kind, one.reply)
            engine.asked.clear()
            answer = await client.post(path, content=one.request.encode(), headers={"content-type": JSON})
            if one.name in OWN_ERRORS:
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, OWN_ERRORS[one.name])
                assert engine.asked == []
                continue
            assert (one.name, answer.status_code, answer.content) == (one.name, 200, one.reply.encode())
            (asked,) = engine.asked
            assert asked.pop("cache_salt")
            assert (one.name, asked) == (one.name, expected(one))


async def test_an_error_keeps_its_status_unless_the_mistake_is_the_operators() -> None:
    recorded = [one for one in exchanges(*PASSED) if one.status != 200]
    assert {one.status for one in recorded} == {400, 404}
    async with replaying() as (engine, client):
        for one in recorded:
            engine.status, engine.reply = one.status, (one.kind, one.reply)
            answer = await client.post(one.path, content=one.request.encode(), headers={"content-type": JSON})
            # the model is one of ours, so an engine that does not know it was set up wrongly
            assert (one.name, answer.status_code) == (one.name, 400 if one.status == 400 else 502)
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == ("invalid_request_error" if one.status == 400 else "server_error")


def answered(one: Exchange) -> dict[str, Any]:
    """The Response that ends a reply."""
    response: dict[str, Any] = one.events[-1]["response"] if one.streamed else json.loads(one.reply)
    return response


def items(response: dict[str, Any]) -> list[Any]:
    """What a Response says: texts, calls and summaries of thoughts, without ids and empty thoughts."""
    said: list[Any] = []
    for item in response["output"]:
        if item["type"] == "message":
            said.append(["".join(part["text"] for part in item["content"])])
        elif item["type"] == "function_call":
            said.append([item["call_id"], item["name"], item["arguments"]])
        elif item["type"] == "reasoning":
            thought = "\n\n".join(part["text"] for part in [*item["summary"], *(item.get("content") or ())])
            said += [[item["type"], thought]] if thought else []
        else:
            said.append(item["type"])
    return said


def as_chat(response: dict[str, Any]) -> dict[str, Any]:
    """The chat completion of an engine that says the same."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for said in items(response):
        match said:
            case ["reasoning", thought]:
                message["reasoning"] = thought
            case [text]:
                message["content"] = (message["content"] or "") + text
            case [call, name, arguments]:
                function = {"name": name, "arguments": arguments}
                message.setdefault("tool_calls", []).append({"id": call, "type": "function", "function": function})
    used = response["usage"]
    usage = {
        "prompt_tokens": used["input_tokens"],
        "completion_tokens": used["output_tokens"],
        "total_tokens": used["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": used["input_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": used["output_tokens_details"]["reasoning_tokens"]},
    }
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": usage}


def as_chunks(one: Exchange) -> str:
    """The stream of an engine that says the same in the same pieces."""
    deltas: list[dict[str, Any]] = []
    calls = 0
    for event in one.events:
        match event["type"]:
            case "response.output_text.delta":
                deltas.append({"content": event["delta"]})
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                function = {"name": event["item"]["name"], "arguments": ""}
                deltas.append({"tool_calls": [{"index": calls, "id": event["item"]["call_id"], "type": "function", "function": function}]})
                calls += 1
            case "response.function_call_arguments.delta":
                deltas.append({"tool_calls": [{"index": calls - 1, "function": {"arguments": event["delta"]}}]})
    whole = as_chat(answered(one))
    head = {**whole, "object": "chat.completion.chunk"}
    choices = [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": whole["choices"][0]["finish_reason"]})
    chunks = [{**head, "choices": [choice], "usage": None} for choice in choices] + [{**head, "choices": []}]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def read_here(request: dict[str, Any]) -> bool:
    """Whether the input has nothing that only OpenAI's own servers can read."""
    given = request["input"]
    if isinstance(given, str):
        return True
    parts = [part for item in given for name in ("content", "output") if isinstance(item.get(name), list) for part in item[name]]
    return {one.get("type", "message") for one in (*given, *parts)} <= READ and not any("file_id" in part for part in parts)


def without(request: dict[str, Any]) -> dict[str, Any]:
    """The request without what needs OpenAI's own servers."""
    kept = {name: value for name, value in request.items() if name not in NOT_HERE}
    kept["tools"] = [tool for tool in request.get("tools", ()) if tool["type"] == "function"]
    for tool in kept["tools"]:
        tool.pop("defer_loading", None)
    if not kept["tools"]:
        for name in ("tools", "tool_choice"):
            kept.pop(name, None)
    kept.get("reasoning", {}).pop("mode", None)
    return kept


async def test_responses_say_what_was_recorded_when_an_engine_says_it_in_a_chat() -> None:
    said = 0
    async with replaying() as (engine, client):
        for one in exchanges(RESPONSES):
            if one.status != 200 or not read_here(request := without(one.asked)):
                continue
            response = answered(one)
            if any(isinstance(item, str) for item in items(response)) or not response["usage"]:
                continue
            engine.reply = (EVENTS, as_chunks(one)) if one.streamed else (JSON, json.dumps(as_chat(response)))
            answer = await client.post(RESPONSES, json=request)
            assert (one.name, answer.status_code) == (one.name, 200), answer.text
            ours = Exchange(one.name, one.path, "", 200, answer.headers["content-type"], answer.text)
            assert (one.name, items(answered(ours))) == (one.name, items(response))
            used = answered(ours)["usage"]
            for name in ("input_tokens", "output_tokens", "total_tokens"):
                assert (one.name, name, used[name]) == (one.name, name, response["usage"][name])
            if one.streamed and "background" not in one.asked:
                order = [[kind for kind, _ in groupby(event["type"] for event in reply.events)] for reply in (one, ours)]
                assert (one.name, order[1]) == (one.name, order[0])
            said += 1
    assert said >= 50


async def test_what_needs_openais_own_servers_is_refused_by_name() -> None:
    named: set[str] = set()
    async with replaying() as (engine, client):
        for one in exchanges(RESPONSES):
            kinds = [tool["type"] for tool in one.asked.get("tools", ()) if tool["type"] not in ("function", "namespace")]
            if not kinds or one.asked.get("background"):
                continue
            answer = await client.post(RESPONSES, json=one.asked)
            error = answer.json()["error"]
            assert (one.name, answer.status_code, error["code"]) == (one.name, 400, "unsupported_parameter"), error
            assert any(f"'{kind}'" in error["message"] for kind in kinds) or "input" in error["param"], error
            named.update(kinds)
        assert engine.asked == []
    assert named >= {"code_interpreter", "file_search", "mcp", "tool_search", "web_search"}
