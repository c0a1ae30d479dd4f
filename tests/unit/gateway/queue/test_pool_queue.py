"""The laws of a queue, on virtual time: one engine with so much room, requests that decide for themselves whether they fit."""

import asyncio
import random
from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType
from typing import Any

import pytest

from domain.faults import Fault, Kind
from domain.usage import Usage
from gateway.queue import refusals
from gateway.queue.pool_queue import MakeRoom, PoolQueue, PoolQueues
from gateway.queue.waiter import Waiter, WaitForecast
from routing.fair_queue import QUANTUM, SHARE, QueueBounds
from routing.fair_tier import QueuedRequest
from routing.load import Charge, LoadTable
from routing.room import has_no_room
from tests.placement import pool_of


class Went:
    """Where a request went, with its place there."""

    def __init__(self, world: "World", charge: Charge | None = None) -> None:
        self.world = world
        self.charge = charge

    @property
    def reserved(self) -> "Went":
        return self

    def over(self) -> None:
        if self.charge is not None:
            self.world.load_table.release(self.charge)


class World:
    """One backend with room for `cap` requests, and a queue in front of it."""

    def __init__(self, cap: int = 1, bounds: QueueBounds | None = None, parts: Mapping[str, float] = MappingProxyType({})) -> None:
        self.now = 0.0
        self.load_table = LoadTable("a")
        self.pool = pool_of("a")
        self.load_table.set_limit("a", requests=cap)
        self.defects: list[BaseException] = []
        self.bounds = bounds or QueueBounds()
        self.parts = parts
        self.unreached: set[str] = set()
        self.held_back: set[str] = set()
        self.holds_more: set[str] = set()
        self.queue = self.made()
        self.charges: list[Charge] = []
        self.beats: list[float] = []

    def made(self, make_room: MakeRoom | None = None) -> PoolQueue:
        return PoolQueue(
            "p",
            self.bounds,
            self.load_table,
            lambda: self.pool,
            clock=lambda: self.now,
            loop=asyncio.get_running_loop(),
            rng=random.Random(1),
            log_defect=lambda error, _: self.defects.append(error),
            make_room=make_room,
            part_of=lambda tenant: self.parts.get(tenant, 1.0),
            held_back=lambda tenant: tenant in self.held_back,
            holds_more=lambda tenant: tenant in self.holds_more,
            unreached=lambda backends: backends <= self.unreached,
        )

    def fill(self, count: int = 1) -> list[Charge]:
        return [self.load_table.charge("a", 10, 10, self.now) for _ in range(count)]

    def waiter(self, tenant: str = "t", cost: int = 100, may_s: float = 10.0, tier: int = 2, **options: Any) -> Waiter[Went]:
        fits: Callable[[], bool] = options.pop("fits", lambda: True)

        def again() -> Went | None:
            return Went(self) if fits() and not has_no_room(self.load_table, 0, 1.0, self.parts.get(tenant, 1.0)) else None

        def reserve(went: Went) -> Went:
            charge = self.load_table.charge("a", cost, cost, self.now)
            self.charges.append(charge)
            return Went(self, charge)

        def beat(now: float) -> float:
            self.beats.append(now)
            return now + 5.0

        place = QueuedRequest(tenant, tier, False, cost, self.now + may_s, self.now, 1000)
        return Waiter(place, may_s, options.pop("again", again), reserve, options.pop("beat", beat), asyncio.get_running_loop())

    async def come(self, **options: Any) -> tuple[Waiter[Went], "asyncio.Task[Went]"]:
        waiter = self.waiter(**options)
        task = asyncio.create_task(self.queue.wait(waiter))
        await asyncio.sleep(0)
        return waiter, task

    async def later(self, seconds: float) -> None:
        self.now += seconds
        self.queue.sweep(self.now)
        await turns()


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def fault_of(task: "asyncio.Task[Went]") -> Fault:
    found = task.exception()
    assert isinstance(found, Fault)
    return found


