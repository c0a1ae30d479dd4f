"""Several simulated gateway processes before engines without KV events: told of each other's dispatches they cache like one."""

import random
from functools import partial

import pytest

from domain.clock import Rng
from routing.policy_instance import policy_instance
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import EngineFault, Engines, FleetFile, SignalDelays
from routing.simulation.outcomes import Outcomes, RequestEnd
from routing.simulation.turns import Dice, TraceRequest, Workload

BLOCK = 64


def dice(seed: int = 0) -> Dice:
    def one(name: str) -> Rng:
        return random.Random(f"{seed} {name}")

    return one


def conversations(count: int = 16, turns: int = 6) -> list[TraceRequest]:
    """Each begins with a text of its own and goes on every two seconds; no session says so."""
    found = []
    for turn in range(turns):
        for number in range(count):
            blocks = [hash((number, at)) for at in range(40 + 4 * turn)]
            found.append(TraceRequest(2.0 * turn + 0.05 * number, BLOCK * len(blocks) + 9, 20, blocks))
    return found


def ran(replicas: int, siblings_s: float, *, faults: tuple[EngineFault, ...] = ()) -> tuple[float, Outcomes]:
    """The share of prompt tokens that were cached, and the outcomes."""
    turns = conversations()
    signals = SignalDelays(kv_events=False)
    engines = [Engines(machine="h100-8b", count=6)]
    fleet = FleetFile(engines=engines, replicas=replicas, signals=signals, siblings_s=siblings_s, faults=list(faults))
    outcomes = SimulatedFleet(fleet, Workload("test", turns, BLOCK), partial(policy_instance, "predicted_latency"), dice()).run()
    return sum(outcomes.cached) / sum(turn.prompt_tokens for turn in turns), outcomes


@pytest.mark.req("ROUTERS-17")
def test_four_that_tell_each_other_cache_like_one_and_four_that_do_not_cache_less() -> None:
    alone, _ = ran(1, 0.0)
    told, _ = ran(4, 0.025)
    silent, _ = ran(4, 0.0)
    assert told >= 0.97 * alone
    assert silent < 0.9 * alone


def test_what_is_told_of_an_engine_that_dies_is_taken_back() -> None:
    _, outcomes = ran(4, 0.5, faults=(EngineFault(at_s=2.0, engine=0, kind="kill", for_s=4.0),))
    assert outcomes.retries or RequestEnd.FAILED in outcomes.state
    assert RequestEnd.PENDING not in outcomes.state
