"""The events of a Response on their way to the database: each once and in order, whatever the database does meanwhile."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from domain.faults import Fault, Kind
from domain.identity import TenantId
from gateway.background.runs import MOST_BYTES, BackgroundRun, BackgroundRuns, BackgroundTimes
from gateway.http.responses.background import BackgroundTranslation, count_events
from policies.schema import ResponsesPolicy
from tenancy.background import Advance, BackgroundBounds, BackgroundResponse, End, EventBatch
from tenancy.responses import NoRoomForResponses, ResponsesAway, StoredResponse
from tests.responses_wire import chunk, events, sse, translation
from tests.world.loop import VirtualLoop

ACME = TenantId("acme")
NAME = "resp_1"
TIMES = BackgroundTimes(flush_s=0.5, look_s=1.0, lease_s=15.0)


class MemoryStore:
    """One Response in memory; `trouble` is raised by the next writes."""

    def __init__(self) -> None:
        self.state: BackgroundResponse | None = None
        self.batches: list[EventBatch] = []
        self.final: StoredResponse | None = None
        self.trouble: list[Exception] = []
        self.writes = 0

    async def create(self, new: BackgroundResponse, worker: str, told: EventBatch, bounds: BackgroundBounds) -> None:
        self.state, self.batches = new, [told]

    async def advance(self, tenant: TenantId, response_id: str, worker: str, added: Advance, max_bytes: int) -> bool:
        self.writes += 1
        await asyncio.sleep(0)
        if self.trouble:
            raise self.trouble.pop(0)
        if self.state is None or self.state.is_over:
            return False
        assert added.batch.first == self.batches[-1].last + 1
        self.batches.append(added.batch)
        response = self.state.response if added.response is None else added.response
        self.state = replace(self.state, status=added.status, last=added.batch.last, response=response)
        self.final = added.final
        return True

    async def renew(self, worker: str, until_unix: float) -> frozenset[tuple[TenantId, str]]:
        if self.trouble:
            raise self.trouble.pop(0)
        return frozenset() if self.state is None or self.state.is_over else frozenset({(ACME, NAME)})

    async def find(self, tenant: TenantId, response_id: str) -> BackgroundResponse | None:
        return self.state

    async def events(self, tenant: TenantId, response_id: str, after: int) -> list[EventBatch]:
        return [batch for batch in self.batches if batch.last > after]

    async def end(self, tenant: TenantId, response_id: str, ends: End) -> BackgroundResponse | None:
        if self.state is not None and not self.state.is_over and (end := ends(self.state)) is not None:
            self.state, told = end
            self.batches.append(EventBatch(self.state.last, self.state.last, told))
        return self.state

    async def discard(self, tenant: TenantId, response_id: str) -> bool:
        gone, self.state = self.state is not None, None
        return gone

    @property
    def told(self) -> bytes:
        return b"".join(batch.events for batch in self.batches)


class FakeExchange:
    """The exchange of a request that ends when its caller is gone."""

    def __init__(self, run: BackgroundRun) -> None:
        self.run = run
        self.gone = False
        self.heard: list[str] = []
        self.listener = self

    def connection_gone(self) -> None:
        self.gone = True
        self.run.dropped()

    def full(self) -> None:
        self.heard.append("full")

    def drained(self) -> None:
        self.heard.append("drained")


class Site:
    """A run whose Response is queued, its store and its translation."""

    def __init__(self) -> None:
        asked = translation(background=True)
        asked.store(ResponsesPolicy())
        self.translation = BackgroundTranslation(asked)
        self.store = MemoryStore()
        self.runs = BackgroundRuns(self.store, "worker-1", lambda: 100.0, TIMES)
        response, items, told = self.translation.queued()
        began = BackgroundResponse(
            id=NAME, tenant=ACME, created_unix=1.0, expires_unix=9e9, last=1, lease_until_unix=115.0, response=response, items=items
        )
        self.store.state, self.store.batches = began, [EventBatch(0, 1, told)]
        self.run = BackgroundRun(began, self.translation, 1000, lambda: self.translation.stored(ACME, 1.0, ""), self.runs)
        self.exchange: Any = FakeExchange(self.run)
        self.run.exchange = self.exchange
        self.runs.begin(self.run)

    def say(self, *chunks: dict[str, Any], done: bool = False) -> None:
        self.run.add(self.translation.feed(sse(*chunks, done=done)))

    def whole(self) -> None:
        """The end of an answer."""
        self.say(chunk({}, "stop"), done=True)
        self.run.end(self.translation.released())

    async def over(self) -> None:
        """Wait until nothing is left to be written, a minute at most."""
        for _ in range(600):
            if not self.runs.running:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the run goes on")


def simulated(test: Callable[[Site], Awaitable[None]]) -> None:
    """Run a test in virtual time."""
    loop = VirtualLoop(random.Random(1))

    async def run() -> None:
        await test(Site())

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_events_are_written_in_batches_and_the_last_one_with_the_stored_response() -> None:
    async def test(site: Site) -> None:
        for number in range(100):
            site.say(chunk({"content": f"{number} "}))
            await asyncio.sleep(0.05)
        assert site.store.writes <= 5 / TIMES.flush_s + 2
        site.run.add(b": ping\n\n")
        site.whole()
        await site.over()
        found = events(site.store.told)
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        assert found[-1]["type"] == "response.completed"
        assert site.store.state is not None
        assert (site.store.state.status, site.store.state.response) == ("completed", b"")
        assert site.store.final is not None
        assert site.store.final.response == site.translation.stored(ACME, 1.0, "").response

    simulated(test)


@pytest.mark.parametrize("end", ["whole", "failed"])
def test_an_outage_loses_no_event(end: str) -> None:
    async def test(site: Site) -> None:
        site.store.trouble = [ResponsesAway("away")] * 4
        site.say(chunk({"content": "a"}))
        await asyncio.sleep(1.0)
        if end == "whole":
            site.whole()
        else:
            site.run.end(site.translation.broken(Fault(Kind.ENGINE_ERROR, "Broken."), ""))
        await site.over()
        found = events(site.store.told)
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        assert found[-1]["type"] == ("response.completed" if end == "whole" else "response.failed")

    simulated(test)


def test_a_database_that_stays_away_ends_the_request() -> None:
    async def test(site: Site) -> None:
        site.store.trouble = [ResponsesAway("away")] * 1000
        site.say(chunk({"content": "a"}))
        await site.over()
        assert site.exchange.gone

    simulated(test)


def test_an_engine_that_is_faster_than_the_database_waits() -> None:
    async def test(site: Site) -> None:
        site.store.trouble = [ResponsesAway("away")]
        site.say(chunk({"content": "x" * (MOST_BYTES // 2)}), chunk({"content": "y" * (MOST_BYTES // 2)}))
        assert site.exchange.heard == ["full"]
        await asyncio.sleep(2.0)
        assert site.exchange.heard == ["full", "drained"]
        site.whole()
        await site.over()
        assert count_events(site.store.told) == len(events(site.store.told))

    simulated(test)


@pytest.mark.parametrize("how", ["cancelled-here", "cancelled-elsewhere", "deleted"])
def test_a_request_ends_when_its_response_does(how: str) -> None:
    async def test(site: Site) -> None:
        keeping = asyncio.ensure_future(site.runs.keep())
        site.say(chunk({"content": "a"}))
        await asyncio.sleep(1.0)
        if how == "cancelled-here":
            ended = await site.runs.end(ACME, NAME, None)
            assert ended is not None
            assert ended.status == "cancelled"
        elif how == "cancelled-elsewhere":
            await BackgroundRuns(site.store, "worker-2", lambda: 100.0).end(ACME, NAME, None)
        else:
            await site.store.discard(ACME, NAME)
        before = site.store.told
        await site.over()
        assert site.exchange.gone
        site.run.add(b"event: too late\ndata: {}\n\n")
        await asyncio.sleep(3.0)
        assert site.store.told == before
        keeping.cancel()

    simulated(test)


def test_leases_that_cannot_be_renewed_end_nothing() -> None:
    async def test(site: Site) -> None:
        keeping = asyncio.ensure_future(site.runs.keep())
        site.store.trouble = [ResponsesAway("away")] * 3
        await asyncio.sleep(5.0)
        assert not site.exchange.gone
        assert site.store.trouble == []
        site.whole()
        await site.over()
        keeping.cancel()

    simulated(test)


def test_a_response_without_room_fails_and_its_engine_stops() -> None:
    async def test(site: Site) -> None:
        site.store.trouble = [NoRoomForResponses()]
        site.say(chunk({"content": "a"}))
        await site.over()
        assert site.exchange.gone
        assert site.store.state is not None
        assert site.store.state.status == "failed"
        assert events(site.store.told)[-1]["type"] == "response.failed"

    simulated(test)


def test_a_request_that_ends_without_an_end_fails_its_response() -> None:
    async def test(site: Site) -> None:
        site.say(chunk({"content": "a"}))
        site.run.task_over()
        await site.over()
        assert site.store.state is not None
        assert site.store.state.status == "failed"

    simulated(test)


def test_readers_are_woken_by_each_write() -> None:
    async def test(site: Site) -> None:
        changed = site.runs.changed(ACME, NAME)
        assert changed is not None
        site.say(chunk({"content": "a"}))
        await changed.wait()
        assert len(site.store.batches) == 2
        site.whole()
        await site.over()
        assert site.runs.changed(ACME, NAME) is None

    simulated(test)
