import random
from functools import partial

import pytest

from bench.fleet.bound import bound, idle_s, pooled_mean_s
from bench.fleet.parts import scored, scored_figures
from routing.policy_instance import policy_instance
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import Engines, FleetFile
from routing.simulation.turns import Dice, TraceRequest, Workload, fresh_chain
from routing.simulation.workloads import WORKLOADS

KIND = Engines(machine="h100-8b")
FLEET = FleetFile(engines=[Engines(machine="h100-8b", count=2)])


def _dice(seed: int) -> Dice:
    return lambda name: random.Random(f"{seed} {name}")


def test_an_idle_engine_computes_a_prompt_in_steps_of_its_budget() -> None:
    one = idle_s(KIND, 1000, 0)
    assert one == pytest.approx((6.5 + 0.025 * 1000) / 1e3)
    assert idle_s(KIND, 3048, 0) == pytest.approx((2 * 6.5 + 0.025 * 3048 + 8e-7 * 1000 * 2048) / 1e3)
    assert idle_s(KIND, 3048, 2048) == pytest.approx(one + 8e-7 * 1000 * 2048 / 1e3)


def test_a_lone_request_reaches_the_idle_bound() -> None:
    workload = Workload("w", [TraceRequest(0.0, 5000, 3, fresh_chain(5000, 512, 1))])
    outcomes = SimulatedFleet(FLEET, workload, partial(policy_instance, "least_load"), _dice(0)).run()
    found = bound(workload, FLEET, outcomes, [0])
    assert outcomes.first[0] - outcomes.arrived[0] == pytest.approx(found["ttft_mean_s"])
    assert found["ttft_p99_s"] == found["ttft_mean_s"]


def test_shortest_remaining_first() -> None:
    # the short one interrupts the long one: 1 s and 11 s
    assert pooled_mean_s([(0.0, 10.0), (1.0, 1.0)], 1.0) == pytest.approx(6.0)
    # at twice the speed: 0.5 s and 5.5 s
    assert pooled_mean_s([(0.0, 10.0), (1.0, 1.0)], 2.0) == pytest.approx(3.0)
    assert pooled_mean_s([(0.0, 1.0), (5.0, 1.0)], 1.0) == pytest.approx(1.0)
    assert pooled_mean_s([], 1.0) == 0.0


@pytest.mark.parametrize("name", ["chat", "no-sharing", "agents"])
@pytest.mark.parametrize("policy", ["predicted_latency", "random"])
def test_no_run_is_better_than_its_bound(name: str, policy: str) -> None:
    workload = WORKLOADS[name](_dice(1)).first(120).with_answers().scaled(4.0)
    outcomes = SimulatedFleet(FLEET, workload, partial(policy_instance, policy), _dice(1)).run()
    chosen = scored(workload)
    found, best = scored_figures(workload, FLEET, outcomes, chosen), bound(workload, FLEET, outcomes, chosen)
    assert found.ttft_mean_s >= best["ttft_mean_s"] * (1 - 1e-9)
    assert found.ttft_p99_s >= best["ttft_p99_s"] * (1 - 1e-9)
    assert found.hit_rate <= best["hit_rate"] + 1e-9
