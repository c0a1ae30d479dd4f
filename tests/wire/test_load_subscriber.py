"""The load push over real sockets: the simulated engine's publisher, and peers that behave badly."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest
import zmq

from backends.clients import zmq as engine_zmq
from backends.clients.zmq import LoadSubscriber
from backends.dialects.sglang import read_report
from backends.load_reports import MAX_REPORT_BYTES, LoadReports
from backends.simengine.batching import Batcher
from backends.simengine.publishers import LoadPublisher
from backends.simengine.settings import PRESETS, SimSettings
from domain.membership import LoadPush
from tests.load_push import recorded, report
from tests.timing import hang_s

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
Publishers: TypeAlias = Callable[[], "zmq.Socket[bytes]"]
FREE = "tcp://127.0.0.1:*"


@pytest.fixture
def context() -> Iterator[Context]:
    made = zmq.Context()
    yield made
    made.destroy(0)


@pytest.fixture
def publishers() -> Iterator[Publishers]:
    """Makes sockets of somebody else's process: in a context of their own, and closed first."""
    elsewhere, opened = zmq.Context[zmq.Socket[bytes]](), []

    def made() -> "zmq.Socket[bytes]":
        publisher = elsewhere.socket(zmq.PUB)
        publisher.setsockopt(zmq.SNDHWM, 100_000)
        opened.append(publisher)
        return publisher

    yield made
    for publisher in opened:
        publisher.close(0)
    elsewhere.destroy(0)


@asynccontextmanager
async def subscribed(context: Context, *endpoints: str) -> AsyncIterator[tuple[LoadSubscriber, LoadReports]]:
    reports = LoadReports(len(endpoints), read_report)

    def take(rank: int, number: int | None, payload: bytes) -> None:
        reports.take_message(rank, number, payload, time.monotonic())

    made = LoadSubscriber(context, endpoints, take, time.monotonic, asyncio.get_running_loop())
    made.tick()
    try:
        yield made, reports
    finally:
        made.close()


async def until(true: Callable[[], object], what: object = None) -> None:
    try:
        async with asyncio.timeout(hang_s()):
            while not true():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what) from None


def load(reports: LoadReports) -> tuple[int, int] | None:
    pushed = reports.pushed(time.monotonic())
    return pushed and (pushed.running, pushed.waiting)


def simulated(at: str, max_running: int = 2) -> tuple[Batcher, LoadPublisher]:
    settings = SimSettings(dialect="sglang", load_push=at)
    batcher = Batcher(PRESETS["h100-8b"], max_num_seqs=max_running)
    return batcher, LoadPublisher(settings, lambda: batcher, asyncio.get_running_loop())


async def test_the_simulated_engine_is_heard_when_it_changes_and_when_it_does_not(context: Context) -> None:
    batcher, publisher = simulated(FREE)
    async with subscribed(context, publisher.endpoint) as (_, reports):
        await until(lambda: load(reports) == (0, 0), "the heartbeat")
        for at in range(5):
            batcher.add(batcher.sequence(list(range(100 * at, 100 * at + 100)), 4))
        batcher.begin()
        publisher.publish()
        await until(lambda: load(reports) == (2, 3))
        pushed = reports.pushed(time.monotonic())
        assert pushed is not None
        assert (pushed.waiting_uncached_tokens, pushed.kv_capacity_tokens) == (500, 440_000)
        assert pushed.kv_usage == pytest.approx(2 * 7 * 16 / 440_000)
        heard = reports.counts.reports
        publisher.publish()
        await until(lambda: reports.counts.reports > heard, "unchanged, once a second")
    publisher.close()


async def test_what_is_lost_on_the_way_is_a_gap_and_a_restart_none(context: Context) -> None:
    batcher, publisher = simulated(FREE)
    async with subscribed(context, publisher.endpoint) as (_, reports):
        await until(lambda: load(reports) == (0, 0))
        publisher.lose(3)
        for number in range(1, 5):
            batcher.add(batcher.sequence([number], 4))
            publisher.publish()
        await until(lambda: load(reports) == (0, 4))
        assert (reports.counts.gaps, reports.counts.missed) == (1, 3)
        publisher.restart()
        publisher.publish()
        await until(lambda: reports.counts.restarts == 1)
        assert load(reports) == (0, 4)
    publisher.close()


