import asyncio

import pytest

from backends.fetch import FetchError, fetch
from backends.ports import Call, Flight, Loss, ReplySink, Upstream


class FakeUpstream(Upstream):
    """Hands the sink out; the test plays the engine."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.sinks: list[ReplySink] = []
        self.aborted = 0

    def dispatch(self, call: Call, sink: ReplySink) -> Flight:
        self.calls.append(call)
        self.sinks.append(sink)
        return _Flight(self)

    async def close(self) -> None: ...


class _Flight(Flight):
    def __init__(self, upstream: FakeUpstream) -> None:
        self._upstream = upstream

    def abort(self) -> None:
        self._upstream.aborted += 1

    def pause(self) -> None: ...

    def resume(self) -> None: ...


async def asked(upstream: FakeUpstream, timeout_s: float = 5.0) -> "asyncio.Task[object]":
    task: asyncio.Task[object] = asyncio.create_task(fetch(upstream, "/metrics", timeout_s=timeout_s, max_bytes=8))
    await asyncio.sleep(0)
    return task


async def test_a_whole_reply_is_returned() -> None:
    upstream, headers = FakeUpstream(), {b"content-type": b"text/plain"}
    task = await asked(upstream)
    (sink,) = upstream.sinks
    sink.on_head(200, headers)
    sink.on_data(b"abcd")
    sink.on_data(b"efgh")
    sink.on_end()
    reply = await task
    assert (reply.status, reply.headers, reply.body) == (200, headers, b"abcdefgh")  # type: ignore[attr-defined]  # a Fetched
    assert (upstream.calls[0].method, upstream.calls[0].path, upstream.calls[0].body) == ("GET", "/metrics", b"")


async def test_an_order_is_a_post_with_its_body() -> None:
    upstream = FakeUpstream()
    task = asyncio.create_task(fetch(upstream, "/v1/load_lora_adapter", timeout_s=5.0, max_bytes=8, body=b"{}"))
    await asyncio.sleep(0)
    upstream.sinks[0].on_head(200, {})
    upstream.sinks[0].on_end()
    assert (await task).status == 200
    assert (upstream.calls[0].method, upstream.calls[0].path, upstream.calls[0].body) == ("POST", "/v1/load_lora_adapter", b"{}")


async def test_too_much_is_refused_and_the_engine_stopped() -> None:
    upstream = FakeUpstream()
    task = await asked(upstream)
    upstream.sinks[0].on_head(200, {})
    upstream.sinks[0].on_data(b"123456789")
    with pytest.raises(FetchError, match="more than 8 bytes"):
        await task
    assert upstream.aborted == 1


async def test_a_loss_is_told_with_its_cause() -> None:
    upstream = FakeUpstream()
    task = await asked(upstream)
    upstream.sinks[0].on_loss(Loss.CONNECT, "ConnectionRefusedError: nobody")
    with pytest.raises(FetchError, match="connect: ConnectionRefusedError: nobody"):
        await task


async def test_silence_ends_at_the_time_out_and_the_engine_is_stopped() -> None:
    upstream = FakeUpstream()
    task = await asked(upstream, timeout_s=0.0)
    with pytest.raises(FetchError, match="no answer within 0 s"):
        await task
    assert upstream.aborted == 1


async def test_whoever_asks_may_be_cancelled() -> None:
    upstream = FakeUpstream()
    task = await asked(upstream)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert upstream.aborted == 1
