"""Laws of joining, draining and leaving, with a clock of the test's own and no engine."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backends.ports import Upstream
from domain.faults import Fault, Kind
from domain.membership import Member
from gateway.deps import Live
from gateway.fleet.roster import RELIEF_S, Detach, Roster
from gateway.placement.pool_state import PoolDefaults, PoolStates
from routing.fleet import Availability, Fleet, Pool
from tests.pool_states import charged, released


class Way(Upstream):
    def __init__(self) -> None:
        self.closed = 0

    def dispatch(self, call: Any, sink: Any) -> Any: ...

    async def close(self) -> None:
        self.closed += 1


class World:
    """One roster, and everything it keeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.attached: list[str] = []
        self.ways: dict[str, Way] = {}
        self.relays: list[Any] = []
        self.forgotten: list[str] = []
        self.ended_waits: list[str] = []
        self.charges: dict[str, list[Any]] = {}
        pools = {"p": Pool("p", "m", "1", "vllm", ())}
        self.live = Live(None, None, Fleet(pools))  # type: ignore[arg-type]  # only the fleet and what is known of it
        self.deps: Any = SimpleNamespace(
            live=self.live,
            pool_states=PoolStates({"p": PoolDefaults()}),
            upstreams={},
            clock=lambda: self.now,
            loop=asyncio.get_running_loop(),
            watch=SimpleNamespace(relays=lambda: self.relays),
            loras=SimpleNamespace(forget=self.forgotten.append, end_waits=self.ended_waits.append),
        )
        self.roster = Roster(self.deps, self._way, [self._attach], 30.0)

    def _way(self, member: Member) -> Upstream:
        return self.ways.setdefault(member.url, Way())

    def _attach(self, member: Member) -> Detach:
        self.attached.append(member.id)

        async def ended() -> None: ...

        def detach() -> Any:
            self.attached.remove(member.id)
            return ended()

        return detach

    def apply(self, *members: Member) -> None:
        self.roster.apply({m.id: m for m in members})

    def charge(self, backend_id: str) -> None:
        self.charges.setdefault(backend_id, []).append(charged(self.deps.pool_states, backend_id, self.now))

    def release(self, backend_id: str) -> None:
        released(self.deps.pool_states, self.charges[backend_id].pop())

    def state(self, backend_id: str) -> Availability | None:
        return next((b.state for b in self.live.fleet.pools["p"].backends if b.id == backend_id), None)

    def up(self, backend_id: str, state: Availability = Availability.UP) -> None:
        """A poll found it so."""
        known = next(b for b in self.live.fleet.pools["p"].backends if b.id == backend_id)
        self.live.fleet = self.live.fleet.with_member(msgspec.structs.replace(known, state=state))

    def left(self, backend_id: str) -> bool:
        live = self.live
        keepers = (self.deps.upstreams, self.deps.pool_states["p"].load_table.row_of, live.names, live.signals, live.prefill, self.attached)
        return self.state(backend_id) is None and not any(backend_id in keeper for keeper in keepers)


def member(backend_id: str = "a", url: str = "http://h:1", **fields: Any) -> Member:
    return Member("p", backend_id, url, "file", **fields)


async def test_a_backend_joins_unknown_and_is_attended_to() -> None:
    world = World()
    world.apply(member())
    assert world.state("a") is Availability.UNKNOWN
    assert world.deps.pool_states["p"].load_table.ids == ["a"]
    assert world.attached == ["a"]
    world.apply(member())
    assert (world.attached, len(world.roster)) == (["a"], 1)


async def test_an_empty_one_leaves_at_once_and_everything_of_it_goes() -> None:
    world = World()
    world.apply(member())
    world.live.names["a"] = frozenset({"m"})
    world.apply()
    assert world.state("a") is Availability.DRAINING
    world.roster.tick()
    assert world.left("a")
    assert world.forgotten == ["a"]
    await world.roster.close()
    assert world.ways["http://h:1"].closed == 1


@pytest.mark.req("ROUTERS-29")
async def test_one_that_is_busy_gets_nothing_new_and_stays_until_its_charges_are_released() -> None:
    world = World()
    world.apply(member())
    world.charge("a")
    world.apply()
    assert "a" not in world.deps.upstreams
    assert world.ended_waits == ["a"]
    for _ in range(3):
        world.roster.tick()
        assert world.state("a") is Availability.DRAINING
    world.release("a")
    world.roster.tick()
    assert world.left("a")


class Relay:
    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.outcome: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()

    def end_with(self, fault: Fault) -> None:
        self.outcome.set_result(fault)


