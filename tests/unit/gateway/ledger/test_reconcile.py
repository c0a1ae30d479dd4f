"""Counters that are kept to the ledger: real counters in memory, a ledger that says what the test wants."""

import datetime as dt
from collections.abc import Callable, Collection
from typing import Any

from structlog.testing import capture_logs

from domain.identity import ProjectId, TenantId
from domain.usage import Usage
from gateway.ledger.reconcile import AGAIN_S, Reconciler
from tenancy.accounts import Contents, Organisation, Project, Tenant
from tenancy.directory import Directory
from tenancy.grant import digest_of_label
from tenancy.hold import LEASE_S, Admitted, Beat, Hold, LimitUsage
from tenancy.keys import Pepper
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Rolling, Scope, Window, line_of
from tenancy.periods import period_around
from tenancy.ports import CountersAway
from tenancy.seeds import Seed
from tenancy.stores.memory import MemoryCounters
from tenancy.usage import MAX_SPENT, LedgerAway, Spent, UsageEvent
from tests.usage_events import event

PEPPER = Pepper("k1", b"p" * 32)
START = dt.datetime(2026, 3, 10, 12, tzinfo=dt.UTC).timestamp()
ACME = Scope(Level.TENANT, "acme")
DAY = Limit(ACME, Meter.TOKENS, Window.DAY, 1000)
EVER = Limit(ACME, Meter.COST_NANOUSD, Window.EVER, 10**9)
USERS = Limit(Scope(Level.USER, "acme"), Meter.REQUESTS, Window.MONTH, 10)
MINUTE = Limit(ACME, Meter.TOKENS, Window.MINUTE, 1000)


class Ledger:
    """What was spent, by level and first day."""

    def __init__(self) -> None:
        self.spent: dict[Level, Amounts] = {}
        self.asked: list[tuple[Level, dt.date | None, dt.date | None]] = []
        self.hours: dict[int, int] = {}
        """Tokens by hour."""
        self.hours_asked: list[int] = []
        self.away = False
        self.known: set[str] = set()
        self.before_answer: Callable[[], object] = lambda: None

    async def spent_by(
        self, level: Level, names: Collection[str], since: dt.date | None, before: dt.date | None = None, most: int = MAX_SPENT
    ) -> list[Spent]:
        self.asked.append((level, since, before))
        if self.away:
            raise LedgerAway("gone fishing")
        if before is not None or level not in self.spent:
            return []
        self.before_answer()
        return [Spent("acme", "ann" if level is Level.USER else "", self.spent[level])]

    async def spent_since(self, level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT) -> list[Spent]:
        return await self.spent_by(level, names, dt.datetime.fromtimestamp(since_s, dt.UTC).date())

    async def spent_per_hour(self, level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT) -> list[Spent]:
        if self.away:
            raise LedgerAway("gone fishing")
        self.hours_asked.append(since_s)
        return [Spent("acme", "", Amounts(n, 0), hour) for hour, n in self.hours.items() if hour * 3600 >= since_s]

    async def booked(self, request_ids: Collection[str]) -> set[str]:
        return self.known & set(request_ids)


class World:
    """One reconciler and everything around it."""

    def __init__(self, *limits: Limit) -> None:
        self.now = 1000.0
        self.ledger = Ledger()
        self.counters = MemoryCounters(lambda: START + self.now - 1000.0)
        self.directory = self.directory_of(*limits)
        self.waiting: list[UsageEvent] = []
        self.late = 0.0
        self.store_away = False
        self.reconciler = Reconciler(
            self.ledger, lambda: self.directory, self, self, self.turn, lambda: START + self.now - 1000.0, lambda: self.now
        )

    @staticmethod
    def directory_of(*limits: Limit) -> Directory:
        tenant, project = Tenant(TenantId("acme")), Project(TenantId("acme"), ProjectId("default"))
        return Directory(Contents(organisations=(Organisation("default"),), tenants=(tenant,), projects=(project,), limits=limits), PEPPER)

    async def seed(self, tag: str, seeds: list[Seed]) -> list[int | None]:
        if self.store_away:
            raise CountersAway("no store")
        return await self.counters.seed(tag, seeds)

    async def events(self) -> list[UsageEvent]:
        return self.waiting

    async def oldest_s(self) -> float:
        return self.late

    async def turn(self, late: bool) -> tuple[bool, bool]:
        return True, late

    async def used(self, limit: Limit, label: str = "") -> int:
        (state,) = await self.counters.look(Group("acme", (line_of(limit, START, label),)))
        assert isinstance(state, LimitUsage)
        return state.used

    async def compare_after(self, seconds: float = 60.0) -> None:
        self.now += seconds
        await self.reconciler.compare()


