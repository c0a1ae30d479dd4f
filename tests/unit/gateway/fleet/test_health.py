import asyncio
import random

import pytest

from backends.health import ProbeOutcome, ProbeResult
from backends.ports import PollResult
from backends.signals import Signals
from domain.faults import Fault, Kind
from gateway.deps import Live, Watch
from gateway.fleet.health import HealthWatch, note_outcome, note_signals
from routing.fleet import Availability, Backend, Fleet, Pool
from tests.pool_states import charged, grounds_of
from tests.timing import HANG_S

SILENCE_S = 10.0


class Waiting:
    """A request that waits for its first byte, as the watch sees it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.last_event_at: float | None = None
        self.abandoned_at: list[tuple[float, bool]] = []

    def abandon_unanswered(self, now: float, *, at_once: bool) -> None:
        self.abandoned_at.append((now, at_once))


class World:
    """A pool of backends on a clock that is moved by hand."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        backends = tuple(Backend(name, "p") for name in names)
        self.live = Live(None, None, Fleet({"p": Pool("p", "m", "1", "vllm", backends)}))  # type: ignore[arg-type]  # keys and policies play no part
        self.pool_states = grounds_of(*names)
        self.watch = Watch()
        self.answers = dict.fromkeys(names, ProbeResult(ProbeOutcome.TOKEN))
        self.probes = dict.fromkeys(names, 0)
        self.health_watch = HealthWatch(self.live, self.pool_states, self.watch, SILENCE_S, lambda: self.now)
        for name in names:
            self.health_watch.add(name, self._probe(name))
            self.live.health[name].polled(PollResult(""), 0.0)

    def _probe(self, name: str):  # type: ignore[no-untyped-def]  # a closure
        async def probe() -> ProbeResult:
            self.probes[name] += 1
            return self.answers[name]

        return probe

    async def look(self, until: float) -> None:
        while self.now < until:
            self.now += 0.5
            self.health_watch.look()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self.health_watch.look()

    def backend(self, name: str) -> Backend:
        return next(b for b in self.live.fleet.pools["p"].backends if b.id == name)

    def states(self) -> dict[str, Availability]:
        return {b.id: b.state for b in self.live.fleet.pools["p"].backends}

    def waits_on(self, name: str) -> Waiting:
        waiting = Waiting(name)
        self.watch.watched[waiting] = None  # type: ignore[arg-type]  # it has what the watch uses
        charged(self.pool_states, name, self.now)
        return waiting


def note(world: World, name: str, fault: Fault | None, served: str = "", who: str = "req-1") -> None:
    note_outcome(world.live, world.backend(name), served, fault, who, world.now, random.Random(1))


@pytest.mark.req("R3")
async def test_a_silent_backend_is_ejected_within_half_a_minute_lets_go_of_what_waits_and_comes_back_with_a_token() -> None:
    world = World("a", "b")
    world.live.health["a"].counted((1,), 0.0)
    world.answers["a"] = ProbeResult(ProbeOutcome.FAILED, "no answer within 10 s")
    waiting, other = world.waits_on("a"), world.waits_on("b")
    await world.look(30.0)
    assert world.states() == {"a": Availability.EJECTED, "b": Availability.UP}
    assert "no token for" in world.backend("a").reason
    assert waiting.abandoned_at[0][1] is True
    assert other.abandoned_at == []
    world.answers["a"] = ProbeResult(ProbeOutcome.TOKEN)
    await world.look(100.0)
    assert world.states() == {"a": Availability.UP, "b": Availability.UP}


@pytest.mark.req("R3")
async def test_the_only_backend_is_never_ejected_into_nothing_and_says_what_is_wrong() -> None:
    world = World("a")
    world.live.health["a"].counted((1,), 0.0)
    world.answers["a"] = ProbeResult(ProbeOutcome.FAILED, "no answer within 10 s")
    waiting = world.waits_on("a")
    await world.look(60.0)
    assert world.states() == {"a": Availability.UP}
    assert world.backend("a").reason.startswith("suspect: no token for")
    assert waiting.abandoned_at == []