async def test_at_the_end_of_the_grace_what_still_runs_on_it_is_ended_and_nothing_else() -> None:
    world = World()
    world.apply(member(), member("b", "http://h:2"))
    world.relays = [Relay("a"), Relay("b")]
    for backend_id in ("a", "b"):
        world.charge(backend_id)
    world.apply(member("b", "http://h:2"))
    world.now += 29.9
    world.roster.tick()
    assert not world.relays[0].outcome.done()
    world.now += 0.2
    world.roster.tick()
    assert world.relays[0].outcome.result().kind is Kind.BACKEND_DRAINED
    assert not world.relays[1].outcome.done()
    assert world.state("a") is Availability.DRAINING
    world.release("a")
    world.roster.tick()
    assert world.left("a")


async def test_a_drained_one_stays_in_the_fleet_and_resumes_from_fresh_knowledge() -> None:
    world = World()
    world.apply(member())
    world.live.names["a"] = frozenset({"old"})
    world.apply(member(drain_grace_s=5.0))
    world.roster.tick()
    assert (world.state("a"), "a" in world.deps.upstreams) == (Availability.DRAINING, False)
    world.apply(member())
    assert (world.state("a"), "a" in world.deps.upstreams) == (Availability.UNKNOWN, True)
    assert (world.live.names, world.attached, world.forgotten) == ({}, ["a"], ["a"])


async def test_one_that_comes_back_before_it_was_gone_takes_requests_again() -> None:
    world = World()
    world.apply(member())
    world.charge("a")
    world.apply()
    world.apply(member())
    assert world.state("a") is Availability.UNKNOWN
    world.release("a")
    world.roster.tick()
    assert world.state("a") is Availability.UNKNOWN


@pytest.mark.req("ROUTERS-10")
async def test_the_same_id_at_another_address_waits_until_the_old_one_is_gone() -> None:
    world = World()
    world.apply(member())
    world.charge("a")
    world.apply(member(url="http://h:2"))
    world.roster.tick()
    assert world.roster.member("a") == member()
    assert world.state("a") is Availability.DRAINING
    world.release("a")
    world.roster.tick()
    assert world.roster.member("a") == member(url="http://h:2")
    assert (world.state("a"), world.deps.pool_states.in_flight("a")) == (Availability.UNKNOWN, 0)
    assert world.deps.upstreams["a"] is world.ways["http://h:2"]


async def test_a_new_grace_counts_from_when_it_was_given() -> None:
    world = World()
    world.apply(member(drain_grace_s=1000.0))
    world.charge("a")
    world.relays = [Relay("a")]
    world.apply(member(drain_grace_s=1.0))
    world.now += 1.1
    world.roster.tick()
    assert world.relays[0].outcome.done()
    world.release("a")


@pytest.mark.req("ROUTERS-9", "ROUTERS-10", "ROUTERS-29")
async def test_a_thousand_joins_and_leaves_leave_nothing() -> None:
    world = World()
    for n in range(1000):
        world.apply(member(f"b{n}", f"http://h:{n}"))
        world.charge(f"b{n}")
        world.release(f"b{n}")
        world.apply()
        world.roster.tick()
        assert world.left(f"b{n}")
    await world.roster.close()
    assert (len(world.roster), world.attached, world.deps.pool_states["p"].load_table.ids) == (0, [], [])
    assert {way.closed for way in world.ways.values()} == {1}


@pytest.mark.fault("DNS change")
async def test_the_last_one_up_stays_until_it_is_relieved() -> None:
    world = World()
    for how in ("relieved", "waited long enough", "named again", "down itself", "nobody instead"):
        world.apply(member("a"))
        world.up("a")
        world.apply(*([] if how == "nobody instead" else [member("b", "http://h:2")]))
        if how == "nobody instead":
            assert world.state("a") is Availability.DRAINING
            world.roster.tick()
            continue
        world.roster.tick()
        assert world.state("a") is Availability.UP, how
        assert "a" in world.deps.upstreams
        if how == "relieved":
            world.up("b")
        elif how == "waited long enough":
            world.now += RELIEF_S
        elif how == "down itself":
            world.up("a", Availability.DOWN)
        else:
            world.apply(member("a"))
        world.roster.tick()
        world.roster.tick()
        if how == "named again":
            world.now += 2 * RELIEF_S
            world.roster.tick()
            assert world.state("a") is Availability.UP
        else:
            assert world.left("a"), how
        world.apply()
        world.now += RELIEF_S
        world.roster.tick()
        world.roster.tick()
        assert len(world.roster) == 0


async def test_of_several_that_leave_at_once_one_stays() -> None:
    world = World()
    world.apply(member("a"), member("b", "http://h:2"))
    world.up("a")
    world.up("b")
    world.apply(member("c", "http://h:3"))
    world.roster.tick()
    assert sorted(str(world.state(name)) for name in "abc").count(str(Availability.UP)) == 1
    world.up("c")
    world.roster.tick()
    world.roster.tick()
    assert world.left("a") and world.left("b") and world.state("c") is Availability.UP
