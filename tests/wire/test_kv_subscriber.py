"""The subscriber over real sockets, against the simulated engine's publisher and against peers that behave badly."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
import zmq

from backends.clients import kv_subscriber
from backends.clients import zmq as engine_zmq
from backends.clients.kv_subscriber import KvSubscriber
from backends.kv.blocks import HeldBlocks
from backends.kv.events import MAX_BATCH_BYTES
from backends.kv.stream import KvStream
from backends.simengine.publishers import KvPublisher
from backends.simengine.settings import SimSettings
from tests.kv_events import packed, stored
from tests.timing import HANG_S, hang_s

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
FREE = "tcp://127.0.0.1:*"


@pytest.fixture
def context() -> Iterator[Context]:
    made = zmq.Context()
    yield made
    made.destroy(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_subscriber, "REPLAY_SILENCE_S", 0.5)


@asynccontextmanager
async def publishing(
    events: str = "tcp://127.0.0.1:*", replay: str | None = "tcp://127.0.0.1:*", kept: int = 10_000
) -> AsyncIterator[KvPublisher]:
    settings = SimSettings(kv_events=events, kv_replay=replay, kv_buffer=kept, block_size=1)
    made = KvPublisher(settings, asyncio.get_running_loop())
    try:
        yield made
    finally:
        made.close()


@asynccontextmanager
async def subscribed(
    context: Context, endpoint: str, replay: str | None, bind: bool = False
) -> AsyncIterator[tuple[KvSubscriber, HeldBlocks]]:
    held = HeldBlocks()
    stream = KvStream(held, can_replay=replay is not None)
    made = KvSubscriber(context, stream, endpoint, replay, bind=bind, clock=time.monotonic, loop=asyncio.get_running_loop())
    made.tick()
    try:
        yield made, held
    finally:
        made.close()


def store(publisher: KvPublisher, *blocks: int) -> None:
    for block in blocks:
        publisher.stored(None, [block.to_bytes(16, "big")], [1], "")
    publisher.flush()


async def until(true: object, what: object) -> None:
    async with asyncio.timeout(hang_s()):
        while not true():  # type: ignore[operator]
            await asyncio.sleep(0.01)
    assert what is not None


async def held_exactly(subscriber: KvSubscriber, held: HeldBlocks, blocks: set[int]) -> None:
    try:
        async with asyncio.timeout(hang_s()):
            while not (subscriber.stream.trusted and held.snapshot() == blocks):
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError((subscriber.stream.state(), subscriber.trouble, sorted(held.snapshot())[:10])) from None


async def test_what_was_and_what_comes(context: Context) -> None:
    async with publishing() as engine:
        store(engine, 1, 2)
        async with subscribed(context, engine.endpoint, engine.replay_endpoint) as (subscriber, held):
            await held_exactly(subscriber, held, {1, 2})
            store(engine, 3)
            engine.removed((1).to_bytes(16, "big"))
            engine.flush()
            await held_exactly(subscriber, held, {2, 3})


@pytest.mark.req("ROUTERS-11")
async def test_lost_batches_are_replayed(context: Context) -> None:
    async with publishing() as engine, subscribed(context, engine.endpoint, engine.replay_endpoint) as (subscriber, held):
        store(engine, 1)
        await held_exactly(subscriber, held, {1})
        engine.lose(3)
        for block in (2, 3, 4, 5):
            store(engine, block)
        await held_exactly(subscriber, held, {1, 2, 3, 4, 5})
        assert subscriber.stream.counts.missed == 3


async def test_a_replay_larger_than_the_engines_queue_is_got_whole(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_subscriber, "REPLAY_SILENCE_S", HANG_S)  # a busy machine pauses in the middle of it
    async with publishing() as engine:
        blocks = set(range(5_000))
        for block in blocks:
            store(engine, block)
        async with subscribed(context, engine.endpoint, engine.replay_endpoint) as (subscriber, held):
            await held_exactly(subscriber, held, blocks)


@pytest.mark.req("ROUTERS-11")
async def test_beyond_the_buffer_is_said(context: Context) -> None:
    async with publishing(kept=2) as engine, subscribed(context, engine.endpoint, engine.replay_endpoint) as (subscriber, held):
        store(engine, 1)
        await held_exactly(subscriber, held, {1})
        engine.lose(5)
        for block in range(10, 17):
            store(engine, block)
        await until(lambda: "buffer begins" in subscriber.stream.reason and held.count == 2, subscriber)
        engine.cleared()
        engine.flush()
        store(engine, 20)
        await held_exactly(subscriber, held, {20})


@pytest.mark.req("ROUTERS-10")
async def test_an_engine_that_comes_back_on_its_address_begins_with_nothing(context: Context, tmp_path: Path) -> None:
    at, replay = f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/replay"
    async with subscribed(context, at, replay) as (subscriber, held):
        async with publishing(at, replay) as engine:
            store(engine, 1, 2, 3)
            await held_exactly(subscriber, held, {1, 2, 3})
        await until(lambda: subscriber.stream.reason == "not connected", subscriber)
        async with publishing(at, replay) as engine:
            store(engine, 7)
            await held_exactly(subscriber, held, {7})
            assert subscriber.stream.epoch == 1


@pytest.mark.req("ROUTERS-10")
async def test_what_a_dead_engine_held_is_forgotten(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    async with publishing() as engine:
        async with subscribed(context, engine.endpoint, engine.replay_endpoint) as (subscriber, held):
            store(engine, 1)
            await held_exactly(subscriber, held, {1})
            engine.close()
            await until(lambda: subscriber.stream.reason == "not connected", subscriber)
            subscriber.tick()
            assert held.count == 1, "it may have been the network"
            monkeypatch.setattr(kv_subscriber, "FORGET_AFTER_S", 0.0)
            subscriber.tick()
            assert held.count == 0


async def test_an_engine_that_connects_finds_us_bound(context: Context, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    at = f"tcp://127.0.0.1:{port}"
    async with subscribed(context, at, f"ipc://{tmp_path}/replay", bind=True) as (subscriber, held):
        async with publishing(at, f"ipc://{tmp_path}/replay") as engine:
            await until(lambda: subscriber.stream.trusted, subscriber)
            store(engine, 4)
            await held_exactly(subscriber, held, {4})


async def test_an_address_in_use_is_said_and_tried_again(context: Context) -> None:
    with context.socket(zmq.REP) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        async with subscribed(context, f"tcp://127.0.0.1:{port}", None, bind=True) as (subscriber, _):
            assert subscriber.trouble == f"cannot listen on tcp://127.0.0.1:{port}: Address already in use"
            other.close(0)

            def retried() -> bool:
                subscriber.tick()
                return not subscriber.trouble

            await until(retried, subscriber)


async def test_a_replay_address_where_nobody_answers_is_said(context: Context, tmp_path: Path) -> None:
    async with publishing(replay=None) as engine:
        async with subscribed(context, engine.endpoint, f"ipc://{tmp_path}/nobody") as (subscriber, _):
            await until(lambda: "the replay failed: no answer within 0.5 s" in subscriber.stream.reason, subscriber)


async def test_a_replay_without_end_is_stopped(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_subscriber, "MAX_REPLAY_BYTES", 1_000_000)
    endless = context.socket(zmq.ROUTER)
    endless.setsockopt(zmq.SNDHWM, 100)
    port = endless.bind_to_random_port("tcp://127.0.0.1")
    sent = 0
    async with publishing(replay=None) as engine:
        async with subscribed(context, engine.endpoint, f"tcp://127.0.0.1:{port}") as (subscriber, _):
            await until(lambda: endless.poll(0), subscriber)
            asker, *_ = endless.recv_multipart()

            def stopped() -> bool:
                nonlocal sent
                for _ in range(10):  # not batches: they only have to be read
                    endless.send_multipart([asker, b"", b"none", bytes(10_000)])
                    sent += 1
                return "it has more than 1,000,000 bytes" in subscriber.stream.reason

            await until(stopped, subscriber)
            assert sent > 100
    endless.close(0)


async def test_the_last_batch_of_all_is_missed_only_until_the_next_check(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_subscriber, "CHECK_AFTER_S", 0.0)
    async with publishing() as engine, subscribed(context, engine.endpoint, engine.replay_endpoint) as (subscriber, held):
        store(engine, 1)
        await held_exactly(subscriber, held, {1})
        engine.lose(1)
        store(engine, 2)
        subscriber.tick()
        await held_exactly(subscriber, held, {1, 2})


async def test_messages_that_are_none_and_too_large_ones_harm_nothing(context: Context) -> None:
    hostile = context.socket(zmq.XPUB)  # as a PUB socket, and it hears of subscriptions
    port = hostile.bind_to_random_port("tcp://127.0.0.1")
    async with subscribed(context, f"tcp://127.0.0.1:{port}", None) as (subscriber, held):
        await until(lambda: subscriber.stream.reason.startswith("nothing heard"), subscriber)
        while not hostile.poll(0):  # what is sent before the subscription gets there is lost
            await asyncio.sleep(0.005)
        for frames in ([b"x"], [b"", b"short", b"y"], [b"t", b"\xff" * 8, b"z"], [b"t", (0).to_bytes(8, "big"), packed(stored([5]))]):
            hostile.send_multipart(frames)
        await held_exactly(subscriber, held, {5})
        hostile.send_multipart([b"t", (1).to_bytes(8, "big"), bytes(MAX_BATCH_BYTES + 1)])
        await until(lambda: not subscriber.stream.trusted, subscriber)
    hostile.close(0)


async def test_the_loop_is_never_held_longer_than_a_turn(context: Context) -> None:
    async with publishing() as engine:
        async with subscribed(context, engine.endpoint, engine.replay_endpoint) as (subscriber, held):
            await until(lambda: subscriber.stream.trusted, subscriber)
            for block in range(3_000):
                store(engine, block)
            turns = 0
            while held.count < 3_000 and turns < 100_000:
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 3_000 / engine_zmq.MAX_PER_TURN
            await held_exactly(subscriber, held, set(range(3_000)))


async def test_what_came_during_a_replay_is_taken_in_short_turns_too(context: Context) -> None:
    """A step of the clock per look at it, so that a turn has room for few batches however fast this machine is."""
    step_s, many = 0.0005, 400
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += step_s
        return now

    publisher, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    at, replay = (f"tcp://127.0.0.1:{one.bind_to_random_port('tcp://127.0.0.1')}" for one in (publisher, router))

    def publish(seq: int) -> None:
        publisher.send_multipart([b"", seq.to_bytes(8, "big"), packed(stored([seq]))])

    async def answer(upto: int) -> None:
        await until(lambda: router.poll(0), router)
        asker, _, start = router.recv_multipart()
        for seq in range(int.from_bytes(start, "big"), upto):
            router.send_multipart([asker, b"", seq.to_bytes(8, "big"), packed(stored([seq]))])
        router.send_multipart([asker, b"", (-1).to_bytes(8, "big", signed=True), b""])

    held = HeldBlocks()
    stream = KvStream(held, can_replay=True)
    subscriber = KvSubscriber(context, stream, at, replay, bind=False, clock=clock, loop=asyncio.get_running_loop())
    subscriber.tick()
    try:
        await answer(0)
        await until(lambda: stream.trusted, subscriber)
        for seq in range(1, many):  # the first one is lost
            publish(seq)
            await asyncio.sleep(0)
        await until(lambda: router.poll(0), router)
        await asyncio.sleep(0.2)  # all of them have come, and wait for the replay
        await answer(1)
        publish(many)  # comes behind them
        most = before = 0
        while held.count < many:
            await asyncio.sleep(0)
            most, before = max(most, held.count - before), held.count
        assert 0 < most < 2 * engine_zmq.TURN_S / step_s + 2 < many
        publish(many + 1)
        await held_exactly(subscriber, held, set(range(many + 2)))
    finally:
        subscriber.close()
        publisher.close(0)
        router.close(0)
