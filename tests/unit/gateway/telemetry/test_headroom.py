"""What tenants, organisations, models and the gateway have left: the tightest limit decides, names are bounded, and nobody is asked while
nobody scrapes."""

import asyncio
from collections.abc import Sequence

import pytest

from domain.identity import TenantId
from gateway.telemetry.cells import MAX_NAMES
from gateway.telemetry.families import OTHER
from gateway.telemetry.headroom import AT_ONCE, LOOKS_PER_S, HeadroomWatch, share_left
from tenancy.accounts import Contents
from tenancy.directory import Directory
from tenancy.hold import LimitUsage
from tenancy.limits import Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.ports import CountersAway
from tests.gateway_harness import PEPPER


def limit(tenant: str, window: Window, amount: int = 100, level: Level = Level.TENANT) -> Limit:
    meter = Meter.CONCURRENT_REQUESTS if window is Window.NOW else Meter.REQUESTS
    return Limit(Scope(level, tenant if level is Level.TENANT else f"{tenant}/web"), meter, window, amount)


class Counters:
    """Counters in which each limit has the same number left."""

    def __init__(self, left: dict[str, int] | int) -> None:
        self.left = left
        self.asked: list[Group] = []
        self.away = False

    async def look(self, group: Group) -> Sequence[LimitUsage]:
        if self.away:
            raise CountersAway("no answer")
        self.asked.append(group)
        left = self.left if isinstance(self.left, int) else self.left[group.tag]
        return [LimitUsage(line, line.amount - left, 0, left, 0) for line in group.lines]


def watch(counters: Counters, limits: list[Limit]) -> tuple[HeadroomWatch, list[float]]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    directory = Directory(Contents(limits=tuple(limits)), PEPPER)
    return HeadroomWatch(lambda: directory, counters.look, lambda: 1000.0, sleep), slept


async def test_the_tightest_limit_of_a_tenant_and_its_projects_decides() -> None:
    limits = [
        limit("acme", Window.MINUTE, 200),
        limit("acme", Window.NOW, 100),
        limit("acme", Window.DAY, 100),
        limit("acme", Window.MONTH, 1000, Level.PROJECT),
        limit("bee", Window.MINUTE, 40),
    ]
    watching, _ = watch(Counters({"acme": 50, "bee": 40}), limits)
    await watching.look_round()
    rows = dict(watching.rows())
    assert dict(rows["tidegate_limit_headroom_ratio"]) == {("acme",): 0.25, ("bee",): 1.0}
    assert dict(rows["tidegate_budget_headroom_ratio"]) == {("acme",): 0.05}
    assert rows["tidegate_headroom_looked_timestamp_seconds"] == [((), 1000.0)]


@pytest.mark.req("R38")
async def test_tenants_beyond_the_bound_are_one() -> None:
    limits = [limit(f"t{at:04}", Window.DAY) for at in range(MAX_NAMES + 300)]
    counters = Counters({f"t{at:04}": 100 - at % 100 for at in range(MAX_NAMES + 300)})
    watching, slept = watch(counters, limits)
    await watching.look_round()
    assert watching.headroom is not None
    shares = watching.headroom.budgets
    assert len(shares) == MAX_NAMES + 1
    assert shares["tenant", OTHER] == 0.01, "of all others the tightest"
    assert slept == [1.0] * (len(limits) // LOOKS_PER_S), "a round is spread over time"


async def test_organisations_models_and_the_gateway_have_their_own_gauges() -> None:
    def shared(level: Level, name: str, window: Window, amount: int) -> Limit:
        return Limit(Scope(level, name), Meter.REQUESTS, window, amount)

    limits = [
        limit("acme", Window.DAY, 100),
        shared(Level.ORGANISATION, "umbrella", Window.MINUTE, 200),
        shared(Level.ORGANISATION, "umbrella", Window.DAY, 100),
        shared(Level.MODEL, "acme", Window.DAY, 50),
        shared(Level.GLOBAL, "", Window.MINUTE, 1000),
    ]
    counters = Counters({"acme": 100, "org/umbrella": 50, "model/acme": 5, "global/": 1000})
    watching, _ = watch(counters, limits)
    await watching.look_round()
    rows = dict(watching.rows())
    assert dict(rows["tidegate_budget_headroom_ratio"]) == {("acme",): 1.0}, "a tenant is not the model of the same name"
    assert dict(rows["tidegate_shared_limit_headroom_ratio"]) == {("organisation", "umbrella"): 0.25, ("global", ""): 1.0}
    assert dict(rows["tidegate_shared_budget_headroom_ratio"]) == {("organisation", "umbrella"): 0.5, ("model", "acme"): 0.1}


@pytest.mark.req("R38")
async def test_each_level_has_its_own_bound_of_names() -> None:
    limits = [Limit(Scope(Level.MODEL, f"m{at:04}"), Meter.REQUESTS, Window.DAY, 2) for at in range(MAX_NAMES + 5)]
    watching, _ = watch(Counters(1), [*limits, limit("acme", Window.DAY)])
    await watching.look_round()
    rows = dict(watching.rows())
    assert len(rows["tidegate_shared_budget_headroom_ratio"]) == MAX_NAMES + 1
    assert (("model", OTHER), 0.5) in rows["tidegate_shared_budget_headroom_ratio"]
    assert rows["tidegate_budget_headroom_ratio"] == [(("acme",), 0.01)]


async def test_a_tenant_with_many_limits_is_asked_for_in_pieces() -> None:
    counters = Counters(1)
    limits = [Limit(Scope(Level.PROJECT, f"acme/p{at}"), Meter.REQUESTS, Window.DAY, 2) for at in range(2 * AT_ONCE + 1)]
    watching, _ = watch(counters, limits)
    await watching.look_round()
    assert [len(group.lines) for group in counters.asked] == [AT_ONCE, AT_ONCE, 1]


async def test_nothing_is_shown_while_the_counters_are_away() -> None:
    counters = Counters(1)
    watching, _ = watch(counters, [limit("acme", Window.DAY)])
    assert watching.rows() == []
    await watching.look_round()
    assert watching.rows()
    counters.away = True
    await watching.look_round()
    assert watching.rows() == []


async def test_nobody_is_asked_while_nobody_scrapes() -> None:
    counters = Counters(1)
    watching, slept = watch(counters, [limit("acme", Window.DAY)])
    running = asyncio.create_task(watching.run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert counters.asked == []
    watching.rows()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(counters.asked) == 1 and len(slept) == 1
    running.cancel()


def test_a_share_is_between_nothing_and_all() -> None:
    per_minute = line_of(Limit(Scope(Level.TENANT, TenantId("a")), Meter.REQUESTS, Window.MINUTE, 60, burst=120), 0.0)
    none = line_of(limit("a", Window.DAY, 0), 0.0)
    assert share_left(LimitUsage(per_minute, 0, 0, 120, 0)) == 1.0
    assert share_left(LimitUsage(per_minute, 90, 0, 30, 0)) == 0.25
    assert share_left(LimitUsage(none, 0, 0, 0, 0)) == 0.0
