"""The engine model by jumps beside the simulated engine's own scheduler, step by step."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.simengine.batching import Batcher, SimSequence
from backends.simengine.settings import PRESETS
from backends.simengine.settings import Timing as PresetTiming
from routing.simulation.decoders import Decoding
from routing.simulation.engine import IDLE, SimulatedEngine
from routing.simulation.timing import CLASSES, StepTiming

FIXTURE = Path(__file__).parent / "vllm_measured.jsonl.gz"
PAGE = 16

Job = tuple[float, int, int, int]
"""Arrival in seconds, prompt, output, which of some common beginnings it has."""


def tokens_of(job: Job, number: int) -> list[int]:
    return [job[3] * 100_000 + i if i < 8 * PAGE and job[3] else 1_000_000 * (number + 1) + i for i in range(job[1])]


def chain_of(job: Job, number: int) -> list[int]:
    return [hash((job[3], i)) if i < 8 and job[3] else hash((number, -1, i)) for i in range(job[1] // PAGE)]


def by_steps(jobs: list[Job], timing: StepTiming, seqs: int, budget: int) -> tuple[list[tuple[float, float, int]], int]:
    """First and last token's time and cached tokens of each job, by the step model; and its preemptions."""
    batcher = Batcher(
        PresetTiming(timing.c0, timing.c1, timing.c1a, timing.c2, timing.c3, timing.kv_tokens), max_num_seqs=seqs, token_budget=budget
    )
    waiting = sorted(range(len(jobs)), key=lambda i: jobs[i][0])
    runs: dict[int, SimSequence] = {}
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    now = 0.0
    while True:
        while waiting and jobs[waiting[0]][0] <= now:
            at = waiting.pop(0)
            runs[at] = batcher.sequence(tokens_of(jobs[at], at), jobs[at][2])
            batcher.add(runs[at])
        step = batcher.begin()
        if step is None:
            if not waiting:
                break
            now = jobs[waiting[0]][0]
            continue
        now += step.duration_ms / 1e3
        out = batcher.end(step)
        for at, run in runs.items():
            if run in out:
                first.setdefault(at, now)
                last[at] = now
    return [(first[i], last[i], runs[i].cached_tokens) for i in range(len(jobs))], batcher.counters.preemptions


def by_jumps(
    jobs: list[Job], timing: StepTiming, seqs: int, budget: int, chains: bool = True
) -> tuple[list[tuple[float, float, int]], SimulatedEngine]:
    first: dict[int, float] = {}
    last: dict[int, tuple[float, int]] = {}

    def begun(run: Decoding, now: float) -> None:
        first[run.order] = now

    def ended(run: Decoding, now: float) -> None:
        last[run.order] = (now, run.cached)

    engine = SimulatedEngine(timing, PAGE, max_num_seqs=seqs, token_budget=budget, begun=begun, ended=ended)
    order = sorted(range(len(jobs)), key=lambda i: jobs[i][0])
    for rank, i in enumerate(order):
        while engine.until < jobs[i][0]:
            engine.advance()
        engine.submit(Decoding(None, jobs[i][1], jobs[i][2], chain_of(jobs[i], i) if chains else (), rank), jobs[i][0])
    while engine.until != IDLE:
        engine.advance()
    rank_of = {i: rank for rank, i in enumerate(order)}
    return [(first[rank_of[i]], *last[rank_of[i]]) for i in range(len(jobs))], engine


