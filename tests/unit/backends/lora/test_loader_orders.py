"""What engines' answers to orders mean, by their status and words."""

import asyncio

import pytest

from backends.dialects import DIALECTS
from backends.fetch import FetchError
from backends.lora.loader import ORDER_DONE, LoraOrders, OrderReply
from backends.lora.residency import Adapter, LoraUnavailable
from backends.ports import Call, Flight, Loss, ReplySink, Upstream

A = Adapter("a", "0" * 64, "/adapters/a")
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class Engine(Upstream):
    """Answers everything in one way; None: never."""

    def __init__(self, status: int, body: bytes, loss: Loss | None = None) -> None:
        self._answer = (status, body, loss)
        self.calls: list[Call] = []

    def dispatch(self, call: Call, sink: ReplySink) -> Flight:
        self.calls.append(call)
        asyncio.get_running_loop().call_soon(self._reply, sink)
        return _Flight()

    def _reply(self, sink: ReplySink) -> None:
        status, body, loss = self._answer
        if loss is not None:
            sink.on_loss(loss, "gone")
            return
        sink.on_head(status, {})
        sink.on_data(body)
        sink.on_end()

    async def close(self) -> None: ...


class _Flight(Flight):
    def abort(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


def orders(status: int = 200, body: bytes = b"", loss: Loss | None = None) -> LoraOrders:
    return LoraOrders(Engine(status, body, loss), DIALECTS["vllm"])


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"Success", ORDER_DONE),
        (400, b"'a' has already been loaded", ORDER_DONE),
        (400, b"rank\n 64", OrderReply(f"{LOAD} answers 400: rank 64")),
        (404, b"No adapter found", OrderReply(f"{LOAD} answers 404: No adapter found")),
        (500, b"already dead", OrderReply(f"{LOAD} answers 500: already dead")),
    ],
)
async def test_a_load_is_done_when_the_adapter_is_there(status: int, body: bytes, said: OrderReply) -> None:
    assert await orders(status, body).load(A, 5.0) == said


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"Success", ORDER_DONE),
        (404, b"", ORDER_DONE),
        (400, b"it does not exist", ORDER_DONE),
        (500, b"busy", OrderReply(f"{UNLOAD} answers 500: busy")),
    ],
)
async def test_an_unload_is_done_when_the_adapter_is_away(status: int, body: bytes, said: OrderReply) -> None:
    assert await orders(status, body).unload(A.served, 5.0) == said


async def test_a_lost_answer_is_not_sure_and_a_lost_list_is_an_error() -> None:
    lost = orders(loss=Loss.CUT)
    assert await lost.load(A, 5.0) == OrderReply(f"{LOAD}: cut: gone", sure=False)
    assert await lost.unload(A.served, 5.0) == OrderReply(f"{UNLOAD}: cut: gone", sure=False)
    with pytest.raises(FetchError):
        await lost.listed(5.0)


async def test_the_list_has_adapters_only_and_must_be_one() -> None:
    assert list(await orders(body=b'{"data": [{"id": "m"}, {"id": "a@1", "parent": "m"}]}').listed(5.0)) == ["a@1"]
    with pytest.raises(LoraUnavailable, match="/v1/models"):
        await orders(body=b"<html>").listed(5.0)


async def test_orders_name_the_adapter_as_the_dialect_does() -> None:
    engine = Engine(200, b"")
    told = LoraOrders(engine, DIALECTS["sglang"])
    await told.load(A, 5.0)
    await told.unload(A.served, 5.0)
    assert [(call.path, bytes(call.body)) for call in engine.calls] == [
        ("/load_lora_adapter", b'{"lora_name":"a@000000000000","lora_path":"/adapters/a"}'),
        ("/unload_lora_adapter", b'{"lora_name":"a@000000000000"}'),
    ]
