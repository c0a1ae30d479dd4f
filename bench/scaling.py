"""`python -m bench.scaling --traces FOLDER`: the gateway's scaling recommendation beside rules on requests per second, on busy engines, and
on the queue and KV signals of the chart.

Everything runs in `ElasticFleet`: an engine serves 120 s after it was asked for, and the rules are asked every 15 s. The recommendation is
`routing/scaling.py` itself, with its defaults and with other constants. The peers follow the formula of the HorizontalPodAutoscaler,
ceil(n * now / target), with its tolerance of 0.1 and 300 s of stabilisation before fewer. Each peer's target is chosen on the first half of
a trace: the cheapest that answers as many requests in time as the recommendation does, else the one that answers most. The second half is
run once, with what was chosen on the first. `fixed at the peak` has all the time as many engines as the recommendation had at most on the
first half, `fixed at the mean` as many as it had on the mean. The rule on signals has the chart's targets.

Traces are run as they are, and warped: the same requests in the same order, with a rate that swings as a day's does, twice over
the trace, between 0.3 and 1.7 times the mean. Seeds shift the swing, and the draws of the routing policy.
"""

import argparse
import math
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench.fleet.workloads import dice
from bench.results_file import Row, refresh, write_rows
from routing.policy_instance import policy_instance
from routing.scaling import ScaleHistory, ScaleSettings
from routing.simulation.elastic import ElasticFleet, Elasticity, ElasticView
from routing.simulation.figures import figures
from routing.simulation.fleet_file import FleetFile
from routing.simulation.traces import load
from routing.simulation.turns import Workload

Rule = Callable[[ElasticView], int]

MOST: Final = 12
"""Most engines that a rule may ask for. Twice as many are listed, so that those that leave keep none from coming."""
TOLERANCE: Final = 0.1
STABLE_S: Final = 300.0
SWING: Final = 0.7


class Line(NamedTuple):
    """A trace and the engines that it is for."""

    name: str
    source: str
    machine: str
    gpus: int
    """GPUs of one engine."""
    stretch: float
    """Factor on the time between arrivals."""
    warped: bool
    start: int
    most_tokens: int
    """Longer requests are left out: no engine would begin to answer them within 2 s."""
    targets_rps: tuple[float, ...]
    tpot_s: float = 0.05


MOONCAKE: Final = "trace-mooncake/conversation_first20min.jsonl.gz"
LINES: Final = (
    Line("azure", "trace-azure-2023", "rtx-4090-8b", 1, 1.0, False, 6, 12_000, (0.8, 1.1, 1.5, 2.0), 0.1),
    Line("azure, a day's swing", "trace-azure-2023", "rtx-4090-8b", 1, 2.0, True, 4, 12_000, (0.8, 1.1, 1.5, 2.0), 0.1),
    Line("mooncake", MOONCAKE, "h100-70b-tp4", 4, 1.0, False, 5, 24_000, (0.4, 0.5, 0.65, 0.8)),
    Line("mooncake, a day's swing", MOONCAKE, "h100-70b-tp4", 4, 3.0, True, 3, 24_000, (0.3, 0.4, 0.5, 0.65)),
)
TARGETS_BUSY: Final = (0.6, 0.7, 0.8, 0.9)
OURS: Final = (
    {},
    {"prefill": 1.0},
    {"prefill": 0.4},
    {"prefill": 0.2},
    {"headroom": 0.0},
    {"kv": 0.5},
    {"scale_in_after_s": 120.0},
)
"""Constants in place of the defaults."""


SIGNALS: Final = {"queue": 4000.0, "kv": 0.7}
"""The signals `queue` and `kv` of the chart of engines, with its targets."""


class Hpa:
    """The rule of the HorizontalPodAutoscaler on one metric.

    Args:
        ratio: the metric over its target, as the mean of the engines present.
    """

    def __init__(self, ratio: Callable[[ElasticView], float]) -> None:
        self._ratio = ratio
        self._past: deque[tuple[float, int]] = deque()

    def __call__(self, view: ElasticView) -> int:
        present = view.load.backends
        ratio = self._ratio(view)
        raw = present if abs(ratio - 1) <= TOLERANCE else ceil(present * ratio - 1e-9)
        self._past.append((view.now, min(max(raw, 1), MOST)))
        while self._past[0][0] < view.now - STABLE_S:
            self._past.popleft()
        # fewer only as far as nothing more was wanted for the whole time; before it has passed, no fewer than there are
        most = max(wanted for _, wanted in self._past)
        return max(most, min(present, MOST)) if view.now < STABLE_S else most


