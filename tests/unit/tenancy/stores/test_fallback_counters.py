"""Laws of counters that outlive their store: with R processes, what is admitted together while it is away stays in bounds."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.identity import TenantId
from tenancy.hold import Admitted, Beat, Hold, Refused
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.ports import CountersAway
from tenancy.shares import closed_for_money
from tenancy.stores import fallback_counters
from tenancy.stores.fallback_counters import CALM_S, FORGET_S, FallbackCounters
from tenancy.stores.memory import MemoryCounters

ACME = Scope(Level.TENANT, "acme")
NOON = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


class Cable:
    """A shared store that can be cut off, with the manners of the Valkey store: late settlements are made with a beat."""

    in_process = False

    def __init__(self, store: MemoryCounters) -> None:
        self.store, self.cut, self.late = store, False, []

    def _ask(self) -> None:
        if self.cut:
            raise CountersAway("cut off")

    async def admit(self, hold):
        self._ask()
        return await self.store.admit(hold)

    async def beat(self, beats: Sequence[Beat]) -> None:
        if beats or self.late:
            self._ask()
        while self.late:
            await self.store.settle(*self.late.pop())
        await self.store.beat(beats)

    async def settle(self, hold, actual):
        if self.cut:
            self.late.append((hold, actual))
        else:
            await self.store.settle(hold, actual)

    async def look(self, group):
        self._ask()
        return await self.store.look(group)


class Fleet:
    """R processes around one store, and one group of limits."""

    def __init__(self, count: int, *limits: Limit) -> None:
        self.clock = Clock()
        self.store = MemoryCounters(self.clock)
        self.cables = [Cable(self.store) for _ in range(count)]
        self.processes = [FallbackCounters(cable, lambda: MemoryCounters(self.clock), lambda: count, self.clock) for cable in self.cables]
        self.group = Group("acme", tuple(line_of(limit, NOON) for limit in limits))
        self._last = 0

    def cut(self, off: bool = True) -> None:
        for cable in self.cables:
            cable.cut = off

    def hold(self, **amounts: int) -> Hold:
        self._last += 1
        return Hold(f"r{self._last}", TenantId("acme"), Amounts(**amounts), (self.group,))

    async def admitted(self, process: int, tries: int, **amounts: int) -> list[Hold]:
        holds = [self.hold(**amounts) for _ in range(tries)]
        return [hold for hold in holds if isinstance(await self.processes[process].admit(hold), Admitted)]

    async def used(self) -> list[int]:
        return [state.used for state in await self.store.look(self.group)]


def limit(meter, window, amount):
    return Limit(ACME, meter, window, amount)


async def test_while_the_store_answers_its_word_counts():
    fleet = Fleet(2, limit(Meter.REQUESTS, Window.MINUTE, 10))
    decisions = [await fleet.processes[i % 2].admit(fleet.hold()) for i in range(11)]
    assert [type(decision) for decision in decisions] == [Admitted] * 10 + [Refused]
    assert not any(decision.degraded for decision in decisions) and not fleet.processes[0].degraded


@pytest.mark.req("R17")
@pytest.mark.parametrize("replicas", [1, 3, 4])
async def test_alone_all_together_admit_at_most_the_limit_again(replicas):
    fleet = Fleet(replicas, limit(Meter.REQUESTS, Window.MINUTE, 100))
    before = len(await fleet.admitted(0, 200))
    fleet.cut()
    alone = sum([len(await fleet.admitted(i, 200)) for i in range(replicas)])
    # a rate rounds in favour of the limit, by at most one for each process
    assert before == 100 and 100 - 2 * replicas <= alone <= 100, "lost state: twice the limit at most in the first minute"
    fleet.clock.now += 60
    assert sum([len(await fleet.admitted(i, 200)) for i in range(replicas)]) <= 100, "and once the limit in every other"


async def test_what_is_larger_than_a_share_is_refused_but_not_for_good():
    fleet = Fleet(4, limit(Meter.TOKENS, Window.MINUTE, 1000))
    fleet.cut()
    refused = await fleet.processes[0].admit(fleet.hold(input_tokens=400))
    assert isinstance(refused, Refused) and refused.degraded and not refused.never
    assert refused.line is fleet.group.lines[0], "the caller is told of the whole limit"
    fleet.cut(False)
    assert isinstance(await fleet.processes[0].admit(fleet.hold(input_tokens=400)), Admitted)


async def test_slots_in_use_count_when_the_store_goes_away():
    fleet = Fleet(2, limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 10))
    running = await fleet.admitted(0, 4)
    fleet.cut()
    more = await fleet.admitted(0, 10)
    assert len(running) + len(more) == 5
    await fleet.processes[0].settle(running[0], Amounts())
    assert len(await fleet.admitted(0, 10)) == 1


async def test_a_days_tokens_go_on_with_a_share_of_what_was_left():
    fleet = Fleet(2, limit(Meter.TOKENS, Window.DAY, 1000))
    for process in (0, 1):
        assert len(await fleet.admitted(process, 4, input_tokens=100)) == 4
    fleet.cut()
    assert len(await fleet.admitted(1, 10, input_tokens=20)) == 5, "half of the 200 that were left, said last to this process"
    fleet.clock.now += 86_400
    fleet.processes[1]._shares.clear()
    assert len(await fleet.admitted(1, 100, input_tokens=20)) == 25, "a new day: half of all of it"


@pytest.mark.req("R45")
@given(st.integers(1, 4), st.lists(st.integers(1, 30_000), min_size=1, max_size=40), st.integers(0, 40))
async def test_money_never_exceeds_the_budget_by_more_than_the_grace_of_each(replicas, costs, cut_after):
    budget = 100_000
    fleet = Fleet(replicas, limit(Meter.COST_NANOUSD, Window.MONTH, budget))
    spent, last = 0, None
    for turn, cost in enumerate(costs):
        if turn == cut_after:
            fleet.cut()
        hold = fleet.hold(cost_nanousd=cost)
        last = await fleet.processes[turn % replicas].admit(hold)
        if isinstance(last, Admitted):
            spent += cost
            await fleet.processes[turn % replicas].settle(hold, hold.amounts)
    assert spent <= budget + replicas * budget // 100
    fleet.cut(False)
    for process in fleet.processes:
        assert await process.deliver()
    assert await fleet.used() == [spent], "the store knows of all of it"


@pytest.mark.req("R45")
@pytest.mark.parametrize("outages", [1, 5])
async def test_a_budget_that_others_have_spent_gives_no_grace_in_any_outage(outages):
    """The refusals of the store are all that the first process hears of the others' spending."""
    fleet = Fleet(2, limit(Meter.COST_NANOUSD, Window.EVER, 100_000))

    async def spend(process: int, tries: int) -> int:
        holds = await fleet.admitted(process, tries, cost_nanousd=500)
        for hold in holds:
            await fleet.processes[process].settle(hold, hold.amounts)
        return len(holds)

    assert [await spend(0, 1), await spend(1, 200), await spend(0, 1)] == [1, 199, 0]
    for _ in range(outages):
        fleet.cut()
        assert [await spend(process, 5) for process in (0, 1)] == [0, 0]
        fleet.cut(False)
        fleet.clock.now += FORGET_S + 1
        assert all([await process.deliver() for process in fleet.processes])
        assert await spend(0, 1) == 0