jobs_of = st.lists(
    st.tuples(
        st.floats(0, 2).map(lambda t: t + 1e-4 / 3),
        st.integers(1, 400),
        st.integers(1, 80),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=14,
)

TWIN_BLOCK: list[Job] = [
    *((0.042436, 282, 48, 2), (0.030033, 30, 46, 2), (0.091398, 139, 79, 2), (1.6637, 373, 57, 2), (0.563198, 96, 31, 2)),
    *((0.451699, 200, 67, 1), (1.6637, 229, 25, 2), (0.82257, 165, 8, 0), (0.070033, 244, 71, 0), (0.4517, 383, 23, 1)),
]
"""The fifth job's last block is another job's too, which is evicted before the fifth has ended."""


@settings(max_examples=150, deadline=None)
@given(jobs=jobs_of, kv_pages=st.integers(31, 90), seqs=st.integers(1, 8), budget=st.integers(16, 128))
@example(jobs=TWIN_BLOCK, kv_pages=50, seqs=8, budget=122)
def test_jumps_end_where_single_steps_end(jobs: list[Job], kv_pages: int, seqs: int, budget: int) -> None:
    timing = StepTiming(c0=6.5, c1=0.025, c1a=8e-5, c2=0.02, c3=5e-3, kv_tokens=kv_pages * PAGE)
    expected, preemptions = by_steps(jobs, timing, seqs, budget)
    found, engine = by_jumps(jobs, timing, seqs, budget)
    assert engine.preemptions == preemptions
    for (first, last, cached), (first2, last2, cached2) in zip(expected, found, strict=True):
        assert cached2 == cached
        assert first2 == pytest.approx(first, abs=1e-9)
        assert last2 == pytest.approx(last, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(jobs=jobs_of, kv_pages=st.integers(31, 60))
def test_no_token_and_no_page_is_lost(jobs: list[Job], kv_pages: int) -> None:
    timing = StepTiming(c0=6.5, c1=0.025, c1a=0.0, c2=0.02, c3=5e-3, kv_tokens=kv_pages * PAGE)
    _, engine = by_jumps(jobs, timing, 8, 64)
    assert engine.queued_tokens == 0
    assert engine.cache.used == 0
    assert engine.look(engine.at) == (0, 0, 0, 0.0)


def test_constants_are_those_of_the_simulated_engine() -> None:
    for name, preset in PRESETS.items():
        ours = CLASSES[name]
        assert {f: getattr(ours, f) for f in StepTiming.__struct_fields__} == {f: getattr(preset, f) for f in StepTiming.__struct_fields__}


def measured() -> dict[str, Any]:
    with gzip.open(FIXTURE, "rt") as file:
        return {row["gpu"]: row for row in map(json.loads, file)}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(("gpu", "name", "seqs"), [("RTXPRO6000", "rtx-pro-6000-8b", 128), ("RTX4090", "rtx-4090-8b", 256)])
def test_real_vllm_within_five_percent(gpu: str, name: str, seqs: int) -> None:
    """Mean and p90 TTFT, mean TPOT and makespan of 300 ShareGPT requests, as real vLLM 0.19 served them."""
    jobs: list[Job] = [(r[0], r[1], r[2], 0) for r in measured()[gpu]["requests"]]
    real = [(r[3], r[4]) for r in measured()[gpu]["requests"]]
    found = [(first, last) for first, last, _ in by_jumps(jobs, CLASSES[name], seqs, 2048, chains=False)[0]]

    def figures(times: list[tuple[float, float]]) -> dict[str, float]:
        ttft = sorted(first - job[0] for (first, _), job in zip(times, jobs, strict=True))
        tpot = [(last - first) / (job[2] - 1) for (first, last), job in zip(times, jobs, strict=True) if job[2] > 1]
        return {"ttft": mean(ttft), "ttft_p90": ttft[int(0.9 * len(ttft))], "tpot": mean(tpot), "makespan": max(last for _, last in times)}

    expected, ours = figures(real), figures(found)
    print(gpu, {k: (round(v, 3), round(ours[k], 3)) for k, v in expected.items()})
    for figure, value in expected.items():
        assert ours[figure] == pytest.approx(value, rel=0.05), figure


def test_a_stall_delays_and_a_cut_loses_nothing() -> None:
    timing = CLASSES["h100-8b"]
    ends: list[float] = []
    engine = SimulatedEngine(
        timing, PAGE, max_num_seqs=8, token_budget=2048, begun=lambda run, now: None, ended=lambda run, now: ends.append(now)
    )
    engine.submit(Decoding(None, 100, 50, (), 0), 0.0)
    while engine.until < 0.1:
        engine.advance()
    engine.stall(0.1, 5.0)
    while engine.until != IDLE:
        engine.advance()
    undisturbed, _ = by_jumps([(0.0, 100, 50, 0)], timing, 8, 2048)
    assert ends[0] == pytest.approx(undisturbed[0][1] + 5.0, abs=0.01)


def test_a_killed_engine_returns_what_it_had() -> None:
    engine = SimulatedEngine(
        CLASSES["h100-8b"], PAGE, max_num_seqs=1, token_budget=2048, begun=lambda run, now: None, ended=lambda run, now: None
    )
    for order in range(3):
        engine.submit(Decoding(order, 100, 50, (), order), 0.0)
    assert sorted(run.order for run in engine.lose_all(0.1)) == [0, 1, 2]
    assert engine.until == IDLE
    assert engine.cache.used == 0
