"""The collector: what workers finish is kept once, waits while the store is away, and is not kept of users who were erased."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from domain.cache_purges import CachePurge
from gateway.process.worker_link import WorkerLink, worker_socket
from gateway.record import Record
from gateway.request_log.collector import (
    MOST_WAITING,
    RequestCollector,
    RequestSink,
    RequestWatcher,
    Sleep,
    entry_of,
    logged_request,
)
from gateway.request_log.ring import RequestRing, RingLine
from gateway.telemetry.access_log import line_of
from gateway.telemetry.request_log_counters import RequestLogCounts
from policies.compile import compiled
from policies.schema import PolicyDocument
from tenancy.request_log import LoggedRequest, RequestFilter, RequestLogAway, SealedContent
from tenancy.stores.memory import MemoryCachePurges, MemoryRequests

AT = 1_800_000_000.0


def record(number: int, **fields: Any) -> Record:
    made: dict[str, Any] = {"tenant": "acme", "model": "sim", "duration_s": 0.5, "overhead_s": 0.001} | fields
    return Record(f"req-{int(AT):08x}-{number}", AT + number, "ok", 200, **made)


def ring_line(number: int, **fields: Any) -> RingLine:
    return RingLine(line_of(record(number)), **fields)


class Store(MemoryRequests):
    """A store in memory that can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.sweeps: list[tuple[int, int]] = []

    async def add(self, requests: Sequence[LoggedRequest], contents: Sequence[SealedContent]) -> None:
        if self.away:
            raise RequestLogAway("gone")
        await super().add(requests, contents)

    async def sweep(self, now_us: int, most: int) -> int:
        self.sweeps.append((now_us, most))
        return await super().sweep(now_us, most)


class Place:
    """A collector over the rings of workers in a folder."""

    def __init__(self, run_dir: Path, store: Store, purges: MemoryCachePurges) -> None:
        self.sinks: list[RequestSink] = []
        self.run_dir, self.store, self.purges = run_dir, store, purges
        self.now = AT
        self.collector = self.again()
        self.links: list[WorkerLink] = []

    def again(self, sleep: Sleep = asyncio.sleep) -> RequestCollector:
        """Another admin process's collector."""
        return RequestCollector(
            self.run_dir, self.store, self._ready, self.purges, lambda: self.now, hours=2, most=1000, sinks=self.sinks, sleep=sleep
        )

    async def _ready(self) -> None:
        pass

    async def worker(self, ring: RequestRing, index: int = 0) -> None:
        path = worker_socket(self.run_dir, index, 1)
        link = WorkerLink(path, lambda _: pytest.fail("not asked for"), answers=ring.answers())
        await link.start()
        self.links.append(link)

    async def kept(self) -> list[int]:
        return [int(one.at_us / 1e6 - AT) for one in await self.store.page(RequestFilter(), "newest", None, 10**6)]


class FullDisk:
    """A sink that can keep nothing."""

    name = "full"

    def __init__(self) -> None:
        self.failed = 0

    async def add(self, requests: list[LoggedRequest]) -> None:
        self.failed += len(requests)
        raise OSError("no space left")

    async def close(self) -> None:
        pass

    def figures(self) -> tuple[int, int, int, int]:
        return 0, 0, 0, self.failed


@pytest.fixture
async def place(tmp_path: Path) -> Any:
    made = Place(tmp_path, Store(), MemoryCachePurges())
    yield made
    for link in made.links:
        await link.close()


def test_a_line_is_kept_with_what_is_asked_for_and_for_how_long() -> None:
    kept = logged_request(ring_line(1, end_user="u", hours=0.0), 2)
    assert (kept.id, kept.tenant, kept.model, kept.duration_us, kept.end_user) == (record(1).request_id, "acme", "sim", 500_000, "u")
    assert (kept.at_us, kept.expires_us) == (int((AT + 1) * 1e6), int((AT + 1 + 7200) * 1e6))
    assert logged_request(ring_line(1, hours=0.5), 2).expires_us == int((AT + 1 + 1800) * 1e6)
    assert entry_of(kept).request_id == kept.id
    assert not kept.line.endswith(b"\n")


async def test_what_another_sink_loses_is_counted_and_kept_here(place: Place) -> None:
    place.sinks.append(FullDisk())
    place.collector = place.again()
    ring = RequestRing("a")
    await place.worker(ring)
    ring.note(ring_line(1).line)
    await place.collector.look()
    assert await place.kept() == [1]
    assert place.collector.counts() == RequestLogCounts(0, {"full": (0, 0, 0, 1)})


async def test_what_workers_finish_is_kept_once_and_shown_to_watchers(place: Place) -> None:
    first, second = RequestRing("a"), RequestRing("b")
    await place.worker(first, 0)
    await place.worker(second, 1)
    watcher = place.collector.watch()
    first.note(ring_line(1).line)
    second.note(ring_line(2).line)
    await place.collector.look()
    first.note(ring_line(3).line)
    await place.collector.look()
    await place.collector.look()
    assert await place.kept() == [3, 2, 1]
    seen, missed = watcher.take()
    assert (sorted(one.at_us for one in seen), missed) == ([int((AT + number) * 1e6) for number in (1, 2, 3)], 0)
    place.collector.unwatch(watcher)
    assert place.store.sweeps == [(int(AT * 1e6), 1000)]
    # the next admin process asks from the beginning, and nothing is kept twice
    await place.again().look()
    assert await place.kept() == [3, 2, 1]