async def test_a_day_that_others_have_used_up_is_over_alone_and_the_next_is_not():
    fleet = Fleet(2, limit(Meter.TOKENS, Window.DAY, 1000))
    assert len(await fleet.admitted(0, 1, input_tokens=100)) == 1
    assert len(await fleet.admitted(1, 9, input_tokens=100)) == 9
    assert not await fleet.admitted(0, 1, input_tokens=100)
    fleet.cut()
    assert not await fleet.admitted(0, 5, input_tokens=1)
    fleet.clock.now += 86_400
    fleet.processes[0]._shares.clear()
    assert len(await fleet.admitted(0, 100, input_tokens=100)) == 5, "its half of a new day"


async def test_a_request_larger_than_a_limit_says_nothing_of_its_rest():
    fleet = Fleet(1, limit(Meter.TOKENS, Window.DAY, 1000))
    assert len(await fleet.admitted(0, 1, input_tokens=100)) == 1
    assert not await fleet.admitted(0, 1, input_tokens=1001)
    fleet.cut()
    assert len(await fleet.admitted(0, 100, input_tokens=100)) == 9


async def test_money_is_closed_after_the_grace_and_says_that_it_is_not_spent():
    fleet = Fleet(2, limit(Meter.COST_NANOUSD, Window.EVER, 1_000_000))
    fleet.cut()
    assert len(await fleet.admitted(0, 100, cost_nanousd=1000)) == 10
    refused = await fleet.processes[0].admit(fleet.hold(cost_nanousd=1000))
    assert isinstance(refused, Refused) and closed_for_money(refused) and refused.wait_us is None and not refused.never


