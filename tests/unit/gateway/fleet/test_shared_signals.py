"""The workers of a host read an engine once, and each has all readings; one that is asked has the readers read."""

import random
from collections import Counter

import msgspec
import pytest

from backends.health import Health
from backends.signals import Signals
from gateway.deps import Live
from gateway.fleet.shared_signals import LATE_S, MAX_BYTES_PER_S, SharedSignals
from gateway.fleet.signals import REST_EVERY_S, SignalBoard, SignalWatch
from gateway.placement.rest import AT_REST_S
from gateway.process.sibling_bus import MAX_FRAME_BYTES, Sibling
from tests.pool_states import grounds_of

BACKENDS = [f"engine-{n}" for n in range(32)]
WORKERS = [Sibling(n, 100 + n) for n in range(4)]


class Host:
    """Workers without loops or sockets: `round` is what the loops of all do between two readings, `pass_on` one batch of each."""

    def __init__(self, workers: int = len(WORKERS)) -> None:
        self.now = 1000.0
        self.reads: list[Counter[str]] = [Counter() for _ in range(workers)]
        self.lives, self.watches, self.shared, self.pools = [], [], [], []
        for n, me in enumerate(WORKERS[:workers]):
            pool_states = grounds_of(*BACKENDS)
            live = Live(None, None, None)  # type: ignore[arg-type]  # only signals and health are looked at
            live.health |= {backend: Health(10.0) for backend in BACKENDS}
            watch = SignalWatch(live, SignalBoard(live, pool_states), 0.1, lambda: self.now, random.Random(n))
            watch.shared = SharedSignals(me, pool_states, watch.take, lambda: self.now)
            for backend in BACKENDS:
                watch.add(backend, self._read(n, backend))
            self.lives.append(live)
            self.watches.append(watch)
            self.shared.append(watch.shared)
            (pool_state,) = pool_states.values()
            self.pools.append(pool_state)
        for n, shared in enumerate(self.shared):
            for other in WORKERS[:workers]:
                if other != WORKERS[n]:
                    shared.joined(other)

    def _read(self, worker: int, backend: str):  # type: ignore[no-untyped-def]  # a `Read`
        async def read() -> Signals:
            self.reads[worker][backend] += 1
            return Signals(read_at=self.now, running=int(self.now), waiting=0)

        return read

    async def round(self, *gone: int) -> None:
        for n, watch in enumerate(self.watches):
            for backend in BACKENDS:
                if n not in gone and not self.shared[n].covered_s(backend):
                    await watch.read_once(backend)
        self.pass_on(*gone)

    def pass_on(self, *gone: int) -> int:
        told = [b"" if n in gone else shared.batch(MAX_FRAME_BYTES) for n, shared in enumerate(self.shared)]
        for n, payload in enumerate(told):
            for other, shared in enumerate(self.shared):
                if payload and other != n and other not in gone:
                    shared.received(WORKERS[n], payload)
        return max(map(len, told))

    def busy(self) -> "Host":
        for pool_state in self.pools:
            pool_state.rest.asked(self.now)
        return self


async def test_each_engine_is_read_by_one_worker_and_known_to_all() -> None:
    host = Host().busy()
    await host.round()
    for reads in host.reads:
        reads.clear()
    for _ in range(10):
        host.now += 0.12
        await host.round()
    assert sum(host.reads, Counter()) == dict.fromkeys(BACKENDS, 10)
    assert max(map(Counter.total, host.reads)) <= 2 * 10 * len(BACKENDS) / len(WORKERS), "evenly"
    for live in host.lives:
        assert {signals.read_at for signals in live.signals.values()} == {host.now}


async def test_the_engines_of_a_worker_that_ends_are_read_by_the_others_at_the_next_round() -> None:
    host = Host().busy()
    await host.round()
    host.now += 0.12
    for n in (0, 1, 2):
        host.shared[n].left(WORKERS[3])
    await host.round(3)
    assert all(signals.read_at == host.now for live in host.lives[:3] for signals in live.signals.values())


async def test_a_reader_that_says_nothing_is_made_up_for_by_everyone() -> None:
    host = Host().busy()
    await host.round()
    host.now += 0.125 + LATE_S + 0.001
    await host.round(3)
    assert all(signals.read_at == host.now for live in host.lives[:3] for signals in live.signals.values())


async def test_a_worker_alone_reads_everything_and_tells_nobody() -> None:
    host = Host(1).busy()
    await host.round()
    host.now += 0.12
    await host.round()
    assert host.reads[0] == dict.fromkeys(BACKENDS, 2)
    assert host.pass_on() == 0


async def test_a_request_anywhere_ends_the_rest_everywhere_and_its_end_begins_it() -> None:
    host = Host().busy()
    host.pass_on()
    host.now += AT_REST_S + 1.0
    assert all(pool_state.rest.at_rest(host.now) for pool_state in host.pools)
    woken: list[tuple[int, bool]] = []
    for n, pool_state in enumerate(host.pools):
        pool_state.rest.on_asked = lambda here, n=n: woken.append((n, here))
    assert host.pools[1].rest.asked(host.now) == AT_REST_S + 1.0
    host.shared[1].asked(host.pools[1].name)
    host.pass_on()
    assert sorted(woken) == [(0, False), (1, True), (2, False), (3, False)]
    assert not any(pool_state.rest.at_rest(host.now) for pool_state in host.pools)
    assert [pool_state.rest.asked_here(host.now) for pool_state in host.pools] == [False, True, False, False], "or no pool would rest again"
    host.now += AT_REST_S + 0.1
    assert all(pool_state.rest.at_rest(host.now) for pool_state in host.pools)


async def test_a_reading_of_a_pool_at_rest_holds_until_the_next_one_of_its_reader() -> None:
    host = Host()
    await host.round()
    before = sum(map(Counter.total, host.reads))
    host.now += REST_EVERY_S
    await host.round()
    assert sum(map(Counter.total, host.reads)) == before + len(BACKENDS)


async def test_an_older_reading_does_not_take_the_place_of_a_newer_one() -> None:
    host = Host(2).busy()
    await host.watches[0].read_once("engine-0")
    host.now += 0.01
    await host.watches[1].read_once("engine-0")
    newer = host.now
    host.pass_on()
    assert [live.signals["engine-0"].read_at for live in host.lives] == [newer, newer]


async def test_readings_are_bounded_in_bytes_and_what_is_no_message_is_refused() -> None:
    host = Host(2).busy()
    await host.round()
    host.now += 0.12
    await host.watches[0].read_once("engine-0")
    host.shared[0].asked(host.pools[0].name)
    assert len(host.shared[0].batch(40)) <= 40
    assert host.shared[0].batch(MAX_FRAME_BYTES) == b"", "newer ones follow"
    message = msgspec.msgpack.encode(([("engine-0", 0.0, 0.1, Signals(read_at=1e9, kv_capacity_tokens=10**7))], ["p"]))
    assert 64 * 10 * len(message) < MAX_BYTES_PER_S
    host.shared[0].received(WORKERS[1], msgspec.msgpack.encode(([("unknown", 0.0, 0.1, Signals(read_at=1.0))], ["unknown"])))
    for bad in (b"", b"\xc1", msgspec.msgpack.encode([1, 2])):
        with pytest.raises(ValueError, match=r".+"):
            host.shared[0].received(WORKERS[1], bad)