def on_requests(target: float) -> Hpa:
    """The rule on requests per second for each engine."""
    return Hpa(lambda view: view.requests_per_s / view.load.backends / target)


def on_busy(target: float) -> Hpa:
    """The rule on the share of time in which an engine computes; engines that start count as idle where more are wanted."""

    def ratio(view: ElasticView) -> float:
        now = view.busy / target
        return max(now * view.load.up / view.load.backends, 1.0) if now > 1 else now

    return Hpa(ratio)


def on_signals(targets: dict[str, float]) -> Hpa:
    """The rule on tokens that wait for each engine, `queue`, and on the pressure on KV caches, `kv`: the larger number counts."""

    def ratio(view: ElasticView) -> float:
        waiting = view.load.queue_tokens / max(view.load.up, 1)
        return max(waiting / targets["queue"], (view.load.kv_pressure or 0.0) / targets["kv"])

    return Hpa(ratio)


def recommended(constants: dict[str, float]) -> Rule:
    """The gateway's recommendation."""
    history = ScaleHistory(ScaleSettings(max=MOST, **constants))  # type: ignore[arg-type]  # all of them are floats
    return lambda view: history.note(view.load, view.now).wanted


def rule(kind: str, value: Any) -> Rule:
    """The rule of this kind."""
    if kind == "fixed":
        return lambda _: int(value)
    makers: dict[str, Callable[[Any], Rule]] = {"recommended": recommended, "requests": on_requests, "busy": on_busy, "signals": on_signals}
    return makers[kind](value)


def warped(at_s: float, span_s: float, phase: float) -> float:
    """When a request of a trace of `span_s` seconds comes, if the rate swings twice over the trace. Increases with `at_s`."""
    turns = 4 * math.pi / span_s

    def come(t: float) -> float:
        return t + SWING / turns * (math.cos(phase) - math.cos(turns * t + phase))

    low, high = 0.0, span_s
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if come(middle) < at_s else (low, middle)
    return low


class Run(NamedTuple):
    line: Line
    second: bool
    """The second half, which nothing was chosen on."""
    kind: str
    value: str
    """JSON of what the rule is made with."""
    seed: int


class Found(NamedTuple):
    good: float
    """Share of all requests that met both objectives."""
    gpu_hours: float
    mean: float
    """Engines on the mean."""
    most: int


def half(line: Line, traces: Path, second: bool, seed: int) -> Workload:
    """One half of a trace, by time, beginning at 0."""
    whole = load(traces / line.source, dice(seed)).without_oversize(line.most_tokens)
    span = max(turn.at_s for turn in whole.turns) * line.stretch
    phase = -math.pi / 2 + 0.5 * math.pi * (seed % 4)
    turns = []
    for turn in whole.turns:
        at = turn.at_s * line.stretch
        at = warped(at, span, phase) if line.warped else at
        if (at >= span / 2) == second:
            turns.append(msgspec.structs.replace(turn, at_s=at - span / 2 if second else at))
    return Workload(whole.name, turns, whole.block_tokens, whole.notes)


def measured(run: Run, traces: Path) -> Found:
    """One run."""
    line = run.line
    made = msgspec.json.decode(run.value)
    engines = [{"machine": line.machine, "count": 2 * MOST}]
    slo = {"ttft_s": 2.0, "tpot_s": line.tpot_s}
    fleet = FleetFile.model_validate({"engines": engines, "signals": {"every_s": 1.0}, "slo": slo})
    workload = half(line, traces, run.second, run.seed)
    start = made if run.kind == "fixed" else line.start
    fleet_run = ElasticFleet(
        fleet,
        workload,
        partial(policy_instance, "predicted_latency"),
        dice(run.seed),
        Elasticity(rule(run.kind, made), start),
    )
    outcomes = fleet_run.run()
    seconds = fleet_run.engine_seconds
    good = figures(workload, fleet, outcomes).goodput
    return Found(good, seconds * line.gpus / 3600, seconds / fleet_run.now, fleet_run.most)


