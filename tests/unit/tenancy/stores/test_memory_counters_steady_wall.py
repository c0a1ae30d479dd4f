"""A clock that is set back makes nobody wait for it, and one that is set forward gives nobody more."""

import pytest

from domain.identity import TenantId
from tenancy.hold import Admitted, Hold, Refused
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.stores.memory import MemoryCounters, SteadyWall

NOON = 1_795_262_400.0
GROUP = Group("acme", (line_of(Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.MINUTE, 1), 0.0),))


class Machine:
    def __init__(self) -> None:
        self.up_s, self.set_s = 1000.0, NOON

    def clock(self) -> float:
        return self.up_s

    def wall(self) -> float:
        return self.up_s - 1000.0 + self.set_s


def test_a_clock_that_is_set_changes_nothing_at_once() -> None:
    machine = Machine()
    steady = SteadyWall(machine.wall, machine.clock)
    assert steady() == NOON
    machine.up_s += 5
    assert steady() == NOON + 5
    for step_s in (3600, -7200, 25 * 3600, -25 * 3600):
        before = steady()
        machine.set_s += step_s
        assert steady() == before
        machine.up_s += 10
        assert abs(steady() - before - 10) <= 0.01 + 1e-6, "at its pace, within a thousandth"


def test_a_small_error_is_made_up_for() -> None:
    machine = Machine()
    steady = SteadyWall(machine.wall, machine.clock)
    machine.set_s += 0.5
    readings = []
    for _ in range(1000):
        machine.up_s += 1
        readings.append(steady())
    assert readings == sorted(readings)
    assert abs(readings[-1] - machine.wall()) < 1e-6


@pytest.mark.parametrize("forward_s", [300, 25 * 3600])
async def test_a_clock_set_forward_admits_no_second_burst(forward_s: float) -> None:
    machine = Machine()
    minute = Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.MINUTE, 60)
    day = Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.DAY, 100)
    group = Group("acme", (line_of(minute, 0.0), line_of(day, 0.0)))
    counters = MemoryCounters(SteadyWall(machine.wall, machine.clock))

    async def admitted(name: str) -> int:
        answers = [await counters.admit(Hold(f"{name}{n}", TenantId("acme"), Amounts(), (group,))) for n in range(70)]
        return sum(isinstance(answer, Admitted) for answer in answers)

    assert await admitted("a") == 60
    machine.set_s += forward_s
    assert await admitted("b") == 0
    machine.up_s += 60
    assert await admitted("c") == 40, "the rest of the day"
    machine.set_s -= forward_s
    machine.up_s += 60
    assert await admitted("d") == 0


async def test_a_rate_comes_back_after_its_time_though_the_clock_was_set_back() -> None:
    machine = Machine()
    counters = MemoryCounters(SteadyWall(machine.wall, machine.clock))
    assert isinstance(await counters.admit(Hold("r1", TenantId("acme"), Amounts(), (GROUP,))), Admitted)
    machine.set_s -= 3600
    refused = await counters.admit(Hold("r2", TenantId("acme"), Amounts(), (GROUP,)))
    assert isinstance(refused, Refused)
    assert refused.wait_us == 60_000_000
    machine.up_s += 60
    assert isinstance(await counters.admit(Hold("r3", TenantId("acme"), Amounts(), (GROUP,))), Admitted)
