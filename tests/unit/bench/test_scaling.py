"""The rules that `bench.scaling` compares, and how it warps a trace and chooses targets."""

import math
import re
from pathlib import Path

import msgspec
import pytest

from bench.scaling import MOST, SIGNALS, Found, chosen, on_busy, on_requests, on_signals, recommended, warped
from routing.scaling import PoolLoad
from routing.simulation.elastic import ElasticView


def view(now: float, *, up: int = 4, starting: int = 0, requests_per_s: float = 0.0, busy: float = 0.0, kv: float = 0.0) -> ElasticView:
    load = PoolLoad(backends=up + starting, up=up, telling=up, running=8, kv_used=kv * up, kv_telling=up)
    return ElasticView(load, now, requests_per_s, busy)


def test_the_rule_on_requests_divides_them_by_the_target() -> None:
    assert on_requests(2.0)(view(400.0, requests_per_s=13.0)) == 7
    assert on_requests(2.0)(view(400.0, requests_per_s=8.7)) == 4  # within the tolerance of 10 %
    assert on_requests(2.0)(view(400.0, requests_per_s=1e6)) == MOST


def test_fewer_only_after_five_minutes_in_which_nothing_more_was_wanted() -> None:
    rule = on_requests(1.0)
    assert rule(view(400.0, requests_per_s=8.0)) == 8
    assert rule(view(700.0, up=8, requests_per_s=2.0)) == 8
    assert rule(view(701.0, up=8, requests_per_s=2.0)) == 2
    assert on_requests(1.0)(view(100.0, requests_per_s=1.0)) == 4  # the first five minutes have not passed


def test_engines_that_start_count_as_idle_for_the_rule_on_busy_ones() -> None:
    assert on_busy(0.5)(view(400.0, busy=1.0)) == 8
    assert on_busy(0.5)(view(400.0, starting=4, busy=1.0)) == 8
    assert on_busy(0.5)(view(400.0, starting=8, busy=1.0)) == 12  # nor does it take back what starts while it is short


def test_the_rule_on_signals_takes_the_larger_number() -> None:
    assert on_signals(SIGNALS)(view(400.0, kv=1.05)) == 6
    waits = msgspec.structs.replace(view(400.0).load, waiting_tokens=32_000, waiting=4)
    assert on_signals(SIGNALS)(ElasticView(waits, 400.0, 0.0, 0.0)) == 8
    assert on_signals(SIGNALS)(view(400.0)) == 1


def test_the_signals_have_the_targets_of_the_chart() -> None:
    text = (Path(__file__).parents[3] / "charts" / "engines" / "templates" / "_helpers.tpl").read_text()
    for name, target in SIGNALS.items():
        assert re.search(rf'"{name}" \(list "\w+" "Value" "{target:g}"\)', text), name


def test_the_recommendation_is_the_gateways_own() -> None:
    rule = recommended({"kv": 0.5, "headroom": 0.0})
    assert rule(view(0.0, kv=0.75)) == 6


def test_a_warped_trace_keeps_its_order_and_its_span() -> None:
    times = [warped(at, 1000.0, 0.7) for at in range(0, 1001, 10)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(0.0, abs=1e-6)
    assert times[-1] == pytest.approx(1000.0, abs=1e-6)
    at_peak = warped(125.0, 1000.0, -math.pi / 2)
    assert at_peak > 125.0  # it begins in the night, when few come


def test_a_peers_target_is_the_cheapest_that_is_as_good_else_the_best() -> None:
    ours = Found(0.95, 2.0, 4.0, 6)
    tried = {"1": Found(0.99, 3.0, 0, 0), "2": Found(0.96, 2.5, 0, 0), "3": Found(0.9, 1.0, 0, 0)}
    assert chosen(ours, tried) == "2"
    assert chosen(Found(1.0, 2.0, 4.0, 6), tried) == "1"
