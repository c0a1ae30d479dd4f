"""Turns are fair over all workers: what a tenant was served in one counts in the queues of the others."""

import asyncio
import random
from collections import Counter
from itertools import count
from math import inf

import msgspec
import pytest

from domain.priority import Class
from gateway.process.sibling_bus import MAX_FRAME_BYTES, Sibling
from gateway.queue.pool_queue import PoolQueue, PoolQueues
from gateway.queue.shared_service import MAX_SUMS, SharedService
from routing.fair_queue import QUANTUM, FairQueue, QueueBounds, QueuedRequest
from routing.load import LoadTable
from tests.placement import pool_of

COST = 1000
NOISY, QUIET = "noisy", "quiet"


class Worker:
    """One worker's queue of the pool `p`, and what it would put on the bus."""

    def __init__(self, number: int) -> None:
        self.me = Sibling(number, 100 + number)
        self.queue = PoolQueue(
            "p",
            QueueBounds(10**6, 10**12, 10**6, 10**12),
            LoadTable("a"),
            lambda: pool_of("a"),
            clock=lambda: 0.0,
            loop=asyncio.get_running_loop(),
            rng=random.Random(number),
            log_defect=lambda error, _: pytest.fail(str(error)),
        )
        self.shared = SharedService(PoolQueues({"p": self.queue}))
        self.asked = 0
        self.shared.tell_soon = self._asked
        self.served: Counter[str] = Counter()

    def _asked(self) -> None:
        self.asked += 1

    @property
    def order(self) -> FairQueue:
        """The order of its queue, without deadlines and backends."""
        return self.queue._line.queue

    def wait(self, tenant: str, many: int = 1, cost: int = COST) -> list[QueuedRequest]:
        places = [QueuedRequest(tenant, Class.DEFAULT, False, cost, inf, 0.0, 100, 0) for _ in range(many)]
        assert all(self.order.put(place).accepted for place in places)
        return places

    def serve(self) -> str:
        place = self.order.next(lambda _: True)
        assert place is not None
        self.order.take(place)
        self.served[place.tenant] += place.cost
        return place.tenant


def linked(many: int) -> list[Worker]:
    workers = [Worker(number) for number in range(many)]
    for worker in workers:
        for other in workers:
            if other is not worker:
                worker.shared.joined(other.me)
    return workers


def exchange(workers: list[Worker]) -> None:
    for worker, message in [(worker, worker.shared.batch(MAX_FRAME_BYTES)) for worker in workers]:
        for other in workers:
            if message and other is not worker:
                other.shared.received(worker.me, message)


@pytest.mark.parametrize("every", [1, 5], ids=["told at once", "told after five"])
async def test_a_tenant_that_waits_in_two_workers_is_served_no_more_than_one_that_waits_in_one(every: int) -> None:
    first, second = linked(2)
    first.wait(NOISY, 400)
    second.wait(NOISY, 400)
    first.wait(QUIET, 400)
    for turn in range(300):
        first.serve()
        second.serve()
        if turn % every == 0:
            exchange([first, second])
    got = first.served + second.served
    # the law of `routing.fair_queue`, and what was served before it was told
    assert abs(got[NOISY] - got[QUIET]) <= 2 * (QUANTUM + COST) + 2 * every * COST


async def test_alone_a_worker_serves_both_alike_and_the_tenant_of_two_gets_twice_as_much() -> None:
    first, second = Worker(0), Worker(1)
    first.wait(NOISY, 400)
    second.wait(NOISY, 400)
    first.wait(QUIET, 400)
    for _ in range(300):
        first.serve()
        second.serve()
    got = first.served + second.served
    assert got[NOISY] > 2.5 * got[QUIET]
    assert first.asked == 0
    assert first.shared.batch(MAX_FRAME_BYTES) == b"", "there is nobody to tell"


async def test_what_a_request_really_took_is_told_too() -> None:
    first, second = linked(2)
    second.wait(NOISY)
    second.wait(QUIET)
    (place,) = first.wait(NOISY)
    first.serve()
    first.order.settle(place, 5 * QUANTUM)
    exchange([first, second])
    assert second.serve() == QUIET
    first.order.settle(place, COST)
    exchange([first, second])
    assert first.shared.batch(MAX_FRAME_BYTES) == b""


async def test_what_does_not_fit_is_told_later_and_sums_are_bounded() -> None:
    first, second = linked(2)
    for number in range(3):
        first.wait(f"t{number}")
        first.serve()
    messages = []
    while message := first.shared.batch(40):
        messages.append(message)
    assert [len(msgspec.msgpack.decode(message)) for message in messages] == [1, 1, 1]
    for number in count():
        first.wait(f"n{number}")
        first.serve()
        if number > MAX_SUMS:
            break
    assert len(msgspec.msgpack.decode(first.shared.batch(MAX_FRAME_BYTES))) == MAX_SUMS
    first.shared.left(second.me)
    first.wait("late")
    first.serve()
    assert first.shared.batch(MAX_FRAME_BYTES) == b""


@pytest.mark.parametrize(
    "message",
    [b"", b"\xc1", [["p", 9, "t", 5]], [["p", -1, "t", 5]], [["p", 0, "t", 1 << 50]], [["p", 0, 7, 5]], [["p", 0, "t"]]],
    ids=repr,
)
async def test_what_cannot_be_read_is_refused(message: object) -> None:
    first, second = linked(2)
    with pytest.raises(ValueError):
        second.shared.received(first.me, message if isinstance(message, bytes) else msgspec.msgpack.encode(message))


async def test_pools_and_tenants_that_are_not_known_change_nothing() -> None:
    first, second = linked(2)
    second.wait(QUIET)
    second.shared.received(first.me, msgspec.msgpack.encode([["gone", 0, QUIET, 5], ["p", 4, "stranger", 5]]))
    assert second.serve() == QUIET