async def test_an_engine_that_comes_back_on_its_port_is_heard_again(context: Context) -> None:
    batcher, publisher = simulated(FREE)
    async with subscribed(context, publisher.endpoint) as (_, reports):
        batcher.add(batcher.sequence([1], 4))
        await until(lambda: load(reports) == (0, 1))
        publisher.close()
        _, publisher = simulated(publisher.endpoint)
        await until(lambda: load(reports) == (0, 0))
    publisher.close()


async def test_every_rank_has_its_port_and_what_real_sglang_sent_is_read(context: Context, publishers: Publishers) -> None:
    sockets = [publishers() for _ in range(2)]
    for tries in range(50):
        first = sockets[0].bind_to_random_port("tcp://127.0.0.1")
        try:
            sockets[1].bind(f"tcp://127.0.0.1:{first + 1}")
            break
        except zmq.ZMQError:
            sockets[0].unbind(f"tcp://127.0.0.1:{first}")
            assert tries < 49
    async with subscribed(context, *LoadPush(f"tcp://127.0.0.1:{first}", 2).endpoints) as (_, reports):

        def sent() -> bool:
            for _, topic, number, payload in recorded():
                sockets[0].send_multipart([topic, number.to_bytes(8, "big"), payload])
            sockets[1].send_multipart([b"load", (1).to_bytes(8, "big"), report(2, 3, rank=1)])
            return load(reports) == (2, 3)  # the recording's last report says nothing runs; on a busy machine it is read in several turns

        await until(sent)
        assert reports.counts.refused == 0


async def test_strange_messages_are_counted_and_what_follows_is_heard(
    context: Context, publishers: Publishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = publishers()
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    strange = [[b""], [b"load", b"short", report()], [b"load", (7).to_bytes(8, "big"), b"garbage"], [b"x" * MAX_REPORT_BYTES] * 2]
    async with subscribed(context, f"tcp://127.0.0.1:{port}") as (subscriber, reports):

        def sent() -> bool:
            for frames in strange:
                publisher.send_multipart(frames)
            return reports.counts.refused >= 8

        await until(sent)
        publisher.send_multipart([b"x" * (MAX_REPORT_BYTES + 1)])  # libzmq drops this connection for good
        monkeypatch.setattr(engine_zmq, "LOAD_REOPEN_S", 0.5)
        number = iter(range(8, 10**6))

        def heard() -> bool:
            subscriber.tick()
            publisher.send_multipart([b"load", next(number).to_bytes(8, "big"), report(1, 1)])
            return load(reports) == (1, 1)

        await until(heard)


async def test_an_address_that_is_none_is_said(context: Context) -> None:
    async with subscribed(context, "tcp://nowhere") as (subscriber, _):
        assert subscriber.trouble.startswith("cannot connect to tcp://nowhere: ")


async def test_a_flood_leaves_the_loop_its_turns(context: Context, publishers: Publishers) -> None:
    publisher = publishers()
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    async with subscribed(context, f"tcp://127.0.0.1:{port}") as (_, reports):
        number = iter(range(10**7))

        def connected() -> bool:
            publisher.send_multipart([b"load", next(number).to_bytes(8, "big"), report()])
            return reports.counts.reports > 0

        await until(connected)
        for _ in range(20_000):
            publisher.send_multipart([b"load", next(number).to_bytes(8, "big"), report(1, 2)])
        longest, last = 0.0, time.process_time()
        async with asyncio.timeout(hang_s()):
            while reports.counts.reports < 20_000:
                await asyncio.sleep(0)
                longest, last = max(longest, time.process_time() - last), time.process_time()
        assert longest < 0.5, "seconds of work in one turn of the loop"
        assert load(reports) == (1, 2)