async def test_workers_are_asked_less_often_while_nothing_ends(place: Place) -> None:
    """Once a second behind a request and while somebody watches, every fourth second otherwise, and at once for who reads the log."""
    ring, looks, turns = RequestRing("a"), [], 0
    await place.worker(ring)
    fetched = ring.answers()

    async def counted(question: bytes) -> bytes:
        looks.append(place.now - AT)
        return await next(iter(fetched.values()))(question)

    watcher: RequestWatcher | None = None

    async def second(_: float) -> None:
        nonlocal turns, watcher
        turns += 1
        place.now = AT + turns
        if turns == 9:
            ring.note(ring_line(1).line)
        elif turns == 20:
            watcher = place.collector.watch()
        elif turns == 23:
            raise StopAsyncIteration

    link = WorkerLink(worker_socket(place.run_dir, 1, 2), lambda _: pytest.fail("not asked for"), answers=dict.fromkeys(fetched, counted))
    await link.start()
    place.links.append(link)
    place.collector = place.again(second)
    with pytest.raises(StopAsyncIteration):
        await place.collector.run()
    assert looks == [0, 4, 8, 12, 13, 17, 20, 21, 22]
    assert watcher is not None
    assert await place.kept() == [1]
    looks.clear()
    await place.collector.fresh()
    await place.collector.fresh()
    assert looks == [23]


async def test_what_a_worker_that_has_ended_left_is_kept_and_not_twice(place: Place, tmp_path: Path) -> None:
    ring = RequestRing("a")
    await place.worker(ring)
    ring.note(ring_line(1).line)
    await place.collector.look()
    ring.note(ring_line(2).line)
    ring.leave(tmp_path)  # the worker does not know whether its last answer has arrived
    watcher = place.collector.watch()
    await place.links.pop().close()
    await place.collector.close()
    assert [int(one.at_us / 1e6 - AT) for one in watcher.take()[0]] == [2]
    assert await place.kept() == [2, 1]


async def test_what_was_overwritten_is_counted(place: Place) -> None:
    ring = RequestRing("a", most_lines=2)
    await place.worker(ring)
    await place.collector.look()
    for number in range(1, 6):
        ring.note(ring_line(number).line)
    await place.collector.look()
    assert (await place.kept(), place.collector.lost) == ([5, 4], 3)
    assert place.collector.counts() == RequestLogCounts(3)


async def test_requests_wait_for_a_store_that_is_away(place: Place) -> None:
    ring = RequestRing("a")
    await place.worker(ring)
    ring.note(ring_line(1).line)
    place.store.away = True
    await place.collector.look()
    ring.note(ring_line(2).line)
    await place.collector.look()
    assert await place.kept() == []
    place.store.away = False
    await place.collector.look()
    assert (await place.kept(), place.collector.lost) == ([2, 1], 0)


async def test_what_finds_no_room_while_the_store_is_away_is_counted(place: Place) -> None:
    ring = RequestRing("a", most_lines=MOST_WAITING + 10)
    await place.worker(ring)
    place.store.away = True
    await place.collector.look()
    line = ring_line(1).line
    for _ in range(MOST_WAITING + 3):
        ring.note(line)
    await place.collector.look()
    assert place.collector.lost == 3


async def test_an_erased_user_is_removed_and_not_kept_again(place: Place) -> None:
    ring = RequestRing("a")
    await place.worker(ring)
    for number in (1, 2):
        ring.note(ring_line(number).line, "ann")
    ring.note(ring_line(3).line, "bob")
    await place.collector.look()
    await place.purges.add(CachePurge(owner="acme", user="ann", model="sim"), AT + 4)  # of one model's answers: requests stay
    await place.collector.look()
    assert await place.kept() == [3, 2, 1]
    await place.purges.add(CachePurge(owner="acme", user="ann"), AT + 4)
    ring.note(ring_line(4).line, "ann")  # it began before, and ends behind it
    ring.note(ring_line(5).line, "ann")
    await place.collector.look()
    assert await place.kept() == [5, 3]
    await place.purges.add(CachePurge(owner="acme", user="bob", before_unix=AT + 2), AT + 9)
    await place.collector.look()
    assert await place.kept() == [5, 3]


def test_a_watcher_that_is_behind_is_told_how_many_it_missed() -> None:
    watcher = RequestWatcher(most=2)
    watcher.give([logged_request(ring_line(number), 1) for number in range(5)])
    seen, missed = watcher.take()
    assert ([int(one.at_us / 1e6 - AT) for one in seen], missed) == ([3, 4], 3)
    assert watcher.take() == ([], 0)


def test_a_tenants_policy_says_how_long_its_requests_are_kept() -> None:
    document = PolicyDocument.model_validate({"tenant": "acme", "models": [{"name": "sim", "pool": "chat"}], "request_log": {"hours": 3}})
    policies = compiled([document])
    ring = RequestRing("a")
    for tenant, user in (("acme", "ann"), ("bolt", "")):
        ring.observe(record(1, tenant=tenant, user=user), b"line", lambda label: f"digest of {label}", policies)
    from gateway.request_log.ring import RequestsAsked

    assert [(one.end_user, one.hours) for one in ring.fetch(RequestsAsked({}, {})).lines] == [("digest of ann", 3.0), ("", 0.0)]
