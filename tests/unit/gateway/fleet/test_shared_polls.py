"""The workers of a host poll an engine once, and the Health of each hears it; at rest, engines that are well are polled less often."""

import random
from collections import Counter

import msgspec
import pytest

from backends.health import FAILURES_TO_GO_DOWN, Health
from backends.ports import PollResult
from gateway.deps import Live
from gateway.fleet.health import REST_TIMES, FleetWatch
from gateway.fleet.shared_polls import LATE_S, SharedPolls
from gateway.process.sibling_bus import MAX_FRAME_BYTES, Sibling
from routing.fleet import Availability, Backend, Fleet, Pool

BACKENDS = [f"engine-{n}" for n in range(32)]
WORKERS = [Sibling(n, 100 + n) for n in range(4)]
EVERY_S = 1.0


class Host:
    """Workers without loops or sockets: `round` is what the loops of all do between two polls, with one batch of each."""

    def __init__(self, workers: int = len(WORKERS)) -> None:
        self.now = 1000.0
        self.polls: list[Counter[str]] = [Counter() for _ in range(workers)]
        self.reason = ""
        self.resting = False
        self.lives: list[Live] = []
        self.watches: list[FleetWatch] = []
        self.shared: list[SharedPolls] = []
        for n, me in enumerate(WORKERS[:workers]):
            pool = Pool("p", "m", "1", "vllm", tuple(Backend(backend, "p") for backend in BACKENDS))
            live = Live(None, None, Fleet({"p": pool}))  # type: ignore[arg-type]  # only the fleet is looked at
            live.health |= {backend: Health(10.0) for backend in BACKENDS}
            watch = FleetWatch(live, EVERY_S, lambda: self.now, random.Random(n), at_rest=lambda _: self.resting)
            shared = watch.shared = SharedPolls(me, watch.take, lambda: self.now)
            for backend in BACKENDS:
                watch.add("p", backend, self._poll(n, backend))
            self.lives.append(live)
            self.watches.append(watch)
            self.shared.append(shared)
        for n, shared in enumerate(self.shared):
            for other in WORKERS[:workers]:
                if other != WORKERS[n]:
                    shared.joined(other)

    def _poll(self, worker: int, backend: str):  # type: ignore[no-untyped-def]  # a `Poll`
        async def poll() -> PollResult:
            self.polls[worker][backend] += 1
            return PollResult(self.reason, frozenset({"m"}))

        return poll

    async def round(self, *gone: int) -> None:
        for n, watch in enumerate(self.watches):
            for backend in BACKENDS:
                if n not in gone and not self.shared[n].covered_s(backend):
                    await watch._poll(("p", backend))
        told = [b"" if n in gone else shared.batch(MAX_FRAME_BYTES) for n, shared in enumerate(self.shared)]
        for n, payload in enumerate(told):
            for other, shared in enumerate(self.shared):
                if payload and other != n and other not in gone:
                    shared.received(WORKERS[n], payload)

    def states(self, worker: int) -> set[Availability]:
        return {backend.state for backend in self.lives[worker].fleet.pools["p"].backends}

    def polled(self) -> Counter[str]:
        total = sum(self.polls, Counter[str]())
        for polls in self.polls:
            polls.clear()
        return total


async def test_each_engine_is_polled_by_one_worker_and_known_to_all() -> None:
    host = Host()
    await host.round()
    host.polled()
    for _ in range(10):
        host.now += EVERY_S
        await host.round()
    assert max(map(Counter.total, host.polls)) <= 2 * 10 * len(BACKENDS) / len(WORKERS), "evenly"
    assert host.polled() == dict.fromkeys(BACKENDS, 10)
    for n, live in enumerate(host.lives):
        assert host.states(n) == {Availability.UP}
        assert live.names == dict.fromkeys(BACKENDS, frozenset({"m"}))


async def test_a_failure_counts_once_for_each_worker_and_all_take_the_backend_out_together() -> None:
    host = Host()
    await host.round()
    host.reason = "/health answers 503"
    for turn in range(FAILURES_TO_GO_DOWN):
        assert [host.states(n) for n in range(4)] == [{Availability.UP}] * 4, turn
        host.now += EVERY_S
        await host.round()
    assert [host.states(n) for n in range(4)] == [{Availability.DOWN}] * 4


@pytest.mark.parametrize("said", [True, False], ids=["that left", "that says nothing"])
async def test_a_reader_is_made_up_for_by_the_others(said: bool) -> None:
    host = Host()
    await host.round()
    host.polled()
    if said:
        for n in (0, 1, 2):
            host.shared[n].left(WORKERS[3])
    host.now += 1.25 * EVERY_S + LATE_S + 0.01
    await host.round(3)
    assert set(host.polled()) == set(BACKENDS)


async def test_while_nobody_asks_engines_that_are_well_are_polled_less_often_and_others_as_always() -> None:
    host = Host()
    host.resting = True
    alone = Host(1).watches[0]
    for resting, well, due in (
        (True, True, [False] * (REST_TIMES - 1) + [True] * (6 - REST_TIMES)),
        (True, False, [True] * 5),
        (False, True, [True] * 5),
    ):
        alone._at_rest = lambda _, resting=resting: resting
        assert [alone._due(("p", BACKENDS[0]), well, turns) for turns in range(1, 6)] == due
    await host.round()
    host.polled()
    host.now += 1.25 * REST_TIMES * EVERY_S
    await host.round()
    assert host.polled().total() <= len(BACKENDS), "what is told is good for as long as the reader rests"
    host.reason = "gone"
    host.now += 1.25 * REST_TIMES * EVERY_S + LATE_S + 0.01
    await host.round()
    host.polled()
    host.now += EVERY_S
    await host.round()
    assert set(host.polled()) == set(BACKENDS), "a failure ends the rest"


async def test_what_cannot_be_read_is_refused_and_backends_that_left_are_ignored() -> None:
    host = Host(2)
    for message in (b"", b"\xc1", msgspec.msgpack.encode([["p", "a", -1.0, [""]]]), msgspec.msgpack.encode([["p", "a", 1.0]])):
        with pytest.raises(ValueError):
            host.shared[0].received(WORKERS[1], message)
    await host.watches[0].remove("p", BACKENDS[0])
    host.shared[1].tell("p", BACKENDS[0], 1.0, PollResult("", frozenset({"m"})))
    host.shared[0].received(WORKERS[1], host.shared[1].batch(MAX_FRAME_BYTES))
    assert BACKENDS[0] not in host.lives[0].names