@pytest.mark.req("ROUTERS-20")
async def test_events_of_answers_outrank_everything_else() -> None:
    world = World("a", "b")
    world.answers["a"] = ProbeResult(ProbeOutcome.FAILED, "no answer")
    flowing = world.waits_on("a")
    while world.now < 100:
        flowing.last_event_at = world.now
        world.live.health["a"].polled(PollResult("/health: no answer within 2 s", silent=True), world.now)
        await world.look(world.now + 1.0)
    assert world.states() == {"a": Availability.UP, "b": Availability.UP}
    assert world.probes["a"] == 0


async def test_idle_backends_are_not_probed() -> None:
    world = World("a")
    await world.look(100.0)
    assert world.probes == {"a": 0}


@pytest.mark.req("R43")
async def test_another_model_behind_the_port_is_out_at_once_even_if_it_is_the_last() -> None:
    world = World("a")
    world.health_watch.look()
    world.answers["a"] = ProbeResult(ProbeOutcome.FAILED, "answers as 'other'")
    note(world, "a", Fault(Kind.WRONG_MODEL, "x", detail="answers as 'other'"))
    assert world.states() == {"a": Availability.EJECTED}
    await world.look(30.0)
    assert world.states() == {"a": Availability.EJECTED}
    world.answers["a"] = ProbeResult(ProbeOutcome.TOKEN)
    await world.look(60.0)
    assert world.states() == {"a": Availability.UP}


@pytest.mark.req("R43")
async def test_what_comes_back_is_spared_for_half_a_minute() -> None:
    world = World("a", "b")
    world.live.health["a"].quarantine("x", 0.0)
    await world.look(2.0)
    assert world.backend("a").warming_since == pytest.approx(1.0, abs=0.5)
    assert world.backend("b").warming_since is None
    await world.look(40.0)
    assert world.backend("a").warming_since is None


async def test_closing_ends_a_probe_that_hangs() -> None:
    world = World("a")

    async def hangs() -> ProbeResult:
        await asyncio.Event().wait()
        raise AssertionError

    watch = world.health_watch
    watch.add("a", hangs)
    world.live.health["a"].quarantine("x", 0.0)
    world.now = 5.0
    watch.look()
    await asyncio.sleep(0)
    async with asyncio.timeout(HANG_S):
        await watch.close()
    assert world.live.health == {}


async def test_what_is_said_of_a_backend_that_has_left_is_not_heard() -> None:
    world = World("a", "b")
    waiting = world.waits_on("b")
    await world.health_watch.remove("b")
    note_outcome(world.live, Backend("b", "p"), "", Fault(Kind.WRONG_MODEL, "x"), "req-1", 1.0, random.Random(1))
    note_signals(world.live, "b", Signals(read_at=1.0), 1.0, restarted=True)
    await world.look(5.0)
    assert waiting.abandoned_at == []
    assert set(world.live.health) == {"a"}


@pytest.mark.req("R3")
async def test_a_draining_backend_is_no_reason_to_eject_the_one_that_is_left() -> None:
    world = World("a", "b")
    world.health_watch.look()
    world.live.fleet = world.live.fleet.with_member(Backend("b", "p", Availability.DRAINING, "drained by an operator"))
    for _ in range(10):
        note(world, "a", Fault(Kind.FIRST_TOKEN_TIMEOUT, "x"))
    await world.look(5.0)
    assert world.states() == {"a": Availability.UP, "b": Availability.DRAINING}
    assert world.backend("a").reason.startswith("suspect: ")


async def test_an_engine_that_sleeps_gets_nothing_until_it_wakes() -> None:
    world = World("a")
    for asleep, expected in ((True, Availability.DOWN), (False, Availability.UP)):
        world.live.signals["a"] = Signals(read_at=world.now, asleep=asleep)
        world.health_watch.look()
        assert world.states() == {"a": expected}


