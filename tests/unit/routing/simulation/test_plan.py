"""The plan's laws: the number found meets the objectives and one fewer does not, more load needs no fewer, costs are
hours times prices over tokens, and what no number can meet is known before a run."""

import random
from collections.abc import Sequence
from math import ceil, log2

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.clock import Rng
from policies.routing_choice import DEFAULT_ROUTING, routing_of
from routing.simulation.fleet_file import Engines, FleetFile, Objective
from routing.simulation.plan import (
    IdleBound,
    KindPlan,
    PlanExtras,
    PlannedKind,
    PlanPoint,
    PlanTrial,
    cheapest,
    cost_of,
    hopeless,
    idle_bound,
    idle_tpot_s,
    idle_ttft_s,
    least_number,
    plan_kind,
    simulated,
)
from routing.simulation.turns import Dice, TraceRequest, Workload, fresh_chain

SLO = Objective(ttft_s=0.5, tpot_s=0.03)
ATTAIN = 0.95


def dice(seed: int) -> Dice:
    def one(name: str) -> Rng:
        return random.Random(f"{seed} {name}")

    return one


def kind_of(slo: Objective = SLO, usd: float | None = None, **engine: object) -> PlannedKind:
    fields = {"machine": "h100-8b", **engine}
    entry = Engines.model_validate(fields)
    return PlannedKind("k", FleetFile(engines=[entry], slo=slo), "constants", entry.gpus_each, usd)


def stream(count: int, every_s: float, prompt: int = 3000, output: int = 60, seed: int = 0) -> Workload:
    """Requests that share nothing, about every so many seconds."""
    rng = random.Random(seed)
    turns = []
    at = 0.0
    for number in range(count):
        at += every_s * (0.5 + rng.random())
        turns.append(TraceRequest(at, prompt, output, fresh_chain(prompt, 512, 1, number)))
    return Workload("stream", turns)


def run(kind: PlannedKind, engines: int, workload: Workload, seed: int = 0) -> PlanTrial:
    return simulated(kind, engines, workload, routing_of(DEFAULT_ROUTING).policy_instance, dice(seed))


def plan(kind: PlannedKind, workload: Workload, most: int = 64, seeds: int = 2) -> KindPlan:
    return plan_kind(
        kind, workload, ATTAIN, most, PlanExtras(), lambda engines: [run(kind, engines, workload, seed) for seed in range(seeds)]
    )


@given(least=st.integers(1, 1100), start=st.integers(1, 1100), most=st.integers(1, 1024))
def test_the_search_finds_the_least_number_in_few_tries(least: int, start: int, most: int) -> None:
    tried: list[int] = []

    def meets(engines: int) -> bool:
        tried.append(engines)
        return engines >= least

    found = least_number(meets, start, most)
    assert found == (least if least <= most else None)
    assert len(tried) == len(set(tried)) <= 2 * log2(most) + 2
    assert all(1 <= engines <= most for engines in tried)
    if found is not None:
        assert found in tried
        assert found == 1 or found - 1 in tried


def test_the_number_found_meets_and_one_fewer_does_not() -> None:
    kind, workload = kind_of(), stream(300, 0.02)
    found = plan(kind, workload)
    assert found.least is not None
    assert found.least > 1
    again = {engines: [run(kind, engines, workload, seed).attained for seed in (0, 1)] for engines in (found.least, found.least - 1)}
    assert min(again[found.least]) >= ATTAIN > min(again[found.least - 1])
    fewer = found.at(found.least - 1)
    assert fewer is not None
    assert (fewer.worst, fewer.best) == (min(again[found.least - 1]), max(again[found.least - 1]))


def test_more_load_and_stricter_objectives_need_no_fewer_engines() -> None:
    workload = stream(120, 0.04)
    by_load = [plan(kind_of(), workload.scaled(speed), seeds=1).least or 0 for speed in (0.5, 1.0, 3.0)]
    assert by_load == sorted(by_load)
    assert by_load[0] < by_load[-1]
    by_slo = [plan(kind_of(Objective(ttft_s=ttft, tpot_s=0.03)), workload, seeds=1).least or 0 for ttft in (2.0, 0.5, 0.15)]
    assert by_slo == sorted(by_slo)


