"""A breaker that opens in one worker of a host is open in all, and a half-open backend is tried once per host."""

import itertools
import random

import msgspec
import pytest

from backends.breaker import IN_A_ROW, JITTER, OPEN_FIRST_S, PROBE_S, AttemptVerdict, BreakerState
from gateway.fleet.shared_breakers import APART_S, MAX_BYTES_PER_S, SharedBreakers
from gateway.process.sibling_bus import MAX_FRAME_BYTES, Sibling
from tests.placed import Worker

PEERS = [Sibling(n, 100 + n) for n in range(4)]
LONGEST_S = OPEN_FIRST_S * (1 + JITTER)


class Host:
    """Four workers, and between them the channel without its sockets: `pass_on` is one batch of each."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.workers = [Worker("a", "b") for _ in PEERS]
        self.breakers = [worker.deps.live.breakers for worker in self.workers]
        self.shared = [SharedBreakers(worker.deps.live, n, lambda: self.now) for n, worker in enumerate(self.workers)]
        for n, shared in enumerate(self.shared):
            for other in PEERS:
                if other != PEERS[n]:
                    shared.joined(other)

    def pass_on(self) -> int:
        told = [shared.batch(MAX_FRAME_BYTES) for shared in self.shared]
        for n, payload in enumerate(told):
            for other, shared in enumerate(self.shared):
                if payload and other != n:
                    shared.received(PEERS[n], payload)
        return sum(map(bool, told))

    def fail(self, worker: int, count: int = IN_A_ROW, request: str = "r") -> None:
        for _ in range(count):
            self.breakers[worker].ended("a", "", AttemptVerdict.FAILURE, request, self.now, random.Random(1), "engine_error")

    def shut(self) -> list[bool]:
        return ["a" in breakers.shut("", self.now) for breakers in self.breakers]

    def half_open(self) -> "Host":
        """Open everywhere, and then long enough ago that every worker might try."""
        self.fail(2)
        self.pass_on()
        self.now += LONGEST_S + APART_S * (1 + len(PEERS))
        assert {breakers.of("a").state(self.now) for breakers in self.breakers} == {BreakerState.HALF_OPEN}
        return self


async def test_what_opens_in_one_worker_is_open_in_all_after_one_batch() -> None:
    host = Host()
    host.fail(2)
    assert host.shut() == [False, False, True, False]
    assert host.pass_on() == 1
    assert host.shut() == [True] * 4
    assert all("5 requests in a row" in breakers.shut("", host.now)["a"] for breakers in host.breakers)
    assert [breakers.opens.get("a", 0) for breakers in host.breakers] == [0, 0, 1, 0], "the host counts one opening"
    assert host.pass_on() == 0, "what was heard is not told again"


async def test_the_worker_that_saw_the_failures_may_try_first_and_the_others_one_after_the_other() -> None:
    host = Host()
    host.fail(2)
    host.pass_on()
    begins = [breakers.of("a").open_until or 0.0 for breakers in host.breakers]
    ordered = sorted(begins)
    assert begins[2] == ordered[0]
    assert all(later - earlier >= APART_S - 1e-9 for earlier, later in itertools.pairwise(ordered))


async def test_a_half_open_backend_is_tried_once_per_host() -> None:
    host = Host().half_open()
    assert host.breakers[1].enter("a", "", "probe", host.now)
    host.pass_on()
    assert host.shut() == [True] * 4
    assert [breakers.enter("a", "", f"r{n}", host.now) for n, breakers in enumerate(host.breakers)] == [False] * 4


@pytest.mark.parametrize("works", [True, False])
async def test_what_the_try_shows_holds_for_all(works: bool) -> None:
    host = Host().half_open()
    host.breakers[1].enter("a", "", "probe", host.now)
    host.pass_on()
    if works:
        assert host.breakers[1].begun("a", "", "probe", host.now)
    else:
        host.fail(1, 1, "probe")
    host.pass_on()
    assert host.shut() == [not works] * 4
    if not works:
        assert all((breakers.of("a").open_until or 0.0) >= host.now + 2 * OPEN_FIRST_S * (1 - JITTER) for breakers in host.breakers)


async def test_a_try_that_shows_nothing_is_free_again_everywhere() -> None:
    host = Host().half_open()
    host.breakers[1].enter("a", "", "probe", host.now)
    host.pass_on()
    host.breakers[1].ended("a", "", AttemptVerdict.NEUTRAL, "probe", host.now, random.Random(1))
    host.pass_on()
    assert host.shut() == [False] * 4


async def test_the_try_of_a_worker_that_died_is_free_at_once() -> None:
    host = Host().half_open()
    host.breakers[1].enter("a", "", "probe", host.now)
    host.pass_on()
    host.shared[0].left(PEERS[1])
    host.shared[3].left(PEERS[2])
    assert host.shut() == [False, True, True, True]
    host.now += PROBE_S
    assert host.shut()[3] is False, "without news of the end a try counts no longer than in one worker"


async def test_a_worker_that_joins_is_told_what_is_open() -> None:
    host = Host()
    host.fail(2)
    host.pass_on()
    new = Worker("a", "b")
    shared = SharedBreakers(new.deps.live, 0, lambda: host.now)
    host.shared[3].joined(Sibling(0, 999))
    shared.received(PEERS[3], host.shared[3].batch(MAX_FRAME_BYTES))
    assert "a" in new.deps.live.breakers.shut("", host.now)


async def test_a_backend_that_this_worker_does_not_have_is_ignored_and_nonsense_is_refused() -> None:
    host = Host()
    host.shared[0].received(PEERS[1], msgspec.msgpack.encode([["gone", "", True, 5.0, 5.0, False, "why"]]))
    assert list(host.breakers[0].of_backend("gone")) == [] and not host.breakers[0].troubled
    with pytest.raises(ValueError):
        host.shared[0].received(PEERS[1], b"\xc1")


async def test_more_than_the_bound_is_told_later() -> None:
    host = Host()
    for n in range(50):
        host.breakers[0].ended("b", f"lora-{n}", AttemptVerdict.FAILURE, "r", host.now, random.Random(1), "x" * 1000)
        for _ in range(IN_A_ROW):
            host.breakers[0].ended("b", f"lora-{n}", AttemptVerdict.FAILURE, "r", host.now, random.Random(1), "x" * 1000)
    batches = []
    while payload := host.shared[0].batch(2_000):
        assert len(payload) <= 2_000 <= MAX_BYTES_PER_S
        batches.append(payload)
        host.shared[1].received(PEERS[0], payload)
    assert len(batches) > 3 and len(host.breakers[1].troubled) == 50
