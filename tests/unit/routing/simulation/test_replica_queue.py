"""The gateway's queue in the simulator: engines get little that they have not begun, the shortest goes first, and nothing is lost."""

import random
from functools import partial
from typing import Any

import pytest

from domain.clock import Rng
from domain.priority import Class
from routing.policy_instance import policy_instance
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.outcomes import Outcomes, RequestEnd
from routing.simulation.replica import SimulatedQueue
from routing.simulation.turns import TraceRequest, Workload, fresh_chain


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


def ran(turns: list[TraceRequest], **more: Any) -> Outcomes:
    fleet = FleetFile.model_validate({"engines": [{"machine": "h100-8b", "count": 1}], **more})
    return SimulatedFleet(fleet, Workload("w", turns, 64), partial(policy_instance, "predicted_latency"), dice).run()


def ttft(outcomes: Outcomes, at: int) -> float:
    return outcomes.first[at] - outcomes.arrived[at]


def burst(longs: int) -> list[TraceRequest]:
    """Prompts of 0.8 s each at once, and a short one right behind them."""
    turns = [TraceRequest(0.001 * at, 30_000, 5, fresh_chain(30_000, 64, 1, at)) for at in range(longs)]
    return [*turns, TraceRequest(0.1, 200, 5, fresh_chain(200, 64, 2))]


def test_a_short_prompt_does_not_stand_behind_long_ones_in_the_engine() -> None:
    held, sent = ran(burst(8)), ran(burst(8), hold_s=0)
    assert all(state is RequestEnd.DONE for state in (*held.state, *sent.state))
    assert ttft(held, 8) < 0.3 * ttft(sent, 8)
    assert max(ttft(held, at) for at in range(8)) < 1.1 * max(ttft(sent, at) for at in range(8)), "who waits for it hardly waits longer"


def test_a_higher_class_goes_first() -> None:
    turns = [
        TraceRequest(0.001 * at, 30_000, 5, fresh_chain(30_000, 64, 1, at), priority_class=Class.CRITICAL if at == 7 else Class.BATCH)
        for at in range(8)
    ]
    outcomes = ran(turns)
    assert sorted(range(8), key=outcomes.first.__getitem__)[1] == 7, "only the first of all had been sent before it came"


@pytest.mark.parametrize("replicas", [1, 3])
def test_everything_is_answered_whatever_waits(replicas: int) -> None:
    turns = [TraceRequest(0.01 * at, 5_000, 20, fresh_chain(5_000, 64, 3, at), tenant=f"t{at % 3}") for at in range(120)]
    outcomes = ran(turns, replicas=replicas, faults=[{"at_s": 3.0, "engine": 0, "kind": "slow", "for_s": 5.0}])
    assert all(state is RequestEnd.DONE for state in outcomes.state)


def test_the_queue_looks_only_while_there_is_room() -> None:
    queue = SimulatedQueue()
    for at in range(3):
        queue.join(f"flight {at}", TraceRequest(0.0, 100 * (3 - at), 5), 100.0 * (3 - at), 0.1 * (3 - at), 0.0)
    tried: list[object] = []
    queue.look(lambda: False, lambda flight: not tried.append(flight))
    assert tried == []
    queue.look(lambda: len(tried) < 2, lambda flight: not tried.append(flight))
    assert tried == ["flight 2", "flight 1"]
    assert len(queue) == 1