def test_a_slower_engine_needs_no_fewer() -> None:
    needed = [plan(kind_of(slower=slower), stream(120, 0.04), seeds=1).least or 0 for slower in (1.0, 2.0)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


def test_a_cost_is_hours_times_the_price_over_the_tokens() -> None:
    kind, workload = kind_of(usd=3.0, gpus=2), stream(200, 0.03)
    found = plan(kind, workload)
    cost, point = found.cost, found.at(found.least or 0)
    assert cost is not None
    assert point is not None
    hours = point.mean.lasted_s / 3600
    assert (cost.engines, cost.gpus) == (found.least, 2 * (found.least or 0))
    assert cost.gpu_hours == pytest.approx(cost.gpus * hours)
    assert cost.usd_hour == pytest.approx(3.0 * cost.engines)
    assert cost.usd_per_million_tokens == pytest.approx(3.0 * cost.engines * hours / (200 * 3060) * 1e6)
    assert cost.usd_per_million_output_tokens == pytest.approx(3.0 * cost.engines * hours / (200 * 60) * 1e6)
    assert [one.engines for one in found.costs] == [one.engines for one in found.tried]


@given(least=st.integers(1, 500), headroom=st.floats(0, 0.9), standby=st.integers(0, 20), spot=st.floats(0, 1), discount=st.floats(0, 0.99))
def test_what_is_added_is_counted_and_paid(least: int, headroom: float, standby: int, spot: float, discount: float) -> None:
    extras = PlanExtras(headroom, standby, spot, discount)
    serving = extras.serving(least)
    assert serving >= least
    # the share stays free, and one engine fewer would not leave it
    assert serving * (1 - headroom) >= least - 1e-6
    assert (serving - 1) * (1 - headroom) < least
    assert 0 <= extras.preemptible(serving) <= serving
    kind = kind_of(usd=2.0)
    trial = PlanTrial(1.0, 0.1, 0.1, 0.1, 0.01, 0.1, 0.2, 3600.0, 1000, 1000)
    point = PlanPoint(least, trial, 1.0, 1.0)
    cost = cost_of(kind, point, extras)
    assert cost.engines == serving + standby
    assert cost.usd_hour == pytest.approx(2.0 * (cost.engines - cost.preemptible * discount))
    assert cost.usd_per_million_tokens == pytest.approx((cost.usd_hour or 0) / 2000 * 1e6)


@pytest.mark.parametrize("machine", ["h100-8b", "rtx-4090-8b", "h100-70b-tp4"])
@pytest.mark.parametrize(("prompt", "output"), [(1, 2), (2048, 9), (2049, 30), (9000, 400)])
def test_an_idle_engine_takes_what_the_simulation_takes(machine: str, prompt: int, output: int) -> None:
    kind = kind_of(machine=machine)
    turn = TraceRequest(1.0, prompt, output, fresh_chain(prompt, 512, 1))
    trial = run(kind, 1, Workload("one", [turn]))
    assert trial.ttft_p50_s == pytest.approx(idle_ttft_s(kind.engine, prompt, 0), rel=1e-9)
    assert trial.tpot_p95_s == pytest.approx(idle_tpot_s(kind.engine, turn), rel=1e-9)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 200), st.integers(0, 2)), min_size=1, max_size=30),
    engines=st.integers(1, 4),
    ttft=st.floats(0.01, 0.5),
)
def test_no_fleet_attains_more_than_the_bound_on_idle_engines(lengths: Sequence[tuple[int, int, int]], engines: int, ttft: float) -> None:
    kind = kind_of(Objective(ttft_s=ttft, tpot_s=0.0068))
    turns = [
        TraceRequest(place * 0.3, prompt, output, fresh_chain(prompt, 512, family))
        for place, (prompt, output, family) in enumerate(lengths)
    ]
    workload = Workload("families", turns)
    assert run(kind, engines, workload).attained <= idle_bound(kind, workload, ATTAIN).attained + 1e-12


def test_what_no_number_meets_is_said_before_a_run() -> None:
    def never(engines: int) -> list[PlanTrial]:
        raise AssertionError(engines)

    workload = stream(40, 0.1, prompt=4000)
    for slo, said in (
        (Objective(ttft_s=0.05, tpot_s=1.0), "an idle engine takes 0.116 s to the first token of the 95% quantile's prompt, 4,000 tokens"),
        (Objective(ttft_s=5.0, tpot_s=0.005), "an idle engine takes 6.72 ms for each token of the 95% quantile's answer"),
    ):
        found = plan_kind(kind_of(slo), workload, ATTAIN, 8, PlanExtras(), never)
        assert (found.least, found.cost, found.tried) == (None, None, [])
        assert found.why_not.startswith(f"no number of engines helps: {said}")
        assert found.why_not.endswith("0.0% of the requests meet both objectives")


@pytest.mark.parametrize("engine", [{"kv_tokens": 2048}, {"context_tokens": 3000}])
def test_requests_that_no_engine_takes_are_counted(engine: dict[str, int]) -> None:
    workload = stream(40, 0.1)
    found = plan(kind_of(**engine), workload)
    assert "40 requests exceed an engine's KV cache or context" in found.why_not
    assert run(kind_of(**engine), 2, workload).attained == 0.0


def test_an_adapter_needs_a_slot() -> None:
    turns = [msgspec.structs.replace(turn, lora="a") for turn in stream(20, 0.1).turns]
    assert idle_bound(kind_of(), Workload("lora", turns), ATTAIN).impossible == 20
    assert idle_bound(kind_of(lora_slots=1), Workload("lora", turns), ATTAIN).impossible == 0


def test_different_requests_may_miss_different_objectives() -> None:
    told = hopeless(kind_of(), IdleBound(0.9, 0.1, 10, 0.01, 0), ATTAIN)
    assert "too slow to begin are others" in told


def test_a_bound_on_the_number_that_is_too_low_is_named() -> None:
    found = plan(kind_of(), stream(200, 0.01), most=2)
    assert found.least is None
    assert found.why_not.startswith("2 engines, the most that are tried (--most), do not suffice:")
    assert found.tried[-1].engines == 2


def test_the_cheapest_is_by_price_and_without_prices_by_gpus() -> None:
    workload = stream(40, 0.05)
    small, large = plan(kind_of(usd=5.0), workload), plan(kind_of(usd=1.0, gpus=8), workload)
    assert cheapest([small, large]) is large
    assert cheapest([plan(kind_of(), workload), plan(kind_of(gpus=8), workload)]) is not None
    unpriced = [plan(kind_of(gpus=8), workload), plan(kind_of(), workload)]
    assert cheapest(unpriced) is unpriced[1]
    assert cheapest([plan(kind_of(), stream(200, 0.01), most=1)]) is None


def test_the_kv_cache_in_use_is_reported() -> None:
    trial = run(kind_of(kv_tokens=20_000), 1, stream(100, 0.2))
    assert 0 < trial.kv_mean < trial.kv_peak <= 1
    # prompts of 3,000 tokens and no more than one or two at a time
    assert trial.kv_peak >= 3000 / 20_000
    assert trial.lasted_s == pytest.approx(20, rel=0.2)
    assert (trial.prompt_tokens, trial.output_tokens) == (300_000, 6000)
    assert ceil(trial.attained) == 1
