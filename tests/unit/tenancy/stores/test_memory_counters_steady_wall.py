"""A clock that is set back makes nobody wait for it."""

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


def test_time_follows_the_machine_forward_and_never_back() -> None:
    machine = Machine()
    steady = SteadyWall(machine.wall, machine.clock)
    assert steady() == NOON
    machine.up_s += 5
    assert steady() == NOON + 5
    machine.set_s += 3600
    assert steady() == NOON + 3605
    machine.set_s -= 7200
    assert steady() == NOON + 3605
    machine.up_s += 10
    assert steady() == NOON + 3615, "at its pace"


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