async def test_one_that_ends_lets_one_through_and_two_wake_ups_take_one_place_once() -> None:
    world = World(cap=2)
    held = world.fill(2)
    tasks = [(await world.come(tenant=name))[1] for name in "abc"]
    assert world.queue.waiting == 3
    world.load_table.release(held[0])
    world.load_table.begun(held[1])
    world.queue.sweep(world.now)
    await turns()
    assert [task.done() for task in tasks].count(True) == 1
    assert world.load_table.in_flight("a") == 2
    world.load_table.release(held[1])
    await turns()
    assert (world.queue.waiting, world.load_table.in_flight("a")) == (1, 2)


async def test_who_comes_while_there_is_room_and_nobody_is_before_it_does_not_wait() -> None:
    world = World()
    _, task = await world.come()
    await turns()
    assert task.done()
    assert world.load_table.freed is None, "and nobody is told of anything while nobody waits"


async def test_a_limit_that_grows_and_a_backend_that_comes_up_let_through() -> None:
    world = World()
    world.fill(1)
    _, first = await world.come()
    _, second = await world.come()
    world.load_table.set_limit("a", requests=2)
    await turns()
    assert (first.done(), second.done()) == (True, False)
    world.load_table.add("b")
    world.pool = pool_of("a", "b")
    world.load_table.set_limit("a", requests=3)
    await world.later(0.25)
    assert second.done()


@pytest.mark.req("R22")
async def test_who_leaves_is_out_at_once_and_leaves_nothing() -> None:
    world = World()
    held = world.fill()
    waiter, task = await world.come()
    waiter.gone()
    waiter.gone()
    await turns()
    assert (fault_of(task).kind, waiter.word, world.queue.waiting) == (Kind.CLIENT_GONE, refusals.GONE, 0)
    world.load_table.release(held[0])
    await turns()
    assert world.load_table.in_flight("a") == 0


async def test_a_place_that_was_given_to_a_task_that_is_cancelled_meanwhile_is_given_back() -> None:
    world = World()
    held = world.fill()
    _, first = await world.come()
    _, second = await world.come()
    world.load_table.release(held[0])
    await asyncio.sleep(0)  # let through, and not told yet
    first.cancel()
    await turns()
    assert first.cancelled()
    assert second.done()
    assert world.load_table.in_flight("a") == 1
    third, task = await world.come()
    task.cancel()
    await turns()
    assert (world.queue.waiting, third.word) == (0, refusals.GONE)


async def test_its_deadline_ends_a_wait_and_says_when_to_come_back() -> None:
    world = World()
    world.fill()
    waiter, task = await world.come(may_s=1.0)
    await world.later(0.9)
    assert not task.done()
    await world.later(0.2)
    fault = fault_of(task)
    assert (fault.kind, waiter.word) == (Kind.OVERLOADED, refusals.TIMED_OUT)
    assert fault.retry.should
    assert world.queue.waiting == 0


async def test_what_would_wait_too_long_is_refused_at_once() -> None:
    world = World()
    for _ in range(20):  # one of 100 tokens each second
        held = world.fill()
        _, task = await world.come()
        await world.later(1.0)
        world.load_table.release(held[0])
        await turns()
        assert task.done()
        world.load_table.release(world.charges[-1])
    world.fill()
    for _ in range(5):
        await world.come(may_s=60.0)
    assert world.queue.state().tokens_per_s == pytest.approx(100.0, rel=0.1)
    waiter, task = await world.come(may_s=3.0, tier=3)
    fault = fault_of(task)
    assert (fault.kind, waiter.word) == (Kind.OVERLOADED, refusals.TOO_LONG)
    told = float(fault.message.partition("about ")[2].partition(" s")[0])
    assert 5.0 <= told <= 8.0, "what is before it, and what such waits were longer by"
    assert fault.retry.after_s is not None
    assert 1.0 <= fault.retry.after_s <= 5.0
    assert not (await world.come(may_s=8.0, tier=3))[1].done()
    waiter, task = await world.come(may_s=0.0)
    assert waiter.word == refusals.TOO_LONG


