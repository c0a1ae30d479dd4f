import random

from backends.ports import Polled
from gateway.deps import Live
from gateway.fleet_watch import FAILURES_TO_GO_DOWN, FleetWatch
from routing.fleet import Backend, Fleet, Pool, State


class Engine:
    def __init__(self) -> None:
        self.reason = ""

    async def __call__(self) -> Polled:
        return Polled(self.reason, frozenset({"m"}))


def watched() -> tuple[Live, FleetWatch, Engine]:
    engine = Engine()
    live = Live(None, None, Fleet({"p": Pool("p", "m", "1", "vllm", (Backend("a", "p"),))}))  # type: ignore[arg-type]  # only the fleet is looked at
    return live, FleetWatch(live, {("p", "a"): engine}, 1.0, random.Random(1)), engine


def state(live: Live) -> State:
    return live.fleet.pools["p"].backends[0].state


async def test_one_round_makes_the_fleet_known_up_or_down() -> None:
    for reason, expected in (("", State.UP), ("no answer", State.DOWN)):
        live, watch, engine = watched()
        engine.reason = reason
        await watch.first_round()
        assert live.fleet.known
        assert state(live) is expected
        assert live.fleet.pools["p"].backends[0].reason == reason


async def test_a_backend_that_was_up_survives_single_failures() -> None:
    live, watch, engine = watched()
    await watch.first_round()
    engine.reason = "no answer within 2 s"
    for n in range(1, FAILURES_TO_GO_DOWN + 1):
        await watch.first_round()
        assert state(live) is (State.DOWN if n == FAILURES_TO_GO_DOWN else State.UP)
    engine.reason = ""
    await watch.first_round()
    assert state(live) is State.UP
