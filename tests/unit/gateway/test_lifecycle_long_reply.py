"""A long plain reply: what its caller is charged when it leaves while the reply is on its way."""

import asyncio
import json
from typing import Any

from backends.ports import ReplySink
from domain.ask import Endpoint
from gateway.http.edge.exchange import Exchange
from gateway.lifecycle import serve
from tests.request_path import KEY, Connection, Engine, Path, caller

PIECE = 512 * 1024
TOKENS = 600_000
JSON = {b"content-type": b"application/json"}
USAGE = {"prompt_tokens": 9, "completion_tokens": TOKENS, "total_tokens": TOKENS + 9}
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1_000_000}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "word " * TOKENS}}
REPLY = json.dumps({"model": "sim", "choices": [CHOICE], "usage": USAGE}).encode()
VECTOR = {"object": "embedding", "index": 0, "embedding": [0.25] * 1024}
VECTORS = json.dumps({"model": "sim", "data": [VECTOR] * 600, "usage": {"prompt_tokens": 9, "total_tokens": 9}}).encode()


def in_pieces(body: bytes) -> Any:
    """An engine that sends the reply a piece in each turn of the loop."""

    def script(sink: ReplySink) -> None:
        loop = asyncio.get_running_loop()
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]

        def send() -> None:
            if pieces:
                sink.on_data(pieces.pop(0))
                loop.call_soon(send)
            else:
                sink.on_end()

        sink.on_head(200, JSON)
        send()

    return script


async def answered(endpoint: Endpoint, body: Any, reply: bytes, *, leaves: bool) -> tuple[Path, Connection]:
    """Serve one request. A caller that leaves does so as soon as it is sent anything."""
    path = Path(a=Engine(in_pieces(reply)))
    exchange, connection = caller(body, endpoint.path, authorization=b"Bearer " + KEY.text.encode(), content_type=b"application/json")
    if leaves:
        leave_on_first_byte(exchange, connection)
    await serve(exchange, endpoint, path.deps)
    assert path.defects == []
    return path, connection


def leave_on_first_byte(exchange: Exchange, connection: Connection) -> None:
    written = connection.write

    def write(data: bytes) -> None:
        written(data)
        if not exchange.gone:
            exchange.connection_gone()

    connection.write = write  # type: ignore[method-assign]


async def test_a_caller_that_leaves_a_long_chat_reply_is_charged_for_all_that_was_generated() -> None:
    assert len(REPLY) > 2 * 1024 * 1024
    path, _ = await answered(Endpoint.CHAT, CHAT, REPLY, leaves=True)
    usage = path.records[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (9, TOKENS)
    assert path.in_flight() == {"a": 0}


async def test_a_long_chat_reply_comes_whole_with_its_length() -> None:
    path, connection = await answered(Endpoint.CHAT, CHAT, REPLY, leaves=False)
    head, _, body = connection.out.partition(b"\r\n\r\n")
    assert (body, b"content-length: %d" % len(REPLY) in head) == (REPLY, True)
    assert path.records[0].usage.completion_tokens == TOKENS


async def test_a_damaged_long_chat_reply_becomes_another_engines_answer() -> None:
    path = Path(a=Engine(in_pieces(REPLY[:-1])), b=Engine(in_pieces(REPLY)))
    exchange, connection = caller(CHAT, authorization=b"Bearer " + KEY.text.encode(), content_type=b"application/json")
    await serve(exchange, Endpoint.CHAT, path.deps)
    assert connection.out.endswith(REPLY)
    assert path.calls()["b"] == 1


async def test_long_embeddings_pass_piece_by_piece_and_nothing_is_generated_for_them() -> None:
    path, connection = await answered(Endpoint.EMBEDDINGS, {"model": "sim", "input": ["x"] * 600}, VECTORS, leaves=False)
    assert b"transfer-encoding: chunked" in connection.out
    assert path.records[0].usage.prompt_tokens == 9