async def test_an_outage_does_not_make_everybody_afterwards_look_late() -> None:
    world = World()
    for _ in range(20):
        held = world.fill()
        await world.come()
        await world.later(1.0)
        world.load_table.release(held[0])
        await turns()
        world.load_table.release(world.charges[-1])
    held = world.fill()
    await world.come(may_s=600.0)
    pace, up = world.queue.state().tokens_per_s, world.pool
    world.pool = type(up)("p", "m", "1", "vllm", up.backends)
    for _ in range(40):
        await world.later(1.0)
    world.pool = up
    await world.later(0.25)
    assert world.queue.state().tokens_per_s == pytest.approx(pace, rel=0.2)


async def test_bounds_refuse_and_a_more_urgent_one_takes_the_place_of_another() -> None:
    world = World(bounds=QueueBounds(3, 10_000, 2, 10_000))
    world.fill()
    low, displaced = await world.come(tenant="x", tier=3)
    for name in "yz":
        await world.come(tenant=name)
    waiter, task = await world.come(tenant="w", tier=3)
    assert (fault_of(task).kind, waiter.word) == (Kind.OVERLOADED, "count")
    _, task = await world.come(tenant="w", tier=0)
    await turns()
    assert not task.done()
    assert (fault_of(displaced).kind, low.word, world.queue.waiting) == (Kind.OVERLOADED, refusals.DISPLACED, 3)


async def test_a_pool_that_is_away_is_waited_for_and_one_that_is_gone_is_not() -> None:
    world = World()
    world.fill()
    _, task = await world.come(may_s=60.0)
    away = pool_of()
    world.pool = type(away)("p", "m", "1", "vllm", pool_of("a").backends)
    await world.later(1.0)
    assert not task.done()
    world.pool = away
    await world.later(1.0)
    assert fault_of(task).kind is Kind.NO_BACKEND


@pytest.mark.req("GATEWAYS-19")
async def test_where_no_backend_was_reached_in_time_the_fault_says_so() -> None:
    world = World()
    world.fill()
    _, task = await world.come(may_s=3.0)
    world.unreached = {"a"}
    assert world.queue.forecast(QueuedRequest("t", 2, False, 100, 3.0, 0.0, 1000), 3.0) is None, (
        "an outage is no overload: no step of a ladder is taken"
    )
    await world.later(3.5)
    fault = fault_of(task)
    assert (fault.kind, fault.retry.should, world.queue.waiting) == (Kind.NO_BACKEND, True, 0)
    assert 1.0 <= fault.retry.after_s <= 5.0


async def test_one_that_can_never_be_placed_does_not_keep_the_others() -> None:
    world = World()
    held = world.fill()

    def never() -> Went | None:
        raise Fault(Kind.CONTEXT_TOO_LONG, "too long")

    def broken() -> Went | None:
        raise RuntimeError("a defect")

    hopeless, first = await world.come(again=never)
    _, second = await world.come(again=broken)
    _, third = await world.come(fits=lambda: False)
    _, fourth = await world.come()
    world.load_table.release(held[0])
    await turns()
    assert (fault_of(first).kind, hopeless.word) == (Kind.CONTEXT_TOO_LONG, refusals.NOBODY)
    assert fault_of(second).kind is Kind.INTERNAL
    assert len(world.defects) == 1
    assert not third.done()
    assert fourth.done()


async def test_callers_hear_that_they_wait_and_no_more_often_than_they_are_to() -> None:
    world = World()
    world.fill()
    await world.come(may_s=600.0)
    for _ in range(80):
        await world.later(0.25)
    assert len(world.beats) == 5  # when it came, and after 5, 10, 15 and 20 s


async def test_when_the_grace_is_over_everybody_is_told_and_nobody_waits_any_more() -> None:
    world = World()
    world.fill()
    _, task = await world.come()
    PoolQueues({"p": world.queue}).stop()
    await turns()
    assert fault_of(task).kind is Kind.SHUTTING_DOWN
    _, late = await world.come()
    assert fault_of(late).kind is Kind.SHUTTING_DOWN


