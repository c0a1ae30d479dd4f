"""Laws of refusals that a process repeats by itself: the store is spared, and no wait that is named changes by it."""

import asyncio
import random

import pytest

from domain.identity import TenantId
from tenancy.hold import Admitted, Beat, Hold, Refused
from tenancy.limits import UNUSED, Amounts, Group, Level, Limit, Meter, Rolling, Scope, Window, line_of
from tenancy.stores import kept_refusals
from tenancy.stores.kept_refusals import ASK_EVERY_S, ASKING, KeptRefusals
from tenancy.stores.memory import MemoryCounters

ACME = Scope(Level.TENANT, "acme")
NOON = 1_800_000_000.0
IDS = iter(range(10**9))


class Clock:
    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now


class Store:
    """A store in memory that counts how often it is asked, and answers when it is let."""

    in_process = False
    crowded = 0

    def __init__(self, clock):
        self.counters, self.asked, self.open = MemoryCounters(clock), 0, asyncio.Event()
        self.open.set()

    async def admit(self, hold):
        self.asked += 1
        admission = await self.counters.admit(hold)
        await self.open.wait()
        return admission

    async def beat(self, beats):
        await self.counters.beat(beats)

    async def settle(self, hold, actual):
        await self.counters.settle(hold, actual)

    async def look(self, group):
        return await self.counters.look(group)


class World:
    def __init__(self, *limits):
        self.clock = Clock()
        self.store = Store(self.clock)
        self.kept = KeptRefusals(self.store, self.clock)
        self.group = group_of(*limits)

    def hold(self, group=None, **amounts):
        return Hold(f"h{next(IDS)}", TenantId("acme"), Amounts(**amounts), (group or self.group,))

    async def ask(self, group=None, **amounts):
        return await self.kept.admit(self.hold(group, **amounts))

    async def used(self, **amounts):
        """As `ask`; an admitted request is over at once, with all that it asked for, so that no lease of it ends."""
        hold = self.hold(**amounts)
        told = await self.kept.admit(hold)
        if isinstance(told, Admitted):
            await self.store.counters.settle(hold, hold.amounts)
        return told

    async def filled(self, **amounts):
        """All that fits."""
        holds = []
        while True:
            hold = self.hold(**amounts)
            if isinstance(await self.kept.admit(hold), Refused):
                return holds
            holds.append(hold)


def limit(meter, window, amount, **more):
    return Limit(ACME, meter, window, amount, **more)


def group_of(*limits):
    return Group("acme", tuple(line_of(one, NOON) for one in limits))


async def test_a_flood_of_refusals_asks_the_store_once_a_second_and_is_told_the_rest_of_the_wait():
    world = World(limit(Meter.REQUESTS, Window.DAY, 60))
    assert len(await world.filled()) == 60
    asked, first = world.store.asked, await world.ask()
    for _ in range(5000):
        world.clock.now += 0.001
        told = await world.ask()
        assert told.wait_us == pytest.approx(first.wait_us - (world.clock.now - NOON) * 1e6, abs=2)
        assert (told.line, told.remaining, told.never) == (first.line, first.remaining, False)
    assert world.store.asked - asked <= 5
    assert world.kept.repeated > 4990


@pytest.mark.req("R61")
@pytest.mark.parametrize("seed", range(20))
async def test_who_waits_as_long_as_is_said_passes_and_who_comes_sooner_does_not(seed):
    """For two rates together and requests of many sizes; the first of each were refused by the store, and most by this process."""
    dice = random.Random(seed)
    world = World(limit(Meter.TOKENS, Window.MINUTE, 60_000, burst=9_000), limit(Meter.REQUESTS, Window.MINUTE, 90))
    passed = too_soon = tries = 0
    for _ in range(60):
        least = dice.randint(1, 4000)
        while isinstance(await world.used(input_tokens=least), Admitted):
            pass
        world.clock.now += dice.random() * 0.01
        amount = least + dice.choice((0, dice.randint(0, 2000)))
        told = await world.used(input_tokens=amount)
        if not isinstance(told, Refused) or told.wait_us is None:
            continue
        tries += 1
        began = world.clock.now
        world.clock.now = began + 0.9 * told.wait_us / 1e6
        too_soon += isinstance(await world.used(input_tokens=amount), Refused)
        world.clock.now = began + told.wait_us / 1e6 + 2e-6  # a second of today has no more digits
        passed += isinstance(await world.used(input_tokens=amount), Admitted)
    assert tries > 30
    assert passed == tries
    assert too_soon == tries


async def test_a_smaller_request_and_another_limit_are_for_the_store_to_decide():
    world = World(limit(Meter.TOKENS, Window.DAY, 100))
    assert isinstance(await world.ask(input_tokens=60), Admitted)
    assert isinstance(await world.ask(input_tokens=50), Refused)
    assert isinstance(await world.ask(input_tokens=40), Admitted)
    other = Group("bolt", (line_of(limit(Meter.TOKENS, Window.DAY, 100), NOON),))
    assert isinstance(await world.ask(other, input_tokens=50), Admitted)
    asked = world.store.asked
    assert (await world.ask(input_tokens=101)).never
    assert world.store.asked == asked, "larger than the limit, and larger than what was refused"


