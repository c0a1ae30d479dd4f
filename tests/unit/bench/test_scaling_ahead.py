"""How `bench.scaling_ahead` makes loads of ServeGen's rates, and what its forecast sees."""

import gzip
import json
from pathlib import Path

import pytest

from bench.fleet.workloads import dice
from bench.scaling_ahead import DAY, PEAK_PER_S, SERVEGEN, WEEK, Load, Run, Window, arrivals, between, errors, ours, rates, windows
from routing.forecast import SLOT_S, PredictSettings
from routing.simulation.turns import TraceRequest

JOBS = Load("jobs", (7,))


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two weeks of one client with jobs from nine to eleven, and another one."""
    (tmp_path / SERVEGEN).parent.mkdir()
    rate = [[slot * SLOT_S, 40.0 if 54 <= slot % DAY < 66 else 10.0, 1.0, "Gamma", 1, 1] for slot in range(2 * WEEK) if slot % 1000]
    with gzip.open(tmp_path / SERVEGEN, "wt") as lines:
        lines.write(json.dumps({"client": 7, "rate": rate}) + "\n" + json.dumps({"client": 8, "rate": [[0, 5.0, 1, "Gamma", 1, 1]]}) + "\n")
    return tmp_path


def test_rates_are_scaled_to_the_peak_of_the_first_week(traces: Path) -> None:
    known = rates(traces, JOBS)
    assert (known[60], known[70]) == (PEAK_PER_S, PEAK_PER_S / 4)
    assert 1000 not in known and 0 in rates(traces, Load("all", ()))


def test_steep_windows_are_where_the_rate_rises_one_a_day(traces: Path) -> None:
    found = windows(rates(traces, JOBS), JOBS, WEEK, 2 * WEEK, 3, 2, 114)
    assert [(window.steep, window.seed) for window in found] == [(True, 114), (True, 115), (True, 116), (False, 117), (False, 118)]
    assert all(49 <= window.start % DAY <= 52 for window in found[:3])
    assert len({window.start // DAY for window in found[:3]}) == 3


def test_requests_follow_the_rate_between_the_middles_of_slots() -> None:
    known = {at: 1.0 if at < 12 else 3.0 for at in range(9, 18)}
    assert between(known, 12 * SLOT_S) == 2.0
    came = arrivals(known, 10, [TraceRequest(0.0, 700, 3)], dice(0)("arrivals"))
    early = sum(turn.at_s < 2 * SLOT_S - SLOT_S / 2 for turn in came)
    late = sum(turn.at_s > 2 * SLOT_S + SLOT_S / 2 for turn in came)
    assert early == pytest.approx(900, rel=0.15) and late == pytest.approx(4500, rel=0.1)
    assert {(turn.prompt_tokens, turn.output_tokens) for turn in came} == {(700, 3)}


def test_a_run_with_a_forecast_knows_the_slots_before_it(traces: Path) -> None:
    known = rates(traces, JOBS)
    window = Window(JOBS, WEEK + 50, True, 114)
    with_one = ours(Run(window, 600.0, "recommended", '{"predict": {"quantile": 0.5}}', 0.5), known)
    assert with_one._slots is not None
    assert with_one._slots.growth((WEEK + 53) * SLOT_S).backends == pytest.approx(0.6 * 0.5 * PEAK_PER_S * 0.75)
    assert with_one._slots.last_s == window.start * SLOT_S
    assert ours(Run(window, 600.0, "recommended", '{"headroom": 0.3}', 0.5), known)._slots is None


def test_a_daily_shape_is_forecast_without_an_error(traces: Path) -> None:
    off, lacks = errors(traces, JOBS, PredictSettings(lead_s=600.0, quantile=0.5), 600.0)
    naive_off, naive_lacks = errors(traces, JOBS, None, 600.0)
    assert lacks < 0.001 < naive_lacks
    assert off < naive_off, "what falls is not forecast, so an error is left"