async def test_a_tenant_that_took_less_than_it_was_thought_to_has_its_turn_sooner() -> None:
    order = []
    for used in (0, 100_000):
        world = World()
        held = world.fill()
        waiter, first = await world.come(tenant="t", cost=20_000)
        tasks = {name: (await world.come(tenant=name, cost=20_000))[1] for name in "tutu"}
        del tasks
        world.load_table.release(held[0])
        await turns()
        assert first.done()
        world.queue.used(waiter.place, Usage(used, 0))
        went = len(world.charges)
        world.load_table.release(world.charges[-1])
        await turns()
        assert len(world.charges) == went + 1
        order.append([one.place.tenant for one in world.queue._line.waiters.values()])
    assert order[0] != order[1]


async def test_what_is_told_of_a_line() -> None:
    world = World()
    world.fill()
    for tier in (0, 2, 2, 3):
        await world.come(tier=tier)
    states = PoolQueues({"p": world.queue}).states()
    assert (states[0].pool, states[0].waiting, states[0].tokens_per_s) == ("p", (1, 0, 2, 1), 0.0)
    assert world.queue.predicted_s(world.waiter().place) == 0.0 < inf


async def test_what_a_request_would_meet_is_known_before_it_comes() -> None:
    world = World(cap=1)

    def met() -> WaitForecast | None:
        return world.queue.forecast(world.waiter().place, 10.0)

    assert met() == WaitForecast(), "there is room"
    world.fill()
    assert met() == WaitForecast(True), "nobody waits yet, but it would"
    _, task = await world.come()
    assert met() == WaitForecast(True), "how long nobody knows"
    refused = world.queue.forecast(world.waiter().place, 0.0)
    assert refused is not None and refused.refused is not None
    assert refused.refused[0] == refusals.TOO_LONG
    world.pool = pool_of()
    assert met() is None, "nobody is up"
    task.cancel()
    await turns()


async def test_the_one_whose_turn_it_is_may_be_made_room_for_and_nobody_else() -> None:
    world = World()
    asked: list[tuple[Waiter[Went], bool]] = []
    held = world.fill()
    world.queue = world.made(lambda waiter, may_wait: asked.append((waiter, may_wait(waiter.place, 5.0))))
    batch, _ = await world.come(tier=3)
    urgent, task = await world.come(tier=0)
    await world.come(tier=2)
    assert [waiter for waiter, _ in asked] == [batch, urgent, urgent]
    assert all(may_wait for _, may_wait in asked)
    world.load_table.release(held[0])
    await turns()
    assert task.done()
    asked.clear()
    world.queue.stop()
    await world.later(1.0)
    assert asked == []


async def test_a_defect_while_room_is_made_is_told_and_keeps_nobody_waiting() -> None:
    world = World()
    held = world.fill()

    def defect(waiter: Waiter[Any], refusal: object) -> None:
        raise RuntimeError("no")

    world.queue = world.made(defect)
    _, task = await world.come(tier=0)
    assert [str(one) for one in world.defects] == ["no"]
    world.load_table.release(held[0])
    await turns()
    assert task.done()


async def test_one_that_room_is_kept_from_waits_while_others_go_past_and_takes_nobodys_place() -> None:
    world, asked = World(cap=4, parts={"loud": 0.5}), []
    world.queue = world.made(lambda waiter, _: asked.append(waiter.place.tenant))
    world.fill(2)
    _, loud = await world.come(tenant="loud", tier=0)
    _, other = await world.come(tenant="other", tier=3)
    await turns()
    assert (loud.done(), other.done(), world.queue.waiting) == (False, True, 1)
    assert asked == [], "what is kept from it is not made free for it either"
    assert world.queue.forecast(world.waiter(tenant="other").place, 10.0) is not None
    for charge in world.charges:
        world.load_table.release(charge)
    held = world.fill(2)
    _, second = await world.come(tenant="third")
    assert asked == ["third"], "in a full house the one whose turn it is may be made room for, where nothing is kept from it"
    for charge in held:
        world.load_table.release(charge)
    await turns()
    assert (second.done(), loud.done()) == (True, False)
    world.parts = {}
    world.queue.sweep(world.now)
    await turns()
    assert loud.done()


