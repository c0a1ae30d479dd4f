"""What a run comes to: shares count every request, bounds bound, intervals contain the mean."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.simulation.figures import balance, curve, figures, interval, pooled_hit_rate, quantile
from routing.simulation.fleet_file import Engines, FleetFile
from routing.simulation.outcomes import Outcomes, RequestEnd
from routing.simulation.turns import TraceRequest, Workload

FLEET = FleetFile(engines=[Engines(machine="h100-8b", count=2)])


def four() -> tuple[Workload, Outcomes]:
    """Two good answers on engine 0 (one tenant), one late on engine 1, one refused (another tenant)."""
    chain = [1, 2, 3]
    turns = [TraceRequest(float(i), 200, 11, chain, "a" if i < 2 else "b") for i in range(4)]
    outcomes = Outcomes(
        arrived=[0.0, 1.0, 2.0, 3.0],
        first=[0.5, 1.5, 7.0, 0.0],
        ended=[1.0, 2.0, 8.0, 3.0],
        cached=[0, 192, 0, 0],
        predicted=[0.0, 192.0, 192.0, 0.0],
        engine=[0, 0, 1, -1],
        state=[RequestEnd.DONE, RequestEnd.DONE, RequestEnd.DONE, RequestEnd.REFUSED],
        finished_at=8.0,
    )
    return Workload("four", turns, 64), outcomes


def test_refusals_are_misses_and_nothing_else() -> None:
    found = figures(four()[0], FLEET, four()[1])
    assert (found.requests, found.refused, found.goodput) == (4, 1, 0.5)
    assert (found.ttft_p50_s, found.ttft_p99_s) == (0.5, 5.0)
    assert found.tpot_p50_s == pytest.approx(0.05)
    assert found.hit_rate == pytest.approx(192 / 600)
    assert found.hit_rate_predicted == pytest.approx(384 / 600)
    assert found.hotspot == pytest.approx(2 * 208 / 408)
    assert found.jain == pytest.approx(0.5)
    assert curve(*four())[-1] == 5.0
    assert len(curve(*four())) == 150
    assert balance(FLEET, *four()) == pytest.approx([208 / 408, 200 / 408])


def test_one_cache_for_all_finds_every_repeat() -> None:
    workload, outcomes = four()
    assert pooled_hit_rate(workload, FLEET, outcomes) == pytest.approx(2 * 192 / 600)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=10))
def test_an_interval_holds_the_mean(values: list[float]) -> None:
    low, high = interval(values, random.Random(0)) or (0.0, 0.0)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert interval(values[:1], random.Random(0)) is None


def test_quantiles_of_nothing_are_zero() -> None:
    assert quantile([], 0.5) == 0.0
    assert quantile([1.0, 2.0], 1.0) == 2.0