async def test_settlements_of_both_kinds_reach_the_store_when_it_is_back():
    fleet = Fleet(1, limit(Meter.TOKENS, Window.DAY, 1000))
    guarded = fleet.processes[0]
    known = (await fleet.admitted(0, 1, input_tokens=100))[0]
    fleet.cut()
    own = (await fleet.admitted(0, 1, input_tokens=50))[0]
    await guarded.settle(known, Amounts(input_tokens=70))
    await guarded.settle(own, Amounts(input_tokens=30))
    assert not await guarded.deliver()
    assert guarded.undelivered == 1 and await fleet.used() == [100]
    fleet.cut(False)
    assert await guarded.deliver()
    assert await fleet.used() == [100] and guarded.undelivered == 0
    assert await guarded.deliver() and await fleet.used() == [100], "once"


async def test_holds_opened_alone_are_told_by_their_beats():
    fleet = Fleet(1, limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 10))
    fleet.cut()
    holds = await fleet.admitted(0, 3)
    fleet.cut(False)
    await fleet.processes[0].beat([Beat(hold, Amounts(), hold.amounts) for hold in holds])
    assert await fleet.used() == [3]
    for hold in holds:
        await fleet.processes[0].settle(hold, Amounts())
    assert await fleet.processes[0].deliver() and await fleet.used() == [0]


async def test_a_store_that_flaps_gives_no_fresh_share_each_time():
    fleet = Fleet(1, limit(Meter.REQUESTS, Window.MINUTE, 60))
    fleet.clock.now += 1000
    total = 0
    for _ in range(5):
        fleet.cut()
        for hold in await fleet.admitted(0, 100):
            total += 1
            await fleet.processes[0].settle(hold, hold.amounts)
        fleet.cut(False)
        await fleet.processes[0].deliver()
        fleet.clock.now += CALM_S + 0.5
        fleet.processes[0].store_answered()
    assert total <= 60 + 5 * (CALM_S + 0.5) + 1
    fleet.clock.now += FORGET_S
    assert await fleet.processes[0].deliver()
    fleet.cut()
    assert len(await fleet.admitted(0, 100)) == 60


async def test_degraded_is_told_from_the_first_failure_until_the_store_is_calm():
    fleet = Fleet(1, limit(Meter.REQUESTS, Window.MINUTE, 60))
    guarded = fleet.processes[0]
    assert not guarded.degraded and guarded.degraded_s == 0
    fleet.cut()
    decided = await guarded.admit(fleet.hold())
    fleet.clock.now += 5
    assert decided.degraded and guarded.degraded and guarded.degraded_s == 5 and guarded.why == "cut off"
    await guarded.admit(fleet.hold())
    fleet.cut(False)
    assert not (await guarded.admit(fleet.hold())).degraded
    assert guarded.degraded, "one good answer is no peace yet"
    fleet.clock.now += CALM_S + 0.1
    guarded.store_answered()
    assert not guarded.degraded


async def test_what_waits_for_the_store_is_bounded(monkeypatch):
    monkeypatch.setattr(fallback_counters, "MAX_UNDELIVERED", 3)
    fleet = Fleet(1, limit(Meter.TOKENS, Window.DAY, 1000))
    fleet.cut()
    for hold in await fleet.admitted(0, 5, input_tokens=10):
        await fleet.processes[0].settle(hold, hold.amounts)
    assert fleet.processes[0].undelivered == 3 and fleet.processes[0].given_up == 2
    fleet.cut(False)
    assert await fleet.processes[0].deliver() and await fleet.used() == [30]


async def test_only_looking_says_that_the_store_is_away():
    fleet = Fleet(1, limit(Meter.TOKENS, Window.DAY, 1000))
    fleet.cut()
    with pytest.raises(CountersAway):
        await fleet.processes[0].look(fleet.group)
