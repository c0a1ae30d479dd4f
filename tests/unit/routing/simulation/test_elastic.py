"""Laws of a fleet whose engines come and go: nothing is lost, nothing serves before its cold start, every second is counted once."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.policy_instance import policy_instance
from routing.simulation.elastic import ElasticFleet, Elasticity, ElasticView
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import EngineFault, Engines, FleetFile
from routing.simulation.outcomes import RequestEnd
from routing.simulation.turns import TraceRequest, Workload
from tests.unit.routing.simulation.test_fleet import dice, some


def fleet(count: int, **more: Any) -> FleetFile:
    return FleetFile(engines=[Engines(machine="h100-8b", count=count)], **more)


def steps(*wanted: int) -> Any:
    """A scaler that wants these numbers one after the other, and the last one from then on."""
    left = list(wanted)

    def scaler(_: ElasticView) -> int:
        return left.pop(0) if len(left) > 1 else left[0]

    return scaler


def elastic(turns: list[TraceRequest], on: FleetFile, how: Elasticity, policy: str = "predicted_latency") -> ElasticFleet:
    return ElasticFleet(on, Workload("test", turns, 64), partial(policy_instance, policy), dice(), how)


@settings(max_examples=10, deadline=None)
@given(
    wanted=st.lists(st.integers(1, 4), min_size=1, max_size=20),
    replicas=st.integers(1, 2),
    policy=st.sampled_from(["least_load", "predicted_latency", "smg_cache_aware"]),
    cold_start_s=st.floats(0.1, 5),
)
def test_no_request_is_lost_while_engines_come_and_go(wanted: list[int], replicas: int, policy: str, cold_start_s: float) -> None:
    on = fleet(6, replicas=replicas)
    one = elastic(some(100, gap_s=0.1), on, Elasticity(steps(*wanted), 2, cold_start_s, 1.0), policy)
    outcomes = one.run()
    assert set(outcomes.state) == {RequestEnd.DONE}
    assert outcomes.retries == 0
    assert [replica.load_table.total() for replica in one.replicas] == [0] * replicas
    assert one.engine_seconds <= one.most * one.now + 1e-9


def test_a_fixed_number_is_the_fleet_as_it_was() -> None:
    turns = some(300)
    fixed = SimulatedFleet(fleet(3), Workload("test", turns, 64), partial(policy_instance, "predicted_latency"), dice()).run()
    one = elastic(turns, fleet(3), Elasticity(steps(3), 3, every_s=1.0))
    assert one.run() == fixed
    assert one.engine_seconds == pytest.approx(3 * one.now)


def test_nothing_is_served_before_the_cold_start_has_ended() -> None:
    turns = some(2000, gap_s=0.1)
    outcomes = elastic(turns, fleet(2), Elasticity(steps(2), 1, 120.0, 15.0)).run()
    served = [outcomes.arrived[i] for i in range(len(turns)) if outcomes.engine[i] == 1]
    assert 135.0 <= min(served) < 170.0  # asked for after 15 s; a slow start keeps most requests away for a while more


def test_an_engine_costs_from_being_asked_for_until_it_has_ended_its_last_request() -> None:
    long = some(2, output=3000, gap_s=0.001)
    one = elastic([*long, *[TraceRequest(100.0, 10, 2)]], fleet(2), Elasticity(steps(1), 2, every_s=1.0), "round_robin")
    outcomes = one.run()
    first, second = (end for end in outcomes.ended[:2])
    assert min(first, second) > 2.0  # it was told to leave after 1 s
    assert set(outcomes.state) == {RequestEnd.DONE}
    assert one.engine_seconds == pytest.approx(one.now + outcomes.ended[1 - outcomes.engine[2]])


def test_an_engine_that_is_dismissed_while_it_starts_costs_until_then_and_never_serves() -> None:
    turns = some(100, gap_s=1.0)
    one = elastic(turns, fleet(2), Elasticity(steps(2, 2, 1), 1, 60.0, 10.0))
    assert set(one.run().engine) == {0}
    assert one.engine_seconds == pytest.approx(one.now + 20.0)


def test_the_scaler_sees_what_arrived_and_what_runs() -> None:
    seen: list[ElasticView] = []

    def scaler(view: ElasticView) -> int:
        seen.append(view)
        return 1

    elastic(some(600, gap_s=0.1), fleet(1), Elasticity(scaler, 1)).run()
    view = seen[2]
    assert view.now == 45.0
    assert view.requests_per_s == pytest.approx(10.0, abs=0.1)
    assert 0.9 < view.busy <= 1.0
    assert view.load.backends == view.load.up == 1
    assert view.load.running > 0
    assert view.load.deficit == 0.0


@pytest.mark.parametrize("more", [{"faults": [EngineFault(at_s=1, engine=0, kind="kill", for_s=1)]}])
def test_what_cannot_come_and_go_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="takes no disaggregation, faults or lora_slots"):
        elastic(some(1), fleet(2, **more), Elasticity(steps(1), 1))


def test_more_engines_at_the_start_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="the fleet file lists 2; start with 1 to 2"):
        elastic(some(1), fleet(2), Elasticity(steps(3), 3))