async def test_a_probe_that_fails_in_a_way_nobody_thought_of_is_a_failed_probe() -> None:
    world = World("a")

    async def breaks() -> ProbeResult:
        raise OverflowError

    world.health_watch.add("a", breaks)
    world.live.health["a"].polled(PollResult("away"), 0.0)
    world.live.health["a"].polled(PollResult(""), 0.0)
    await world.look(1.0)
    assert "cannot be read: OverflowError" in world.backend("a").reason


# --- breakers -------------------------------------------------------------------------------------------------------

RESET = Fault(Kind.RESET_BEFORE_REPLY, "x", detail="closed by the engine")


@pytest.mark.req("ROUTERS-19")
async def test_failures_in_a_row_open_a_breaker_and_eject_nobody() -> None:
    world = World("a", "b")
    world.health_watch.look()
    for _ in range(5):
        note(world, "a", RESET)
    assert world.states() == {"a": Availability.UP, "b": Availability.UP}
    assert world.backend("a").reason.startswith("breaker open: 5 requests in a row failed, the last one: reset_before_reply (closed by")
    assert list(world.live.breakers.shut("", world.now)) == ["a"]


@pytest.mark.req("R43")
async def test_what_closed_is_spared_from_the_next_request_on() -> None:
    world = World("a", "b")
    world.health_watch.look()
    for _ in range(5):
        note(world, "a", RESET)
    world.now = 6.5
    assert world.live.breakers.of("a").enter("req-2", world.now)
    note(world, "a", None, who="req-2")
    assert (world.backend("a").reason, world.backend("a").warming_since) == ("", 6.5)
    await world.look(40.0)
    assert world.backend("a").warming_since is None


async def test_an_adapter_that_its_engine_lost_is_nobodys_failure() -> None:
    world = World("a", "b")
    for kind in (Kind.MODEL_NOT_SERVED, Kind.WRONG_MODEL):
        for _ in range(10):
            note(world, "a", Fault(kind, "x"), served="lora")
    world.health_watch.look()
    assert world.live.breakers.shut("lora", world.now) == {}
    assert world.states() == {"a": Availability.UP, "b": Availability.UP}


async def test_an_engine_that_comes_back_begins_with_closed_breakers() -> None:
    world = World("a", "b")
    for _ in range(5):
        note(world, "a", RESET)
    for _ in range(3):
        world.live.health["a"].polled(PollResult("/health: refused"), world.now)
    world.live.health["a"].polled(PollResult(""), world.now)
    await world.look(3.0)
    assert world.states()["a"] is Availability.UP
    assert world.live.breakers.shut("", world.now) == {}


async def test_the_engines_own_retry_after_is_heeded() -> None:
    world = World("a", "b")
    note(world, "a", Fault(Kind.ENGINE_BUSY, "x", alone_s=3.0))
    assert list(world.live.breakers.shut("", 2.9)) == ["a"]
    assert world.live.breakers.shut("", 3.1) == {}


@pytest.mark.req("GATEWAYS-19")
async def test_a_backend_that_cannot_be_reached_stays_up_and_says_so_until_it_answers() -> None:
    world = World("a", "b")
    world.health_watch.look()
    note(world, "a", RESET)
    world.health_watch.look()
    assert world.states() == {"a": Availability.UP, "b": Availability.UP}
    assert "cannot be reached (reset_before_reply)" in world.backend("a").reason
    note(world, "b", None)
    assert set(world.live.contacts.lost) == {"a"}
    note(world, "a", None)
    world.health_watch.look()
    assert (world.backend("a").reason, world.live.contacts.lost) == ("", {})
    note(world, "a", RESET)
    await world.health_watch.remove("a")
    assert world.live.contacts.lost == {}
