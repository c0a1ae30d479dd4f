import pytest

from bench.fleet.capacity import FOLLOWED, STEP, WIDEST, due, followed, highest
from routing.simulation.fleet_file import Engines, FleetFile
from routing.simulation.turns import TraceRequest, Workload, fresh_chain

FLEET = FleetFile(engines=[Engines(machine="h100-8b")])


@pytest.mark.parametrize("true", [0.07, 0.9, 1.0, 3.3, 40.0])
def test_the_highest_speed_is_found_within_a_step(true: float) -> None:
    found = highest(lambda speed: speed <= true, 1.0)
    assert true / STEP <= found <= true


def test_the_search_ends() -> None:
    assert highest(lambda speed: True, 1.0) == WIDEST
    with pytest.raises(ValueError, match="too small"):
        highest(lambda speed: False, 1.0)


def test_a_rate_beyond_what_an_engine_computes_is_not_followed() -> None:
    # 4,000 tokens take an engine 0.113 s and more
    turns = [TraceRequest(0.5 * at, 4000, 2, fresh_chain(4000, 512, at)) for at in range(60)]
    workload = Workload("w", turns)
    assert followed(workload, FLEET) >= FOLLOWED
    assert followed(workload.scaled(8.0), FLEET) < FOLLOWED


def test_a_turn_is_due_after_the_answer_before_it() -> None:
    workload = Workload("w", [TraceRequest(1.0, 10, 100), TraceRequest(1.0, 10, 1, after=0, think_s=5.0)])
    assert due(workload, FLEET) == [1.0, pytest.approx(6.0 + 100 * 0.00652)]
