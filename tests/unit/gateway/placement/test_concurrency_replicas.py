import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.placement.concurrency import GONE_S, UNKNOWN, ReplicaShare, ReplicaWatch
from tenancy.ports import CountersAway, Seats
from tenancy.stores.memory import MemoryPresence, MemoryRoom


class Flaky:
    """A presence whose store can be away."""

    def __init__(self, inner: MemoryPresence) -> None:
        self.inner = inner
        self.away = False

    async def beat(self, group: str) -> Seats:
        if self.away:
            raise CountersAway("no answer")
        return await self.inner.beat(group)

    async def leave(self, group: str) -> None:
        if self.away:
            raise CountersAway("no answer")
        await self.inner.leave(group)


class Workers:
    """Two of them, each with what it was told of its parts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.going = False
        room = MemoryRoom(lambda: self.now, GONE_S)
        self.stores = [Flaky(MemoryPresence(room, name)) for name in ("a", "b")]
        self.parts: list[dict[str, ReplicaShare]] = [{}, {}]
        self.watches = [
            ReplicaWatch(store, ["chat", "code"], parts.__setitem__, lambda: self.going, lambda: self.now)
            for store, parts in zip(self.stores, self.parts, strict=True)
        ]


@pytest.fixture
def workers() -> Workers:
    return Workers()


async def test_each_learns_how_many_there_are_and_who_it_is(workers: Workers) -> None:
    assert workers.parts[0] == {"chat": UNKNOWN, "code": UNKNOWN}
    for watch in (*workers.watches, workers.watches[0]):
        await watch.beat()
    assert workers.parts == [
        {"chat": ReplicaShare(2, 0), "code": ReplicaShare(2, 0)},
        {"chat": ReplicaShare(2, 1), "code": ReplicaShare(2, 1)},
    ]


async def test_while_the_store_is_away_the_last_count_stands_and_then_nobody_knows(workers: Workers) -> None:
    for watch in workers.watches:
        await watch.beat()
    workers.stores[1].away = True
    workers.now += GONE_S
    with capture_logs() as logs:
        await workers.watches[1].beat()
        assert workers.parts[1]["chat"] == ReplicaShare(2, 1)
        workers.now += 1.0
        for _ in range(3):
            await workers.watches[1].beat()
        assert workers.parts[1] == {"chat": UNKNOWN, "code": UNKNOWN}
        workers.stores[1].away = False
        await workers.watches[1].beat()
    assert workers.parts[1]["chat"] == ReplicaShare(1, 0), "the other one was not heard for as long"
    assert [log["log_level"] for log in logs] == ["warning", "info"], "told once"


async def test_who_goes_takes_no_part_and_goes_on_silently(workers: Workers) -> None:
    for watch in workers.watches:
        await watch.beat()
    workers.going = True
    running = asyncio.create_task(workers.watches[0].run())
    await asyncio.sleep(0)
    await workers.watches[1].beat()
    assert workers.parts[1]["code"] == ReplicaShare(1, 0)
    assert not running.done()
    workers.stores[1].away = True
    silent = asyncio.create_task(workers.watches[1].run())
    await asyncio.sleep(0)
    assert not silent.done()
    for task in (running, silent):
        task.cancel()
    await asyncio.gather(running, silent, return_exceptions=True)