async def test_what_is_free_goes_to_who_holds_least_and_is_not_left_idle() -> None:
    world = World(cap=2)
    world.holds_more = {"loud"}
    world.fill(2)
    loud, quiet = [await world.come(tenant="loud") for _ in range(3)], await world.come(tenant="quiet", cost=5000)
    world.load_table.release(next(iter(world.load_table.loads[0].charges)))
    await turns()
    assert quiet[1].done() and not any(task.done() for _, task in loud)
    world.load_table.release(next(iter(world.load_table.loads[0].charges)))
    await turns()
    assert [task.done() for _, task in loud] == [True, False, False]
    world.queue.stop()
    await turns()


async def test_a_tenant_with_room_of_its_own_is_not_refused_for_the_wait_of_another() -> None:
    world = World(cap=9)
    world.held_back = {"loud"}
    _, loud = await world.come(tenant="loud", may_s=600.0)
    await world.later(100.0)
    place = world.waiter(tenant="quiet", may_s=2.0).place
    assert world.queue.predicted_s(place) > 2.0
    assert world.queue.refusal(place, 2.0) is None
    assert world.queue.refusal(world.waiter(tenant="loud", may_s=2.0).place, 2.0) is not None
    _, quiet = await world.come(tenant="quiet", may_s=2.0)
    await turns()
    assert quiet.done() and not loud.done()
    world.queue.stop()
    await turns()


async def test_what_is_kept_for_others_is_not_for_lower_classes_while_a_higher_one_waits() -> None:
    """Else the headroom would turn the classes round: of a tenant with much in flight the critical request waited, and every place that
    came free went to a batch request of a tenant with little."""
    world = World()
    (first,) = world.fill()
    world.held_back = {"loud"}
    _, urgent = await world.come(tenant="loud", tier=0)
    _, batch = await world.come(tenant="quiet", tier=3)
    _, equal = await world.come(tenant="calm", tier=0)
    world.load_table.release(first)
    await turns()
    assert (equal.done(), batch.done(), urgent.done()) == (True, False, False), "of the same class the others go first"
    world.load_table.release(world.charges.pop())
    await turns()
    assert (batch.done(), urgent.done()) == (False, False)
    world.held_back.clear()
    await world.later(0.3)
    assert (batch.done(), urgent.done()) == (False, True)
    world.load_table.release(world.charges.pop())
    await turns()
    assert batch.done()
    assert world.defects == []


async def test_who_waits_for_a_slot_is_passed_by_those_that_need_none_and_goes_when_there_is_one() -> None:
    world = World(cap=2)
    slot = False

    waits = world.waiter(again=lambda: Went(world) if slot else None)
    waits.lacks_slot = lambda: not slot
    task = asyncio.create_task(world.queue.wait(waits))
    await turns()
    assert (world.queue.waiting, world.queue.in_line) == (1, 0)
    assert world.queue.forecast(world.waiter().place, 10.0) == WaitForecast(), "nobody waits for capacity"
    passing, _ = await world.come()
    await turns()
    assert passing.word == refusals.SERVED
    world.fill()
    full, behind = await world.come()
    await turns()
    assert (full.word, world.queue.waiting, world.queue.in_line) == ("", 2, 1)
    slot = True
    world.load_table.release(world.charges[0])
    await turns()
    assert waits.word == refusals.SERVED, "it came first"
    assert (world.queue.waiting, world.queue.in_line) == (1, 1)
    world.load_table.release(world.charges[-1])
    await turns()
    assert full.word == refusals.SERVED
    await asyncio.gather(task, behind)
    assert (world.queue.waiting, world.queue.in_line) == (0, 0)


async def test_a_wait_for_a_slot_that_ends_unserved_is_not_counted_any_more() -> None:
    world = World()
    waits = world.waiter(again=lambda: None, may_s=5.0)
    waits.lacks_slot = lambda: True
    task = asyncio.create_task(world.queue.wait(waits))
    await turns()
    await world.later(6.0)
    with pytest.raises(Fault) as ended:
        await task
    assert ended.value.kind is Kind.OVERLOADED
    assert (world.queue.waiting, world.queue.in_line) == (0, 0)