@pytest.mark.parametrize("end", ["settle", "beat"])
async def test_what_is_given_back_here_is_seen_at_once(end):
    world = World(limit(Meter.TOKENS, Window.DAY, 100))
    hold = world.hold(input_tokens=80)
    await world.kept.admit(hold)
    assert isinstance(await world.ask(input_tokens=50), Refused)
    if end == "settle":
        await world.kept.settle(hold, UNUSED)
    else:
        await world.kept.beat([Beat(hold, Amounts(), Amounts(input_tokens=10))])
    assert isinstance(await world.ask(input_tokens=50), Admitted)


async def test_a_slot_that_another_process_frees_is_seen_within_a_second():
    world = World(limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 1))
    hold = world.hold()
    await world.store.counters.admit(hold)
    assert isinstance(await world.ask(), Refused)
    await world.store.counters.settle(hold, UNUSED)
    world.clock.now += ASK_EVERY_S - 0.01
    assert isinstance(await world.ask(), Refused)
    world.clock.now += 0.02
    assert isinstance(await world.ask(), Admitted)


async def test_after_a_settlement_a_few_ask_at_a_time_and_the_others_are_refused_meanwhile():
    world = World(limit(Meter.REQUESTS, Window.DAY, 20))
    holds = await world.filled()
    for hold in holds[:3]:
        await world.kept.settle(hold, UNUSED)
    asked = world.store.asked
    told = await asyncio.gather(*(world.ask() for _ in range(100)))
    assert world.store.asked - asked <= ASKING
    assert sum(isinstance(one, Admitted) for one in told) == 3


async def test_a_refusal_that_a_settlement_overtook_is_not_kept():
    world = World(limit(Meter.TOKENS, Window.DAY, 100))
    hold = world.hold(input_tokens=80)
    await world.kept.admit(hold)
    world.store.open.clear()
    late = asyncio.create_task(world.ask(input_tokens=50))
    await asyncio.sleep(0)
    await world.kept.settle(hold, UNUSED)
    world.store.open.set()
    assert isinstance(await late, Refused)
    assert isinstance(await world.ask(input_tokens=50), Admitted)


async def test_a_changed_limit_is_asked_for_anew_and_an_equal_one_is_not():
    world = World(limit(Meter.REQUESTS, Window.DAY, 1))
    await world.filled()
    asked = world.store.asked
    assert isinstance(await world.ask(group_of(limit(Meter.REQUESTS, Window.DAY, 1))), Refused)
    assert world.store.asked == asked
    assert isinstance(await world.ask(group_of(limit(Meter.REQUESTS, Window.DAY, 2))), Admitted)


async def test_after_a_second_one_request_asks_for_all_and_after_another_one_nothing_is_repeated():
    world = World(limit(Meter.REQUESTS, Window.DAY, 1))
    await world.filled()
    world.clock.now += ASK_EVERY_S
    world.store.open.clear()
    asked = world.store.asked
    tasks = [asyncio.create_task(world.ask()) for _ in range(50)]
    await asyncio.sleep(0)
    assert world.store.asked == asked + 1
    world.clock.now += ASK_EVERY_S
    tasks.append(asyncio.create_task(world.ask()))
    await asyncio.sleep(0)
    assert world.store.asked == asked + 2
    world.store.open.set()
    assert all([isinstance(await task, Refused) for task in tasks])


async def test_of_several_kept_refusals_the_longest_is_told():
    requests, tokens = limit(Meter.REQUESTS, Window.MINUTE, 60, burst=1), limit(Meter.TOKENS, Window.DAY, 100)
    world = World(requests, tokens)
    await world.ask(input_tokens=60)
    assert (await world.ask(input_tokens=1)).line.limit == requests
    world.clock.now += 0.1
    only = Group("acme", (world.group.lines[1],))
    assert (await world.ask(only, input_tokens=50)).line.limit == tokens
    assert (await world.ask(input_tokens=50)).line.limit == tokens
    assert (await world.ask(input_tokens=20)).line.limit == requests


async def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(kept_refusals, "MOST_KEPT", 10)
    world = World()
    for tag in range(100):
        group = Group(f"t{tag}", (line_of(limit(Meter.REQUESTS, Window.DAY, 1), NOON),))
        for _ in range(2):
            await world.ask(group)
        await world.kept.settle(world.hold(group), UNUSED)
        await world.ask(group)
        assert len(world.kept._kept) <= 10
        assert len(world.kept._changes) <= 10


async def test_a_rolling_window_is_not_asked_for_by_a_flood_and_names_no_time_that_it_does_not_know():
    world = World(limit(Meter.TOKENS, Rolling(30), 100), limit(Meter.UNITS, Rolling(7), 50))
    await world.used(input_tokens=60)
    world.clock.now += 3600
    await world.used(input_tokens=40, units=45)
    asked = world.store.asked
    first = await world.ask(input_tokens=60)
    assert first.wait_us == 30 * 86_400_000_000, "the oldest hour alone makes the room"
    world.clock.now += 0.5
    again, larger, whole = await world.ask(input_tokens=60), await world.ask(input_tokens=61), await world.ask(input_tokens=101)
    assert first.wait_us - again.wait_us == pytest.approx(500_000, abs=2)
    assert (larger.wait_us, larger.never, whole.never) == (None, False, True)
    assert world.store.asked == asked + 1
    await world.ask(input_tokens=60, units=6)
    assert world.store.asked == asked + 2, "two windows refuse, and the wait for the second is not known"
    world.clock.now += first.wait_us / 1e6
    assert isinstance(await world.ask(input_tokens=60), Admitted)
