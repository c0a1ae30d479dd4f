"""Laws of taking a request back from its backend for a more urgent one: whom, when, and what it leaves."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from backends.breaker import VERDICTS, AttemptVerdict
from backends.poison import MAY_KILL
from domain.ask import Endpoint
from domain.faults import Fault
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.priority import Class
from domain.usage import NO_USAGE, Usage
from gateway.http.edge.relay import ReplyRelay, ReplySource
from gateway.http.edge.taps import PlainTap, StreamTap
from gateway.http.edge.timeouts import AttemptTimeouts, Timeouts
from gateway.placement.concurrency import ConcurrencyLimits
from gateway.placement.in_flight import LONG_PREFILL_TOKENS
from gateway.placement.pool_state import TenantShares
from gateway.queue.deadlines import place_of
from gateway.queue.preempt import AGAIN_S, BURST, Preempted, Preemption, unanswered
from gateway.queue.waiter import Waiter
from gateway.story import Story
from routing.fair_tier import QueuedRequest
from routing.load import BackendFacts, LoadTable
from routing.room import HEADROOM
from tests.stories import with_facts

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
TIMEOUTS = Timeouts(10, 2000, 120, token_gap_s=30, plain_timeout_s=600, heartbeat_s=15, slow_reader_s=30)


class Exchange:
    started = finished = gone = commented = False

    def start(self, headers: bytes) -> None:
        self.started = True

    def write(self, data: bytes) -> None: ...


class Flight:
    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class World:
    """Backends with room for `cap` requests, those that are there, and those that wait."""

    def __init__(self, lowest: Class = Class.BATCH, cap: int = 2, backends: str = "a") -> None:
        self.now = 100.0
        self.load_table = LoadTable(backends)
        for one in backends:
            self.load_table.set_limit(one, requests=cap)
        self.relays: list[ReplyRelay] = []
        self.limits = ConcurrencyLimits()
        self.pulling = Preemption("chat", lowest, self.load_table, self.limits, lambda: self.relays, lambda: self.now)
        self.may_wait = True
        self.asked: list[tuple[QueuedRequest, float]] = []

    def story(self, tier: Class, **options: Any) -> Story:
        caller = Caller(TenantId("acme"), ProjectId("p"), KeyId("k"))
        made = Story("r", self.now, 0.0, self.now, "r")
        return with_facts(made, **{"caller": caller, "pool": "chat", "priority_class": tier, "stream": True, **options})

    def sent(self, tier: Class = Class.BATCH, *, on: str = "a", tokens: int = 1000, **options: Any) -> ReplyRelay:
        self.now += 1.0
        story = self.story(tier, **options)
        story.tried.charge = self.load_table.charge(on, tokens, tokens + 50, self.now)
        judge: StreamTap | PlainTap = PlainTap(story.attempt, lambda: self.now, Endpoint.CHAT, choices=1)
        if story.asked.stream:
            judge = StreamTap(story.attempt, lambda: self.now, choices=1, include_usage=False)
        relay = ReplyRelay(
            Exchange(),  # type: ignore[arg-type]  # what a relay uses of one before its first event
            story,
            judge,
            ReplySource(on, Endpoint.CHAT, (), AttemptTimeouts(10.0, 10.0)),
            headers=lambda: b"",
            timeouts=TIMEOUTS,
            clock=lambda: self.now,
        )
        relay.flight = Flight()
        self.relays.append(relay)
        return relay

    def waits(self, tier: Class = Class.CRITICAL, lacking: Mapping[str, float] | None = None) -> Waiter[Any]:
        place = place_of(10, 0, 10.0, self.story(tier), self.now)
        found = {"a": 10.0} if lacking is None else lacking
        return Waiter(place, 10.0, lambda: None, lambda turn: turn, lambda now: now, asyncio.get_running_loop(), lambda: found)

    def make_room(self, waiter: Waiter[Any]) -> list[ReplyRelay]:
        """Those that gave way."""
        before = pulled(self.relays)

        def may_wait(place: QueuedRequest, may_s: float) -> bool:
            self.asked.append((place, may_s))
            return self.may_wait

        self.pulling.make_room(waiter, may_wait)
        return [one for one in pulled(self.relays) if one not in before]


def pulled(relays: list[ReplyRelay]) -> list[ReplyRelay]:
    return [one for one in relays if one.outcome.done() and isinstance(one.outcome.result(), Preempted)]


async def test_the_one_sent_last_gives_way_and_its_engine_is_told_to_stop() -> None:
    world = World()
    old, young = world.sent(), world.sent()
    flight = young.flight
    assert world.make_room(world.waits()) == [young]
    assert isinstance(flight, Flight) and flight.aborted
    assert not old.outcome.done()
    story = young.story
    assert story.placed.pulled_back
    assert story.placed.queue_place is not None and story.placed.queue_place.back


@pytest.mark.parametrize(
    ("lowest", "sent", "waits", "gives"),
    [
        (Class.BATCH, Class.BATCH, Class.CRITICAL, True),
        (Class.BATCH, Class.BATCH, Class.DEFAULT, True),
        (Class.BATCH, Class.BATCH, Class.BATCH, False),
        (Class.BATCH, Class.DEFAULT, Class.CRITICAL, False),
        (Class.DEFAULT, Class.DEFAULT, Class.INTERACTIVE, True),
        (Class.DEFAULT, Class.DEFAULT, Class.DEFAULT, False),
        (Class.DEFAULT, Class.BATCH, Class.DEFAULT, True),
        (Class.DEFAULT, Class.INTERACTIVE, Class.CRITICAL, False),
    ],
)
async def test_only_what_may_gives_way_and_only_to_a_higher_class(lowest: Class, sent: Class, waits: Class, gives: bool) -> None:
    world = World(lowest)
    world.sent(sent)
    world.sent(sent)
    assert bool(world.make_room(world.waits(waits))) is gives


async def test_of_two_classes_the_lower_gives_way_however_long_it_has_been_there() -> None:
    world = World(Class.DEFAULT)
    batch, _ = world.sent(Class.BATCH), world.sent(Class.DEFAULT)
    assert world.make_room(world.waits()) == [batch]


async def test_who_has_begun_to_answer_is_left_alone_and_a_heartbeat_is_no_answer() -> None:
    world = World()
    begun, beaten = world.sent(), world.sent()
    for relay in (begun, beaten):
        relay.on_head(200, {b"content-type": b"text/event-stream"})
    begun.on_data(EVENT)
    world.now += 20.0
    assert beaten._heartbeat is not None
    beaten._heartbeat.beat(world.now)
    assert world.make_room(world.waits()) == [beaten]
    assert world.make_room(world.waits()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"pool": "other"},
        {"pulled_back": True},
        {"failed": ("b",)},
        {"hedged": ("a", "b")},
        {"queue_place": QueuedRequest("acme", 3, False, 1, 900.0, 0.0, 1, by_share=True)},
        {"stream": False, "tokens": LONG_PREFILL_TOKENS - 1},
    ],
    ids=["of another pool", "gave way before", "a retry", "on two backends", "what its class is due", "a plain one that may have begun"],
)
async def test_these_do_not_give_way(options: dict[str, Any]) -> None:
    world = World(cap=1)
    world.sent(**options)
    assert world.make_room(world.waits()) == []
    world.now += AGAIN_S
    world.load_table.set_limit("a", requests=2)
    other = world.sent()
    assert world.make_room(world.waits()) == [other]


async def test_a_long_plain_one_gives_way_until_its_prompt_is_taken_to_be_computed() -> None:
    world = World(cap=2)
    one, other = world.sent(stream=False), world.sent(stream=False)
    assert other.story.tried.charge is not None
    world.load_table.begun(other.story.tried.charge)
    assert world.make_room(world.waits()) == [one]


async def test_it_has_to_help_the_one_that_waits() -> None:
    world = World(backends="ab")
    for _ in range(2):
        world.sent(on="b")
    assert world.make_room(world.waits(lacking={"a": 10.0})) == [], "it cannot go to b"
    world.now += AGAIN_S
    assert world.make_room(world.waits(lacking={})) == [], "it lacks more than room"
    world.now += AGAIN_S
    world.load_table.set_limit("b", requests=1)
    assert world.make_room(world.waits(lacking={"b": 10.0})) == [], "one less is not enough"
    world.now += AGAIN_S
    world.load_table.set_limit("b", requests=9, tokens=2500)
    assert world.make_room(world.waits(lacking={"b": 2000.0})) == [], "nor are its tokens"
    world.now += AGAIN_S
    assert len(world.make_room(world.waits(lacking={"b": 1200.0}))) == 1


async def test_each_waiting_one_is_given_way_to_once_and_all_so_often() -> None:
    world = World(cap=100)
    for _ in range(100):
        world.sent()
    waiter = world.waits()
    assert len(world.make_room(waiter)) == 1
    assert world.make_room(waiter) == []
    gave = 1 + sum(len(world.make_room(world.waits())) for _ in range(99))
    assert gave == BURST


async def test_who_could_not_wait_for_another_turn_keeps_its_place() -> None:
    world = World()
    world.sent(asked_wait_s=1.5)
    world.sent(asked_wait_s=3.0)
    world.may_wait = False
    assert world.make_room(world.waits()) == []
    assert [round(may_s, 1) for _, may_s in world.asked] == [3.0, 0.5], "what is left of its time counts"


async def test_its_tenant_has_its_charge_back_and_nobody_else_counts_it() -> None:
    world, used = World(cap=1), list[Usage]()
    place = QueuedRequest("acme", 3, False, 500, 900.0, 7.0, 1)
    relay = world.sent(queue_place=place, on_used=used.append)
    assert world.make_room(world.waits()) == [relay]
    assert used == [NO_USAGE]
    story = relay.story
    assert story.placed.on_used is None, "it is not settled once more at its end"
    assert story.placed.queue_place is not None and (story.placed.queue_place.deadline, story.placed.queue_place.entered_at) == (900.0, 7.0)
    fault = relay.outcome.result()
    assert isinstance(fault, Fault)
    assert VERDICTS[fault.kind] is AttemptVerdict.NEUTRAL
    assert fault.kind not in MAY_KILL


async def test_it_is_unanswered_until_the_first_event_or_the_head_of_a_plain_answer_or_its_end() -> None:
    world = World(cap=9)
    stream, plain, failed, gone = world.sent(), world.sent(stream=False), world.sent(), world.sent()
    assert all(unanswered(one) for one in world.relays)
    stream.on_head(200, {b"content-type": b"text/event-stream"})
    assert unanswered(stream)
    stream.on_data(EVENT)
    plain.on_head(200, {b"content-type": b"application/json"})
    failed.on_head(503, {})
    gone.gone()
    assert not any(unanswered(one) for one in world.relays)


def of(tenant: str) -> Caller:
    return Caller(TenantId(tenant), ProjectId("p"), KeyId("k"))


def shared(world: World, **counts: int) -> TenantShares:
    shares = TenantShares(HEADROOM)
    for tenant, count in counts.items():
        for _ in range(count):
            shares.request_sent(tenant)
    world.pulling = Preemption("chat", None, world.load_table, world.limits, lambda: world.relays, lambda: world.now, shares=shares)
    return shares


async def test_for_a_tenant_with_little_the_last_one_of_a_tenant_with_far_more_gives_way_in_its_own_class() -> None:
    world = World(cap=8)
    sent = [world.sent(Class.DEFAULT, caller=of("loud")) for _ in range(8)]
    shared(world, loud=8)
    assert world.make_room(world.waits(Class.BATCH)) == [], "not for a lower class"
    world.now += AGAIN_S
    assert world.make_room(world.waits(Class.DEFAULT)) == [sent[-1]]


@pytest.mark.parametrize("counts", [{"loud": 8, "other": 3}, {"loud": 4, "acme": 4}, {"loud": 1}], ids=["not far more", "alike", "one"])
async def test_where_the_others_have_something_too_nobody_gives_way(counts: dict[str, int]) -> None:
    world = World(cap=8)
    for _ in range(8):
        world.sent(Class.DEFAULT, caller=of("loud"))
    shared(world, **counts)
    assert world.make_room(world.waits(Class.DEFAULT)) == []


async def test_all_that_stand_in_the_engines_own_queue_give_way_at_once() -> None:
    world = World(cap=10)
    world.load_table.set_limit("a", requests=10, slots=8)
    sent = [world.sent(Class.DEFAULT, caller=of("loud")) for _ in range(14)]
    shared(world, loud=14)
    assert world.make_room(world.waits(Class.DEFAULT)) == sent[7:]
    world = World(cap=10)
    world.load_table.set_limit("a", requests=10, slots=8)
    begun = [world.sent(Class.DEFAULT, caller=of("loud")) for _ in range(12)]
    for relay in begun:
        relay.on_head(200, {b"content-type": b"text/event-stream"})
        relay.on_data(EVENT)
    world.sent(Class.DEFAULT, caller=of("loud"))
    shared(world, loud=13)
    assert world.make_room(world.waits(Class.DEFAULT)) == [], "what has begun stays, and one less makes no room"


async def test_where_only_a_cap_bounds_an_engine_its_slots_are_the_cap() -> None:
    world = World(cap=10)
    world.load_table.set_limit("a")
    world.load_table.set_facts("a", BackendFacts(4, 0, 1.0, ""))
    sent = [world.sent(Class.DEFAULT, caller=of("loud")) for _ in range(4)]
    shared(world, loud=4)
    assert world.make_room(world.waits(Class.DEFAULT)) == sent[3:]
