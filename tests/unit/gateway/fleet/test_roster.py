"""Laws of joining, draining and leaving, with a clock of the test's own and no engine."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from backends.ports import Upstream
from domain.faults import Fault, Kind
from domain.membership import Member
from gateway.deps import Live
from gateway.fleet.roster import Detach, Roster
from routing.fleet import Fleet, Pool, State
from routing.load import Load


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
        self.let_go: list[str] = []
        pools = {"p": Pool("p", "m", "1", "vllm", ())}
        self.live = Live(None, None, Fleet(pools))  # type: ignore[arg-type]  # only the fleet and what is known of it
        self.deps: Any = SimpleNamespace(
            live=self.live,
            load=Load(()),
            upstreams={},
            clock=lambda: self.now,
            loop=asyncio.get_running_loop(),
            watch=SimpleNamespace(relays=lambda: self.relays),
            loras=SimpleNamespace(forget=self.forgotten.append, let_go=self.let_go.append),
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

    def state(self, backend_id: str) -> State | None:
        return next((b.state for b in self.live.fleet.pools["p"].backends if b.id == backend_id), None)

    def left(self, backend_id: str) -> bool:
        live = self.live
        keepers = (self.deps.upstreams, self.deps.load.in_flight, live.names, live.signals, live.marks, live.prefill, self.attached)
        return self.state(backend_id) is None and not any(backend_id in keeper for keeper in keepers)


def member(backend_id: str = "a", url: str = "http://h:1", **fields: Any) -> Member:
    return Member("p", backend_id, url, "file", **fields)


async def test_a_backend_joins_unknown_and_is_attended_to() -> None:
    world = World()
    world.apply(member())
    assert world.state("a") is State.UNKNOWN
    assert world.deps.load.in_flight == {"a": 0}
    assert world.attached == ["a"]
    world.apply(member())
    assert (world.attached, len(world.roster)) == (["a"], 1)


async def test_an_empty_one_leaves_at_once_and_everything_of_it_goes() -> None:
    world = World()
    world.apply(member())
    world.live.names["a"] = frozenset({"m"})
    world.apply()
    assert world.state("a") is State.DRAINING
    world.roster.tick()
    assert world.left("a")
    assert world.forgotten == ["a"]
    await world.roster.close()
    assert world.ways["http://h:1"].closed == 1


@pytest.mark.req("ROUTERS-29")
async def test_one_that_is_busy_gets_nothing_new_and_stays_until_its_charges_are_released() -> None:
    world = World()
    world.apply(member())
    world.deps.load.charge("a")
    world.apply()
    assert "a" not in world.deps.upstreams
    assert world.let_go == ["a"]
    for _ in range(3):
        world.roster.tick()
        assert world.state("a") is State.DRAINING
    world.deps.load.release("a")
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
        world.deps.load.charge(backend_id)
    world.apply(member("b", "http://h:2"))
    world.now += 29.9
    world.roster.tick()
    assert not world.relays[0].outcome.done()
    world.now += 0.2
    world.roster.tick()
    assert world.relays[0].outcome.result().kind is Kind.BACKEND_DRAINED
    assert not world.relays[1].outcome.done()
    assert world.state("a") is State.DRAINING
    world.deps.load.release("a")
    world.roster.tick()
    assert world.left("a")


async def test_a_drained_one_stays_in_the_fleet_and_resumes_from_fresh_knowledge() -> None:
    world = World()
    world.apply(member())
    world.live.names["a"] = frozenset({"old"})
    world.apply(member(drain_grace_s=5.0))
    world.roster.tick()
    assert (world.state("a"), "a" in world.deps.upstreams) == (State.DRAINING, False)
    world.apply(member())
    assert (world.state("a"), "a" in world.deps.upstreams) == (State.UNKNOWN, True)
    assert (world.live.names, world.attached, world.forgotten) == ({}, ["a"], ["a"])


async def test_one_that_comes_back_before_it_was_gone_takes_requests_again() -> None:
    world = World()
    world.apply(member())
    world.deps.load.charge("a")
    world.apply()
    world.apply(member())
    assert world.state("a") is State.UNKNOWN
    world.deps.load.release("a")
    world.roster.tick()
    assert world.state("a") is State.UNKNOWN


@pytest.mark.req("ROUTERS-10")
async def test_the_same_id_at_another_address_waits_until_the_old_one_is_gone() -> None:
    world = World()
    world.apply(member())
    world.deps.load.charge("a")
    world.apply(member(url="http://h:2"))
    world.roster.tick()
    assert world.roster.member("a") == member()
    assert world.state("a") is State.DRAINING
    world.deps.load.release("a")
    world.roster.tick()
    assert world.roster.member("a") == member(url="http://h:2")
    assert (world.state("a"), world.deps.load.in_flight) == (State.UNKNOWN, {"a": 0})
    assert world.deps.upstreams["a"] is world.ways["http://h:2"]


async def test_a_new_grace_counts_from_when_it_was_given() -> None:
    world = World()
    world.apply(member(drain_grace_s=1000.0))
    world.deps.load.charge("a")
    world.relays = [Relay("a")]
    world.apply(member(drain_grace_s=1.0))
    world.now += 1.1
    world.roster.tick()
    assert world.relays[0].outcome.done()
    world.deps.load.release("a")


@pytest.mark.req("ROUTERS-9", "ROUTERS-10", "ROUTERS-29")
async def test_a_thousand_joins_and_leaves_leave_nothing() -> None:
    world = World()
    for n in range(1000):
        world.apply(member(f"b{n}", f"http://h:{n}"))
        world.deps.load.charge(f"b{n}")
        world.deps.load.release(f"b{n}")
        world.apply()
        world.roster.tick()
        assert world.left(f"b{n}")
    await world.roster.close()
    assert (len(world.roster), world.attached, world.deps.load.in_flight, world.deps.load.sent) == (0, [], {}, {})
    assert {way.closed for way in world.ways.values()} == {1}