async def test_nobody_is_preempted_for_a_request_that_lacks_a_slot() -> None:
    world = World()
    asked: list[Waiter[Any]] = []
    world.queue = world.made(lambda waiter, _: asked.append(waiter))
    world.fill()
    slotless = world.waiter(again=lambda: None)
    slotless.lacks_slot = lambda: True
    tasks = [asyncio.create_task(world.queue.wait(slotless))]
    await turns()
    assert asked == []
    waiter, task = await world.come()
    await turns()
    assert asked == [waiter]
    for one in (*tasks, task):
        one.cancel()
    await asyncio.gather(*tasks, task, return_exceptions=True)


async def test_many_that_wait_for_slots_neither_hide_one_that_waits_for_capacity_nor_say_how_fast_the_pool_is() -> None:
    world = World()
    (charge,) = world.fill()
    tasks = []
    for _ in range(100):
        waits = world.waiter(again=lambda: None, may_s=60.0)
        waits.lacks_slot = lambda: True
        tasks.append(asyncio.create_task(world.queue.wait(waits)))
    await turns()
    await world.later(30.0)
    assert (world.queue.waiting, world.queue.in_line) == (100, 0)
    waiter, task = await world.come(may_s=10.0)
    assert waiter.predicted_s == 0.0, "that nobody was sent for 30 s says nothing of capacity"
    assert waiter.ahead == 0
    world.load_table.release(charge)
    await turns()
    assert waiter.word == refusals.SERVED, "by the first look that finds capacity"
    for one in (*tasks, task):
        one.cancel()
    await asyncio.gather(*tasks, task, return_exceptions=True)
    assert (world.queue.waiting, world.queue.in_line) == (0, 0)


@pytest.mark.parametrize("lacks", [False, True])
async def test_one_that_nobody_can_serve_any_more_is_counted_out_of_the_line_that_it_was_in(lacks: bool) -> None:
    world = World()
    lacking = True

    def again() -> Went | None:
        nonlocal lacking
        lacking = lacks
        raise Fault(Kind.NO_BACKEND, "Nobody.")

    waits = world.waiter(again=again)
    waits.lacks_slot = lambda: lacking
    with pytest.raises(Fault):
        await world.queue.wait(waits)
    assert (world.queue.waiting, world.queue.in_line) == (0, 0)


async def test_who_waits_for_capacity_and_then_lacks_a_slot_changes_its_line() -> None:
    world = World()
    (charge,) = world.fill()
    slot = False
    waits = world.waiter(again=lambda: Went(world) if slot else None)
    waits.lacks_slot = lambda: world.load_table.in_flight("a") == 0 and not slot
    task = asyncio.create_task(world.queue.wait(waits))
    await turns()
    assert world.queue.in_line == 1
    world.load_table.release(charge)
    await turns()
    assert (world.queue.waiting, world.queue.in_line) == (1, 0)
    passing, _ = await world.come()
    await turns()
    assert passing.word == refusals.SERVED
    slot = True
    world.load_table.release(world.charges[-1])
    await turns()
    assert waits.word == refusals.SERVED
    await task
    assert (world.queue.waiting, world.queue.in_line) == (0, 0)


async def test_of_a_slot_waiter_and_one_for_capacity_the_higher_class_goes_first() -> None:
    for tier, first in ((1, "slot"), (2, "slot"), (3, "capacity")):
        world = World()
        (charge,) = world.fill()
        waits = world.waiter(tier=tier)
        to_a, waits.again = waits.again, lambda: None
        waits.lacks_slot = lambda: True
        tasks = [asyncio.create_task(world.queue.wait(waits))]
        await turns()
        capacity, task = await world.come(tier=2)
        waits.again = to_a
        world.load_table.release(charge)
        await turns()
        assert [name for name, one in (("slot", waits), ("capacity", capacity)) if one.word == refusals.SERVED] == [first], tier
        for one in (*tasks, task):
            one.cancel()
        await asyncio.gather(*tasks, task, return_exceptions=True)