Measure = Callable[[list[Run]], list[Found]]


def mean(found: list[Found]) -> Found:
    """The mean over seeds; `most` is the largest."""
    n = len(found)
    return Found(
        sum(one.good for one in found) / n,
        sum(one.gpu_hours for one in found) / n,
        sum(one.mean for one in found) / n,
        max(one.most for one in found),
    )


def chosen(ours: Found, tried: dict[str, Found]) -> str:
    """The value that a peer runs with: the cheapest that is as good as ours, else the best."""
    enough = [value for value, one in tried.items() if one.good >= ours.good]
    if enough:
        return min(enough, key=lambda value: tried[value].gpu_hours)
    return max(tried, key=lambda value: (tried[value].good, -tried[value].gpu_hours))


def compared(lines: list[Line], seeds: range, tuning_seed: int, measure: Measure) -> tuple[list[str], list[Row]]:
    """The table's lines and the rows."""
    grid: list[Run] = []
    for line in lines:
        grid += [Run(line, False, "recommended", _json(constants), tuning_seed) for constants in OURS]
        grid += [Run(line, False, "requests", _json(target), tuning_seed) for target in line.targets_rps]
        grid += [Run(line, False, "busy", _json(target), tuning_seed) for target in TARGETS_BUSY]
    tuned = dict(zip(grid, measure(grid), strict=True))
    final: list[Run] = []
    for line in lines:
        ours = tuned[Run(line, False, "recommended", "{}", tuning_seed)]
        sized = {run.value: found for run, found in tuned.items() if run.line == line and run.kind == "requests"}
        used = {run.value: found for run, found in tuned.items() if run.line == line and run.kind == "busy"}
        subjects = [("recommended", _json(constants)) for constants in OURS]
        subjects += [("signals", _json(SIGNALS))]
        subjects += [("requests", chosen(ours, sized)), ("busy", chosen(ours, used))]
        subjects += [("fixed", _json(min(ours.most, MOST))), ("fixed", _json(max(round(ours.mean), 1)))]
        final += [Run(line, True, kind, value, seed) for kind, value in dict.fromkeys(subjects) for seed in seeds]
    found = dict(zip(final, measure(final), strict=True))
    text = [
        "| trace | rule | in time, first half | GPU-hours | in time, second half | lowest seed | GPU-hours | engines, mean | most |",
        "|---|" + "---|" * 8,
    ]
    rows: list[Row] = []
    for line, kind, value in dict.fromkeys((run.line, run.kind, run.value) for run in final):
        each = [found[Run(line, True, kind, value, seed)] for seed in seeds]
        one, first = mean(each), tuned.get(Run(line, False, kind, value, tuning_seed))
        before = f"{first.good:.1%} | {first.gpu_hours:.2f}" if first else "| "
        said = {"{}": "recommended"}.get(value, f"{kind} {value}".replace('"', ""))
        lowest = min(one.good for one in each)
        text.append(
            f"| {line.name} | {said} | {before} | {one.good:.1%} | {lowest:.1%} | {one.gpu_hours:.2f} | {one.mean:.1f} | {one.most} |"
        )
        rows.append(Row(metric=f"in_time:{line.name}", subject=said, value=round(one.good, 4), unit="share", n=len(each)))
        rows.append(Row(metric=f"gpu_hours:{line.name}", subject=said, value=round(one.gpu_hours, 3), unit="h", n=len(each)))
    return text, rows


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public traces")
    parser.add_argument("--lines", default=";".join(line.name for line in LINES), help="traces, separated by semicolons")
    parser.add_argument("--seeds", type=int, default=3, help="of the second half; the first half has seed 0")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/numbers.md")
    arguments = parser.parse_args()
    lines = [line for line in LINES if line.name in arguments.lines.split(";")]
    seeds = range(111, 111 + arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs) as processes:
        text, rows = compared(lines, seeds, 0, lambda runs: list(processes.map(partial(measured, traces=arguments.traces), runs)))
    made = "\n".join([f"`{parser.prog}`, simulated; first half: seed 0, second half: seeds {seeds[0]} to {seeds[-1]}.", "", *text])
    print(made)
    if arguments.write:
        refresh("scaling", made)
        write_rows("scaling", rows)


if __name__ == "__main__":
    main()
