"""A streamed completion of several prompts from an engine that begins it as llama.cpp does, through a whole gateway."""

import json
from typing import Any

from domain.usage import Usage
from tests.gateway_harness import gateway
from tests.scripted_server import Peer, scripted

MODELS = b'{"object":"list","data":[{"id":"sim"}]}'
POOL = {"dialect": "llamacpp"}
ASK = {"model": "sim", "prompt": ["one two", "red green"], "max_tokens": 2, "stream": True}


def event(index: int, text: str, finish: str | None = None, **more: Any) -> bytes:
    choice = {"text": text, "index": index, "logprobs": None, "finish_reason": finish}
    fields = {"choices": [choice], "created": 1, "model": "sim", "object": "text_completion", "id": "chatcmpl-1", **more}
    return b"data: %b\n\n" % json.dumps(fields, separators=(",", ":")).encode()


def used(completion: int, prompt: int) -> dict[str, Any]:
    return {"usage": {"completion_tokens": completion, "prompt_tokens": prompt, "total_tokens": completion + prompt}}


ANSWER = (
    event(0, "a"),
    event(1, "c"),
    event(0, "b"),
    event(0, "", "length", **used(2, 3)),
    event(1, "d"),
    event(1, "", "length", **used(2, 3)),
    b"data: [DONE]\n\n",
)


class LlamaCpp:
    """Says `data: null` first, then nothing, then a piece of the answer at a time."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.asked: list[dict[str, Any]] = []

    async def script(self, peer: Peer) -> None:
        while request := await peer.request():
            if not request.startswith(b"POST"):
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                await peer.send(head % len(MODELS) + MODELS)
                continue
            self.asked.append(json.loads(request.partition(b"\r\n\r\n")[2]))
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for piece in self.pieces:
                await peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await peer.send(b"0\r\n\r\n")


async def test_an_event_that_says_nothing_is_no_part_of_the_answer() -> None:
    engine = LlamaCpp(b"data: null\n\n", *ANSWER)
    async with scripted(engine.script) as server:
        async with gateway(server.url, poll=False, pool=POOL) as running, running.client() as client:
            reply = await client.post("/v1/completions", json=ASK)
            (record,) = await running.recorded(1)
            assert running.deps.live.breakers.troubled == set()
    assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    payloads = [part.removeprefix("data: ") for part in reply.text.split("\n\n") if part]
    assert (payloads[-1], "null" in payloads) == ("[DONE]", False)
    choices = [choice for payload in payloads[:-1] for choice in json.loads(payload)["choices"]]
    assert ["".join(choice["text"] for choice in choices if choice["index"] == index) for index in (0, 1)] == ["ab", "cd"]
    assert engine.asked[0]["prompt"] == ASK["prompt"]
    assert (record.outcome, record.attempts) == ("ok", 1)
    assert record.usage.completion_tokens == 4, "of both prompts"


async def test_of_a_plain_answer_the_engine_reports_the_first_choice_alone_so_the_text_is_billed() -> None:
    choices = [{"text": text, "index": index, "finish_reason": "length"} for index, text in enumerate(("a" * 400, "b" * 400))]
    body = json.dumps({"choices": choices, "model": "sim", "object": "text_completion", "id": "chatcmpl-1", **used(100, 3)}).encode()

    async def play(peer: Peer) -> None:
        while request := await peer.request():
            sent = body if request.startswith(b"POST") else MODELS
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(sent), sent))

    async with scripted(play) as server:
        async with gateway(server.url, poll=False, pool=POOL) as running, running.client() as client:
            reply = await client.post("/v1/completions", json={**ASK, "max_tokens": 100, "stream": False})
            (record,) = await running.recorded(1)
    assert reply.status_code == 200, reply.text
    assert 150 <= record.usage.completion_tokens <= 200, "200 tokens of four bytes, and not the engine's 100"


async def test_a_stream_of_nothing_else_is_tried_again_and_is_no_answer() -> None:
    engine = LlamaCpp(b"data: null\n\n")
    async with scripted(engine.script) as server:
        async with gateway(server.url, server.url, poll=False, pool=POOL) as running, running.client() as client:
            reply = await client.post("/v1/completions", json=ASK)
            (record,) = await running.recorded(1)
    assert (reply.status_code, reply.headers["content-type"]) == (502, "application/json"), "nothing was sent before the answer began"
    assert (record.attempts, record.usage) == (2, Usage())