async def test_a_request_that_one_walk_looks_at_twice_changes_its_line_once() -> None:
    """One turn in 32 begins with the tenant's oldest request, which may be among the first in its order as well."""
    world = World()
    (charge,) = world.fill()
    lacking = False

    def again() -> None:
        nonlocal lacking
        lacking = True

    oldest = world.waiter(again=again)
    oldest.lacks_slot = lambda: lacking
    oldest.place.order_s = 1000.0
    tasks = [asyncio.create_task(world.queue.wait(oldest))]
    await turns()
    tasks += [(await world.come())[1] for _ in range(31)]
    world.load_table.release(charge)
    for _ in range(40):
        await turns()
        while world.charges:
            world.load_table.release(world.charges.pop())
    assert sum(task.done() for task in tasks) == 31
    assert (world.queue.waiting, world.queue.in_line) == (1, 0)
    _, newcomer = await world.come(tenant="other")
    await turns()
    assert newcomer.done()
    await world.later(100.0)
    with pytest.raises(Fault):
        await tasks[0]
    assert world.defects == []


async def test_a_lower_class_that_waits_for_a_slot_has_its_share_of_what_the_others_are_served() -> None:
    world = World()
    (charge,) = world.fill()
    low = world.waiter(tier=3)
    to_a, low.again = low.again, lambda: None
    low.lacks_slot = lambda: True
    tasks = [asyncio.create_task(world.queue.wait(low))]
    await turns()
    low.again = to_a
    served = 0
    tasks.append((await world.come(tier=1, cost=2000))[1])
    world.load_table.release(charge)
    while not low.word and served < 200:
        tasks.append((await world.come(tier=1, cost=2000))[1])
        await turns()
        for done in world.charges:
            world.load_table.release(done)
        served += len(world.charges)
        world.charges.clear()
        await turns()
    assert low.word == refusals.SERVED
    assert served == pytest.approx(QUANTUM / (SHARE * 2000), abs=3)
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_equal_classes_of_both_lines_take_turns() -> None:
    world = World()
    (charge,) = world.fill()
    order: list[str] = []
    tasks = []
    for _ in range(4):
        for_slot = world.waiter(tenant="slots")
        to_a, for_slot.again = for_slot.again, lambda: None
        for_slot.lacks_slot = lambda: True
        tasks.append(asyncio.create_task(world.queue.wait(for_slot)))
        await turns()
        for_slot.again = to_a
        tasks.append((await world.come(tenant="capacity"))[1])
    for at in range(8):
        world.load_table.release(charge if at == 0 else world.charges[-1])
        await turns()
        order = ["slots" if at % 2 == 0 else "capacity" for at, task in enumerate(tasks) if task.done()]
        assert abs(order.count("slots") - order.count("capacity")) <= 1
    assert len(order) == 8


async def test_capacity_goes_in_the_same_look_to_those_behind_requests_that_change_their_line() -> None:
    world = World()
    (charge,) = world.fill()
    tasks = []
    for _ in range(4):
        slotless = world.waiter(again=lambda: None)
        slotless.lacks_slot = lambda: world.load_table.in_flight("a") == 0
        tasks.append(asyncio.create_task(world.queue.wait(slotless)))
        await turns()
    behind = [(await world.come())[0] for _ in range(4)]
    assert world.queue.in_line == 8
    world.load_table.release(charge)
    await turns()
    assert [one.word for one in behind].count(refusals.SERVED) == 1
    assert world.queue.in_line == 3
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_whoever_is_cancelled_in_the_turn_of_its_dispatch_is_not_sent() -> None:
    world = World()
    (charge,) = world.fill()
    _, task = await world.come()
    task.cancel()
    world.load_table.release(charge)
    world.queue.sweep(world.now)
    await asyncio.gather(task, return_exceptions=True)
    assert (world.queue.waiting, world.load_table.in_flight("a"), world.charges) == (0, 0, [])
