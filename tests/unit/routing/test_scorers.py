import pytest

from routing.load import BackendFacts, LoadTable
from routing.ports import Candidates, Column, RoutingRequest
from routing.scorers import (
    expected_output,
    kv_pressure,
    lora_residency,
    prefix_overlap,
    price,
    queue_delay,
    region,
    session_affinity,
    tenant_priority,
)
from tests.placement import board_of, tell

DEMAND = RoutingRequest(1000, output_tokens_p90=500, priority=-0.5, region="eu")


def load_table() -> LoadTable:
    made = board_of("a", "b")
    tell(made, "a", 1.0, queued_tokens=40_000, kv_usage=0.5, kv_capacity=2000)
    made.set_facts("a", BackendFacts(price=2.0, region="us"))
    made.set_facts("b", BackendFacts(price=1.0, region="eu"))
    return made


@pytest.mark.parametrize(
    ("scorer", "expected"),
    [
        (prefix_overlap, [0.8, 0.0]),
        (session_affinity, [0.0, 1.0]),
        (queue_delay, [0.5, 0.0]),
        (kv_pressure, [0.5, 0.0]),
        (expected_output, [0.7, 1500 / 400_000]),
        (lora_residency, [1.0, 0.25]),
        (tenant_priority, [-0.5, -0.5]),
        (price, [1.0, 0.5]),
        (region, [0.0, 1.0]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_each_sees(scorer: object, expected: Column) -> None:
    candidates = Candidates([0, 1], [800.0, 0.0], lora_s=[0.0, 3.0], sticky=1)
    assert scorer(DEMAND, candidates, load_table()) == pytest.approx(expected)  # type: ignore[operator]  # a scorer


@pytest.mark.req("ROUTERS-6")
@pytest.mark.parametrize("scorer", [kv_pressure, expected_output])
def test_an_unknown_cache_counts_as_the_mean_of_the_others(scorer: object) -> None:
    made = load_table()
    made.add("c")
    values = scorer(DEMAND, Candidates([0, 1, 2], [0.0, 0.0, 0.0]), made)  # type: ignore[operator]  # a scorer
    assert values[2] == pytest.approx((values[0] + values[1]) / 2) and values[2] > 0


def test_nobody_said_anything() -> None:
    plain, candidates = board_of("a", "b"), Candidates([0, 1], [0.0, 0.0])
    assert (
        price(DEMAND, candidates, plain) == region(DEMAND, candidates, plain) == session_affinity(DEMAND, candidates, plain) == [0.0, 0.0]
    )
    assert lora_residency(DEMAND, candidates, plain) == [1.0, 1.0]
    assert prefix_overlap(RoutingRequest(0), candidates, plain) == [0.0, 0.0]