async def test_everything_that_was_used_is_there_before_the_first_request() -> None:
    world = World(DAY, EVER, USERS, MINUTE)
    world.ledger.spent = {Level.TENANT: Amounts(300, 400, 0, 5 * 10**8), Level.USER: Amounts(requests=7)}
    await world.reconciler.begin()
    assert await world.used(DAY) == 700
    assert await world.used(EVER) == 5 * 10**8
    assert await world.used(USERS, digest_of_label("ann")) == 7
    assert await world.used(MINUTE) == 0
    first, month, last_month = dt.date(2026, 3, 10), dt.date(2026, 3, 1), dt.date(2026, 2, 1)
    asked = {(Level.TENANT, first, None), (Level.TENANT, None, last_month), (Level.TENANT, last_month, None), (Level.USER, month, None)}
    assert set(world.ledger.asked) == asked and len(world.ledger.asked) == 4


async def test_limits_over_hours_and_in_other_zones_are_set_from_the_usage_of_their_period() -> None:
    """The ledger's totals per day would count what was used before the period began."""
    scope = Scope(Level.TENANT, "acme")
    hour, week = Limit(scope, Meter.TOKENS, Window.HOUR, 1000), Limit(scope, Meter.TOKENS, Window.WEEK, 1000)
    day = Limit(scope, Meter.TOKENS, Window.DAY, 1000, zone="Asia/Kathmandu")
    world = World(hour, week, day)
    asked: list[int] = []

    async def spent_since(level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT) -> list[Spent]:
        asked.append(since_s)
        return [Spent("acme", "", Amounts(since_s // 900 % 1000, 0))]

    world.ledger.spent_since = spent_since  # type: ignore[method-assign]
    at = int(START)
    world.waiting = [event("late", at_unix_ms=at * 1000, usage=Usage(5, 0)), event("old", at_unix_ms=(at - 8 * 86_400) * 1000)]
    await world.reconciler.begin()
    begins = {limit: period_around(limit.window, limit.zone, at)[0] for limit in (hour, week, day)}
    assert sorted(asked) == sorted(begins.values()) and len(set(asked)) == 3
    for limit, begin in begins.items():
        assert await world.used(limit) == begin // 900 % 1000 + 5


async def test_rolling_windows_are_set_hour_by_hour() -> None:
    ten, year = Limit(ACME, Meter.TOKENS, Rolling(10), 1000), Limit(ACME, Meter.TOKENS, Rolling(366), 1000)
    world, hour = World(ten, year), int(START) // 3600
    world.ledger.hours = {hour - 24 * 366: 1, hour - 24 * 10 - 1: 2, hour - 24 * 10: 4, hour - 1: 8, hour: 16}
    world.waiting = [event("late", at_unix_ms=int(START) * 1000, usage=Usage(32, 0))]
    await world.reconciler.begin()
    assert sorted(world.ledger.hours_asked) == [(hour - 24 * 366) * 3600, (hour - 24 * 10) * 3600]
    assert (await world.used(ten), await world.used(year)) == (60, 63)
    world.now += 3600
    assert (await world.used(ten), await world.used(year)) == (56, 62), "the oldest hour has left"
    world.counters = MemoryCounters(lambda: START + world.now - 1000.0)
    world.waiting = []
    world.reconciler.began_anew()
    await world.reconciler._set_everything()
    assert (await world.used(ten), await world.used(year)) == (24, 30), "a lost store is set again"


async def test_the_last_hours_of_a_rolling_window_are_compared_and_corrected_each_by_itself() -> None:
    rolling = Limit(ACME, Meter.TOKENS, Rolling(2), 1000)
    world, hour = World(rolling), int(START) // 3600
    world.ledger.hours = {hour - 20: 7, hour - 2: 100, hour: 50}
    await world.reconciler.begin()
    key = line_of(rolling, START).key
    await world.counters.seed("acme", [Seed(key, Rolling(2), hour - 1, 300), Seed(key, Rolling(2), hour - 20, 9)])
    world.ledger.hours[hour - 2] = 140
    world.ledger.hours_asked.clear()
    for expected in (459, 199):
        await world.compare_after()
        assert await world.used(rolling) == expected
    assert set(world.ledger.hours_asked) == {(hour - 2) * 3600}, "older hours are not read"
    assert (world.reconciler.state().raised, world.reconciler.state().lowered) == (1, 1)


async def test_an_empty_store_is_news_only_where_something_had_been_used() -> None:
    world = World(DAY)
    with capture_logs() as told:
        world.reconciler.began_anew(empty=True)
        await world.reconciler._set_everything()
        assert not [line for line in told if line["log_level"] == "warning"], "a first start"
        world.ledger.spent = {Level.TENANT: Amounts(300, 400)}
        world.reconciler.began_anew(empty=True)
        for _ in AGAIN_S:
            await world.reconciler._set_everything()
    assert [line["event"] for line in told if line["log_level"] == "warning"] == [
        "the counter store was empty; what the ledger knows is in it again"
    ]


async def test_a_hold_whose_worker_died_is_charged_once_and_stays_charged() -> None:
    world = World(DAY)
    group = Group("acme", (line_of(DAY, START),))
    hold = Hold("req-1", TenantId("acme"), Amounts(100, 200), (group,))
    assert isinstance(await world.counters.admit(hold), Admitted)
    await world.counters.beat([Beat(hold, Amounts(100, 50), hold.amounts)])
    world.now += LEASE_S + 1
    world.ledger.spent = {Level.TENANT: Amounts(100, 50)}  # as `OpenHold.lost` has it
    for _ in range(4):
        await world.compare_after()
        assert await world.used(DAY) == 150
    world.reconciler.began_anew()
    await world.reconciler._set_everything()
    assert await world.used(DAY) == 150
    assert (world.reconciler.state().lowered, world.reconciler.state().raised) == (0, 0)


async def test_without_calendar_limits_nobody_is_asked() -> None:
    world = World(MINUTE)
    await world.reconciler.begin()
    assert world.ledger.asked == []


def waiting(request_id: str, prompt: int, **fields: Any) -> UsageEvent:
    return event(request_id, at_unix_ms=int(START * 1000), usage=Usage(prompt, 0), **fields)


async def test_what_ended_processes_left_on_disk_counts_once() -> None:
    world = World(DAY, EVER, USERS)
    world.ledger.spent = {Level.TENANT: Amounts(300, 0)}
    world.ledger.known = {"req-booked"}
    world.waiting = [
        waiting("booked", 100),
        waiting("open", 7, cost_nanousd=5, user="ann"),
        waiting("open", 7, cost_nanousd=5, user="ann"),
        waiting("other", 1000, tenant="bolt"),
        event("yesterday", at_unix_ms=int(START * 1000) - 86_400_000, usage=Usage(50, 0), cost_nanousd=3),
    ]
    await world.reconciler.begin()
    assert (await world.used(DAY), await world.used(EVER), await world.used(USERS, digest_of_label("ann"))) == (307, 8, 1)


async def test_what_is_booked_while_sums_are_read_counts_once() -> None:
    world = World(DAY)
    world.ledger.spent = {Level.TENANT: Amounts(300, 0)}
    world.waiting = [waiting("a", 7), waiting("b", 5)]

    def book() -> None:
        world.ledger.before_answer = lambda: None
        world.ledger.spent = {Level.TENANT: Amounts(312, 0)}
        world.ledger.known = {"req-a", "req-b"}

    world.ledger.before_answer = book
    await world.reconciler.begin()
    assert await world.used(DAY) == 312


async def test_a_database_that_is_away_stops_nobody_and_is_shown() -> None:
    world = World(DAY)
    world.ledger.spent = {Level.TENANT: Amounts(300, 400)}
    world.ledger.away = True
    await world.reconciler.begin()
    assert world.reconciler.state().unread
    own = Hold("a", TenantId("acme"), Amounts(10, 0), (Group("acme", (line_of(DAY, START),)),))
    assert isinstance(await world.counters.admit(own), Admitted)
    world.ledger.away = False
    await world.reconciler.begin()
    assert not world.reconciler.state().unread
    assert await world.used(DAY) == 710, "and what is under way stays held"


async def test_a_store_that_is_away_is_tried_again() -> None:
    world = World(DAY)
    world.ledger.spent = {Level.TENANT: Amounts(300, 400)}
    world.store_away = True
    await world.reconciler.begin()
    assert world.reconciler.state().unread
    world.store_away = False
    await world.reconciler._set_everything()
    assert (await world.used(DAY), world.reconciler.state().unread) == (700, False)


async def test_two_comparisons_correct_what_counters_missed() -> None:
    world = World(DAY, EVER)
    await world.reconciler.begin()
    world.ledger.spent = {Level.TENANT: Amounts(100, 100, 0, 10**6)}
    await world.compare_after()
    assert (await world.used(DAY), world.reconciler.state().drift) == (0, 0.0), "it may be a mistake of the moment"
    await world.compare_after()
    assert (await world.used(DAY), await world.used(EVER)) == (200, 10**6)
    state = world.reconciler.state()
    assert (state.drift, state.raised, state.lowered) == (1.0, 2, 0)
    await world.compare_after()
    assert world.reconciler.state().drift == 0.0


async def test_what_nobody_used_is_lowered_unless_somebodys_usage_is_late() -> None:
    world = World(DAY)
    world.ledger.spent = {Level.TENANT: Amounts(100, 0)}
    await world.counters.seed("acme", [Seed("tenant:acme:tokens:day", Window.DAY, int(START // 86_400), 150)])
    world.late = 31.0
    await world.reconciler._ask_for_turn()
    await world.compare_after()
    await world.compare_after()
    assert await world.used(DAY) == 150
    world.late = 0.0
    await world.reconciler._ask_for_turn()
    await world.compare_after()
    assert await world.used(DAY) == 100
    assert world.reconciler.state().lowered == 1


async def test_a_database_that_is_away_corrects_nothing() -> None:
    world = World(DAY)
    await world.counters.seed("acme", [Seed("tenant:acme:tokens:day", Window.DAY, int(START // 86_400), 150)])
    await world.compare_after()
    world.ledger.away = True
    await world.compare_after()
    world.ledger.away = False
    await world.compare_after()
    assert await world.used(DAY) == 150, "the looks before and after are not successive"


async def test_after_a_new_beginning_it_looks_again_for_what_was_under_way() -> None:
    world = World(DAY)
    world.reconciler.began_anew()
    await world.reconciler._set_everything()
    assert world.reconciler._due == [world.now + after for after in AGAIN_S]


async def test_a_new_limit_counts_what_was_used_before_it() -> None:
    world = World(DAY)
    await world.reconciler.begin()
    world.ledger.spent = {Level.TENANT: Amounts(50, 0, 0, 77)}
    world.directory = world.directory_of(DAY, EVER)
    world.ledger.asked.clear()
    await world.reconciler._set_new_limits()
    assert await world.used(EVER) == 77
    assert {before for _, _, before in world.ledger.asked} == {dt.date(2026, 2, 1), None} and len(world.ledger.asked) == 2
    assert world.reconciler.state().raised == 0, "which is no drift"
