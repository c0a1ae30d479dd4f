"""Laws of a simulated fleet: nothing is lost, a seed decides everything, faults and limits do what they say."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.clock import Rng
from routing.policy_instance import policy_instance
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import EngineFault, Engines, FleetFile, SignalDelays, SimulatedTenant
from routing.simulation.outcomes import Outcomes, RequestEnd
from routing.simulation.turns import Dice, TraceRequest, Workload, fresh_chain

KINDS = ("kill", "slow", "stall")


def dice(seed: int = 0) -> Dice:
    def one(name: str) -> Rng:
        return random.Random(f"{seed} {name}")

    return one


def fleet(count: int = 2, **more: Any) -> FleetFile:
    return FleetFile(engines=[Engines(machine="h100-8b", count=count, lora_slots=2)], **more)


def run(turns: list[TraceRequest], on: FleetFile, policy: str = "least_load", seed: int = 0) -> tuple[Outcomes, SimulatedFleet]:
    one = SimulatedFleet(on, Workload("test", turns, 64), partial(policy_instance, policy), dice(seed))
    return one.run(), one


def some(count: int, prompt: int = 1000, output: int = 50, gap_s: float = 0.01, **more: Any) -> list[TraceRequest]:
    return [TraceRequest(i * gap_s, prompt, output, fresh_chain(prompt, 64, i), **more) for i in range(count)]


@settings(max_examples=25, deadline=None)
@given(
    turns=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5000), st.integers(1, 300), st.integers(0, 3)), min_size=1, max_size=30),
    faults=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 2), st.sampled_from(KINDS), st.floats(0.1, 3)), max_size=3),
    replicas=st.integers(1, 3),
    policy=st.sampled_from(["least_load", "predicted_latency", "smg_cache_aware"]),
)
def test_every_request_ends_and_every_charge_is_taken_back(
    turns: list[tuple[float, int, int, int]], faults: list[tuple[float, int, Any, float]], replicas: int, policy: str
) -> None:
    work = [TraceRequest(at, p, o, fresh_chain(p, 64, group), f"t{group}", lora="" if group else "a") for at, p, o, group in turns]
    on = fleet(3, replicas=replicas, faults=[EngineFault(at_s=a, engine=e, kind=k, for_s=f) for a, e, k, f in faults])
    outcomes, one = run(work, on, policy)
    assert RequestEnd.PENDING not in outcomes.state
    for i, turn in enumerate(work):
        if outcomes.state[i] is RequestEnd.DONE:
            assert outcomes.arrived[i] == turn.at_s < outcomes.first[i] <= outcomes.ended[i]
            assert outcomes.cached[i] < turn.prompt_tokens
    assert [replica.load_table.total() for replica in one.replicas] == [0] * replicas
    assert [engine.cache.used for engine in one.engines] == [0] * 3
    if not faults:
        assert set(outcomes.state) == {RequestEnd.DONE}


@pytest.mark.parametrize("policy", ["random", "predicted_latency"])
def test_a_seed_decides_everything(policy: str) -> None:
    turns = some(200)
    assert run(turns, fleet(replicas=3), policy)[0] == run(turns, fleet(replicas=3), policy)[0]
    if policy == "random":
        assert run(turns, fleet(), policy, 1)[0].engine != run(turns, fleet(), policy, 2)[0].engine


def test_work_is_conserved() -> None:
    """An engine that has something to do does it: the last answer ends when the sum of the steps is over."""
    outcomes, _ = run([TraceRequest(0.0, 1000, 101) for _ in range(3)], fleet(1))
    first_step = 6.5 + 0.025 * 2048
    second = 6.5 + 0.025 * 952 + 2 * 0.02 + 5e-5 * 2 * 1001
    assert outcomes.first[0] == pytest.approx(first_step / 1e3)
    assert outcomes.first[2] > (first_step + second) / 1e3 - 1e-3
    steps = sum(6.5 + 3 * 0.02 + 5e-5 * 3 * (1001 + i) for i in range(100))
    assert max(outcomes.ended) == pytest.approx((first_step + second + steps) / 1e3, rel=0.01)


def test_a_next_turn_waits_for_the_answer_and_its_think_time() -> None:
    turns = [TraceRequest(0.0, 1000, 100, session=1), TraceRequest(0.0, 1200, 10, session=1, after=0, think_s=7.0)]
    outcomes, _ = run(turns, fleet())
    assert outcomes.arrived[1] == pytest.approx(outcomes.ended[0] + 7.0)


def test_a_killed_engines_requests_go_elsewhere_or_fail() -> None:
    fault = EngineFault(at_s=0.5, engine=0, kind="kill", for_s=10)
    outcomes, _ = run(some(300, output=100), fleet(faults=[fault]))
    assert outcomes.retries > 0
    assert RequestEnd.FAILED in outcomes.state
    at_once = [i for i in range(300) if 1.6 < outcomes.arrived[i] < 10]
    assert {outcomes.engine[i] for i in at_once} == {1}


def test_a_slow_engine_is_slow_while_it_is() -> None:
    turns = [TraceRequest(0.0, 100, 10), TraceRequest(10.0, 100, 10), TraceRequest(30.0, 100, 10)]
    outcomes, _ = run(turns, fleet(1, faults=[EngineFault(at_s=5, engine=0, kind="slow", for_s=10, factor=4)]))
    lasted = [outcomes.ended[i] - outcomes.arrived[i] for i in range(3)]
    assert lasted[1] == pytest.approx(4 * lasted[0], rel=0.01)
    assert lasted[2] == pytest.approx(lasted[0], rel=1e-6)


def test_adapters_are_loaded_once_and_wait_for_a_slot() -> None:
    def on(slots: int) -> FleetFile:
        return FleetFile(engines=[Engines(machine="h100-8b", lora_slots=slots, lora_load_s=2.0)])

    turns = [TraceRequest(0.0, 100, 10, lora="a"), TraceRequest(0.5, 100, 10, lora="a"), TraceRequest(0.5, 100, 10, lora="b")]
    outcomes, _ = run(turns, on(2))
    assert [round(outcomes.first[i], 1) for i in range(3)] == [2.0, 2.0, 2.5]
    outcomes, _ = run(turns, on(1))
    assert round(outcomes.first[2], 1) == pytest.approx(round(outcomes.ended[0], 1) + 2.0, abs=0.11)


def test_engines_without_slots_get_no_request_with_an_adapter() -> None:
    with_and_without = [Engines(machine="h100-8b"), Engines(machine="h100-8b", lora_slots=1)]
    turns = [TraceRequest(i * 0.1, 100, 10, lora="a") for i in range(20)]
    assert run(turns, FleetFile(engines=with_and_without), "random")[0].engine == [1] * 20
    # nobody ever has a slot: refused, not waited for until the end of time
    assert set(run(turns, FleetFile(engines=with_and_without[:1]))[0].state) == {RequestEnd.REFUSED}


def test_what_a_cache_cannot_hold_to_its_end_fails_instead_of_starting_over_for_ever() -> None:
    on = FleetFile(engines=[Engines(machine="h100-8b", kv_tokens=1024)])
    outcomes, one = run([TraceRequest(0.0, 1000, 500), TraceRequest(0.1, 100, 10)], on)
    assert outcomes.state == [RequestEnd.FAILED, RequestEnd.DONE]
    assert one.replicas[0].load_table.total() == 0


def test_a_fault_of_an_engine_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="there is no engine 2; there are 2, from 0 to 1"):
        fleet(2, faults=[EngineFault(at_s=1, engine=2, kind="kill", for_s=1)])


def test_a_tenants_limit_refuses_what_is_above() -> None:
    rule = {"noisy": SimulatedTenant(tokens_per_s=1000, burst_s=2)}
    outcomes, _ = run(some(200, prompt=100, output=10, gap_s=0.05, tenant="noisy"), fleet(tenants=rule))
    done = outcomes.state.count(RequestEnd.DONE)
    assert done == pytest.approx((2000 + 9.9 * 1000) / 110, abs=1)
    assert outcomes.state.count(RequestEnd.REFUSED) == 200 - done


def test_what_is_too_long_for_everyone_is_refused() -> None:
    outcomes, _ = run([TraceRequest(0.0, 200_000, 10), TraceRequest(0.1, 100, 10)], fleet())
    assert outcomes.state == [RequestEnd.REFUSED, RequestEnd.DONE]


def test_caches_are_found_with_events_and_without() -> None:
    chain = fresh_chain(8000, 64, 1)
    for events in (True, False):
        turns = [TraceRequest(i * 2.0, 8000, 10, chain) for i in range(10)]
        outcomes, _ = run(turns, fleet(4, signals=SignalDelays(kv_events=events)), "predicted_latency")
        assert sum(cached > 0 for cached in outcomes.cached) >= 8
        assert sum(one > 0 for one in outcomes.predicted) >= 8


@pytest.mark.req("ROUTERS-17")
@pytest.mark.parametrize("events", [True, False])
def test_four_processes_that_tell_each_other_find_what_one_finds(events: bool) -> None:
    """Sixty conversations of eight turns each, a turn in four seconds; each turn reaches any of four processes."""
    rng = random.Random(3)
    arrivals = sorted([(4.0 * (turn + rng.random()), turn, talk) for turn in range(8) for talk in range(60)])
    chains = [fresh_chain(2048 * 8, 64, talk) for talk in range(60)]
    turns = [TraceRequest(at, 2048 * (turn + 1), 20, chains[talk][: 32 * (turn + 1)]) for at, turn, talk in arrivals]

    def found(**more: Any) -> float:
        outcomes, _ = run(turns, fleet(8, signals=SignalDelays(kv_events=events), **more), "predicted_latency")
        return sum(outcomes.cached) / sum([turn.prompt_tokens for turn in turns])

    one, told, untold = found(), found(replicas=4), found(replicas=4, siblings_s=0)
    assert told >= 0.97 * one
    assert events or untold < 0.8 * one


def test_progress_is_told() -> None:
    told: list[int] = []
    progress: Callable[[int], None] = told.append
    SimulatedFleet(fleet(), Workload("test", some(500), 64), partial(policy_instance, "random"), dice(), progress).run()
    assert told == [100, 300, 500]


def pairs(*roles: str, **more: Any) -> FleetFile:
    kinds = [{"machine": "h100-8b", "role": role} for role in roles]
    return FleetFile.model_validate({"engines": kinds, "disaggregation": {"kv_bytes_token": 131_072, "bandwidth_gb_s": 50.0}, **more})


@settings(max_examples=20, deadline=None)
@given(
    turns=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 20_000), st.integers(1, 300), st.integers(0, 3)), min_size=1, max_size=30),
    faults=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3), st.sampled_from(KINDS), st.floats(0.1, 3)), max_size=3),
    reuses=st.booleans(),
)
def test_a_request_on_two_engines_ends_and_both_are_rid_of_it(
    turns: list[tuple[float, int, int, int]], faults: list[tuple[float, int, Any, float]], reuses: bool
) -> None:
    work = [TraceRequest(at, p, o, fresh_chain(p, 64, group)) for at, p, o, group in turns]
    broken = [EngineFault(at_s=a, engine=e, kind=k, for_s=f) for a, e, k, f in faults]
    on = pairs("prefill", "decode", "decode", "both", faults=[one.model_dump() for one in broken])
    on = FleetFile.model_validate(on.model_dump() | {"disaggregation": on.model_dump()["disaggregation"] | {"decode_reuses": reuses}})
    outcomes, one = run(work, on, "predicted_latency")
    assert RequestEnd.PENDING not in outcomes.state
    assert one.replicas[0].load_table.total() == 0
    assert [engine.cache.used for engine in one.engines] == [0] * 4
    assert [engine.queued_tokens for engine in one.engines] == [0] * 4
    if not faults:
        assert set(outcomes.state) == {RequestEnd.DONE}


def test_a_prompt_is_computed_on_one_engine_and_its_answer_comes_from_another() -> None:
    """First token: the prompt's own time, its KV's way, and one step of the engine that generates."""
    prompt, output = 8192, 100
    outcomes, one = run([TraceRequest(0.0, prompt, output)], pairs("prefill", "decode"), "predicted_latency")
    alone, _ = run([TraceRequest(0.0, prompt, 1)], fleet(1))
    travel = prompt * 131_072 / 50e9 + 0.01
    timing = one.engines[1].timing
    step = (timing.c0 + timing.c1 * 1 + timing.c1a * (prompt - 1)) / 1e3
    assert outcomes.first[0] == pytest.approx(alone.first[0] + travel + step)
    assert outcomes.engine == [1]


def test_long_prompts_hold_up_no_answers_where_they_are_computed_elsewhere() -> None:
    """Twelve answers of 300 tokens, and nine prompts of 30,000 among them: the slowest answer is half as slow a token."""
    answers = [TraceRequest(0.01 * i, 200, 300) for i in range(12)]
    prompts = [TraceRequest(0.5 + 0.1 * i, 30_000, 2, fresh_chain(30_000, 64, i)) for i in range(9)]

    def slowest(on: FleetFile) -> float:
        outcomes, _ = run([*answers, *prompts], on, "predicted_latency")
        assert set(outcomes.state) == {RequestEnd.DONE}
        return max((outcomes.ended[i] - outcomes.first[i]) / 299 for i in range(12))

    assert slowest(pairs("prefill", "decode", "decode")) < 0.5 * slowest(fleet(3))


def test_roles_need_each_other_and_what_handing_over_costs() -> None:
    with pytest.raises(ValueError, match="need `disaggregation`"):
        FleetFile(engines=[Engines(machine="h100-8b", role="prefill"), Engines(machine="h100-8b", role="decode")])
    with pytest.raises(ValueError, match="need some with the role decode"):
        pairs("prefill")


def test_the_next_turn_finds_the_answer_in_the_cache() -> None:
    block = 64
    chain = list(range(1, 40))
    turns = [TraceRequest(0.0, 640, 129, chain[:10]), TraceRequest(0.0, 900, 2, chain[:14], after=0, think_s=1.0)]
    fleet = FleetFile.model_validate({"engines": [{"machine": "h100-8b"}]})
    cached = {}
    for name, workload in (("without", Workload("w", turns, block)), ("with", Workload("w", turns, block).with_answers())):
        cached[name] = SimulatedFleet(fleet, workload, partial(policy_instance, "least_load"), dice()).run().cached[1]
    # 640 + 128 computed tokens of the answer are 12 whole blocks
    assert cached == {"without": 640, "with": 768}
