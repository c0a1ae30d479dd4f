"""Workers of one host count each other's load."""

from math import inf

import pytest

from gateway.placement.concurrency import ReplicaShare
from gateway.placement.pool_state import PoolDefaults, PoolStates
from gateway.placement.shared_load import SharedLoad
from gateway.process.sibling_bus import Sibling
from routing.load import LoadTable


class Worker:
    """One worker's state, and what it would put on the bus."""

    def __init__(self, number: int) -> None:
        self.me = Sibling(number, 1000 + number)
        self.states = PoolStates({"chat": PoolDefaults(hold_s=0.6)})
        for backend in ("a", "b"):
            self.states.add("chat", backend)
        self.now = 1.0
        self.shared = SharedLoad(self.states, lambda: self.now)
        self.asked = 0
        self.shared.tell_soon = self._asked

    def _asked(self) -> None:
        self.asked += 1

    @property
    def table(self) -> LoadTable:
        return self.states["chat"].load_table


def linked(count: int) -> list[Worker]:
    workers = [Worker(number) for number in range(count)]
    for worker in workers:
        for other in workers:
            if other is not worker:
                worker.shared.joined(other.me)
    return workers


def exchange(workers: list[Worker]) -> None:
    for worker, message in [(worker, worker.shared.batch(100_000)) for worker in workers]:
        if message:
            for other in workers:
                if other is not worker:
                    other.shared.received(worker.me, message)


@pytest.mark.req("ROUTERS-17")
def test_each_worker_counts_the_requests_of_all() -> None:
    workers = linked(3)
    charges = [worker.table.charge("a", 1000 * (at + 1), 2000, 1.0) for at, worker in enumerate(workers)]
    exchange(workers)
    assert [worker.table.requests[0] for worker in workers] == [3, 3, 3]
    assert [worker.table.queue_tokens[0] for worker in workers] == [6000] * 3
    assert [worker.states.in_flight("a") for worker in workers] == [1, 1, 1], "limits count a worker's own"
    for worker, charge in zip(workers, charges, strict=True):
        worker.table.release(charge)
    exchange(workers)
    assert [worker.table.requests[0] for worker in workers] == [0, 0, 0]


def test_every_change_is_told_and_nothing_else() -> None:
    first, _ = linked(2)
    first.asked = 0
    charge = first.table.charge("a", 1000, 2000, 1.0)
    first.table.begun(charge)
    first.table.release(charge)
    assert first.asked == 3
    assert first.shared.batch(100_000) == b"", "what came and went between two batches needs no word"
    alone = Worker(7)
    alone.table.release(alone.table.charge("a", 1000, 2000, 1.0))
    assert alone.asked == 0


def test_what_an_ended_worker_had_in_flight_counts_no_more() -> None:
    first, second = linked(2)
    first.table.charge("b", 1000, 2000, 1.0)
    exchange([first, second])
    assert second.table.requests[1] == 1
    second.shared.left(first.me)
    assert (second.table.requests[1], second.table.changed) == (0, None)


def test_the_hold_is_of_the_host_and_divided_among_hosts() -> None:
    first, second = linked(2)
    for processes, seconds in ((1, 0.6), (2, 0.6), (4, 0.3), (8, 0.15)):
        first.states.set_share("chat", ReplicaShare(processes, 0))
        assert first.table.hold_s == pytest.approx(seconds)
    first.shared.left(second.me)
    assert first.table.hold_s == pytest.approx(0.6 / 8)
    assert PoolStates({"p": PoolDefaults()})["p"].load_table.hold_s == inf


def test_a_message_that_is_too_large_is_told_whole_later() -> None:
    first, second = linked(2)
    first.table.charge("a", 1000, 2000, 1.0)
    assert first.shared.batch(8) == b""
    exchange([first, second])
    assert second.table.requests[0] == 1


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90"])
def test_what_is_no_message_of_that_sibling_is_refused(payload: bytes) -> None:
    first, second = linked(2)
    with pytest.raises(ValueError):
        second.shared.received(first.me, payload)
    assert second.table.requests == [0.0, 0.0]
