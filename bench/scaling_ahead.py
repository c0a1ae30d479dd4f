"""`python -m bench.scaling_ahead --traces FOLDER`: the scaling recommendation with a forecast beside the one without, on ServeGen's days.

ServeGen tells the rate of every client for each ten minutes of two weeks. Three loads are made of it: all clients together, one with
office hours, and one whose jobs begin at the same hours. Rates are scaled so that the peak of the first week is `PEAK_PER_S`; arrivals
are Poisson, with the rate linear between the middles of the slots; lengths are drawn from Azure's requests, because most of ServeGen's
are too short to fill an engine. Days are not run whole: windows of 50 minutes are, those in which the rate rises most, one a day, and
others at random. The forecast knows the rates of all slots before the window, times the backends that a request a second fills: measured
on the first week.

Constants and the peers' targets are chosen on windows of the first week (seeds 0 and 1); the second week is run once, with seeds from 114
on. A cold start of 120 s is looked ahead for 180 s, one of 600 s for 660 s. A load without any season is Azure's hour, second half: its
"days before" are slots of that hour, drawn at random.
"""

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from math import ceil, inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench.fleet.workloads import dice
from bench.results_file import Row, refresh, write_rows
from bench.scaling import MOST, Found, Line, chosen, half, mean, on_busy, on_requests
from domain.clock import Rng
from routing.forecast import SLOT_S, LoadSlots, PredictSettings
from routing.policy_instance import policy_instance
from routing.scaling import ScaleHistory, ScaleSettings
from routing.simulation.draws import exponential
from routing.simulation.elastic import ElasticFleet, Elasticity, ElasticView
from routing.simulation.figures import figures
from routing.simulation.fleet_file import FleetFile
from routing.simulation.traces import load
from routing.simulation.turns import BLOCK_TOKENS, TraceRequest, Workload, fresh_chain

SERVEGEN: Final = "trace-servegen/language_m-small.jsonl.gz"
AZURE: Final = Line("azure's hour, no season", "trace-azure-2023", "rtx-4090-8b", 1, 1.0, False, 6, 12_000, (1.1,), 0.1)
DAY: Final = 86_400 // SLOT_S
WEEK: Final = 7 * DAY
PEAK_PER_S: Final = 8.0
"""About eight of `MOST` engines of this kind at Azure's lengths."""
PER_RATE: Final = 0.9
"""Engines that are up at the beginning of a window, for each request a second."""
WINDOW: Final = 5
"""Slots of a window."""
COLD_STARTS_S: Final = (120.0, 600.0)
MARGIN_S: Final = 60.0
TARGETS_RPS: Final = (0.6, 0.8, 1.1)
TARGETS_BUSY: Final = (0.7, 0.8, 0.9)
OURS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"headroom": 0.3},
    {"predict": {"quantile": 0.5}},
    {"predict": {"quantile": 0.8}},
)
"""Without a forecast, with more headroom instead of one, and with a forecast."""


class Load(NamedTuple):
    name: str
    clients: tuple[int, ...]
    """The clients of ServeGen that make the load; none for all."""


LOADS: Final = (Load("all clients", ()), Load("office hours", (31,)), Load("jobs at set hours", (19,)))


class Window(NamedTuple):
    load: Load
    start: int
    """Its first slot."""
    steep: bool
    seed: int


class Run(NamedTuple):
    window: Window
    cold_start_s: float
    kind: str
    value: str
    """JSON of what the rule is made with."""
    fills: float
    """Backends that a request a second fills, for the forecast's history."""


class Filled(NamedTuple):
    found: Found
    load: float
    """Backends that the load filled on the mean, as the recommendation sees it; 0 for other rules."""


@cache
def rates(traces: Path, wanted: Load) -> dict[int, float]:
    """Requests per second of each slot that the trace has, scaled."""
    import gzip

    sums: dict[int, float] = {}
    with gzip.open(traces / SERVEGEN, "rb") as lines:
        for line in lines:
            row = msgspec.json.decode(line)
            if not wanted.clients or row["client"] in wanted.clients:
                for at, rate, *_ in row["rate"]:
                    sums[int(at) // SLOT_S] = sums.get(int(at) // SLOT_S, 0.0) + rate
    first = sorted(rate for slot, rate in sums.items() if slot < WEEK)
    scale = PEAK_PER_S / first[int(0.995 * len(first))]
    return {slot: min(rate * scale, 1.2 * PEAK_PER_S) for slot, rate in sums.items()}


def windows(known: dict[int, float], wanted: Load, first: int, end: int, steep: int, others: int, seed: int) -> list[Window]:
    """The windows of these slots in which the rate rises most from the first two slots to the last two, one a day, and others at random."""
    starts = [at for at in range(first, end - WINDOW) if all(at + i in known for i in range(WINDOW + 1))]
    rise = {at: known[at + 3] + known[at + 4] - known[at] - known[at + 1] for at in starts}
    found: list[Window] = []
    for at in sorted(starts, key=lambda at: -rise[at]):
        if len(found) < steep and all(at // DAY != one.start // DAY for one in found):
            found.append(Window(wanted, at, True, seed + len(found)))
    rng = dice(seed)("windows " + wanted.name)
    while len(found) < steep + others:
        at = starts[int(rng.random() * len(starts))]
        if all(abs(at - one.start) > WINDOW for one in found):
            found.append(Window(wanted, at, False, seed + len(found)))
    return found


def between(known: dict[int, float], moment: float) -> float:
    """The rate at a moment: linear between the middles of slots."""
    place = moment / SLOT_S - 0.5
    at = int(place // 1)
    before = known.get(at, known.get(at + 1, 0.0))
    return before + (known.get(at + 1, before) - before) * (place - at)


def arrivals(known: dict[int, float], start: int, lengths: list[TraceRequest], rng: Rng) -> list[TraceRequest]:
    """The requests of a window, by thinning."""
    begin, most = start * SLOT_S, max(known.get(start + i, 0.0) for i in range(-1, WINDOW + 1)) + 1e-9
    at, made = 0.0, list[TraceRequest]()
    while (at := at + exponential(rng, 1 / most)) < WINDOW * SLOT_S:
        if rng.random() * most < between(known, begin + at):
            like = lengths[int(rng.random() * len(lengths))]
            chain = fresh_chain(like.prompt_tokens, BLOCK_TOKENS, 31, start, len(made))
            made.append(TraceRequest(at, like.prompt_tokens, like.output_tokens, chain))
    return made


@cache
def lengths_of(traces: Path) -> list[TraceRequest]:
    """The requests whose lengths are drawn."""
    return load(traces / AZURE.source, dice(0)).without_oversize(AZURE.most_tokens).turns


class Recommended:
    """The gateway's recommendation, with the forecast where it has one.

    Args:
        growths: what is known of the days before; None without a forecast.
    """

    def __init__(self, scale: ScaleSettings, growths: LoadSlots | None, starts_at: float) -> None:
        self._history = ScaleHistory(scale)
        self._slots = growths
        self._starts_at = starts_at
        self.loads: list[float] = []

    def __call__(self, view: ElasticView) -> int:
        if self._slots is None:
            wanted = self._history.note(view.load, view.now)
        else:
            wanted = self._history.note(view.load, view.now, self._slots.growth(self._starts_at + view.now))
        self.loads.append(wanted.need.load or 0.0)
        return wanted.wanted


def ours(run: Run, before: dict[int, float]) -> Recommended:
    """The recommendation with the constants of a run. `before` are the rates of the slots before it."""
    constants = msgspec.json.decode(run.value)
    if "predict" not in constants:
        return Recommended(ScaleSettings(max=MOST, **constants), None, 0.0)
    predict = PredictSettings(lead_s=run.cold_start_s + MARGIN_S, **constants.pop("predict"))
    slots = LoadSlots(predict)
    begin = run.window.start * SLOT_S
    slots.take((((at + 1.0) * SLOT_S, rate * run.fills) for at, rate in before.items() if at < run.window.start), begin)
    return Recommended(ScaleSettings(max=MOST, predict=predict, **constants), slots, begin)


def measured(run: Run, traces: Path) -> Filled:
    """One run."""
    if run.window.load.clients == (-1,):
        workload = half(AZURE, traces, run.window.steep, run.window.seed)
        rng = dice(run.window.seed)("no season")
        hour = [len([1 for turn in workload.turns if turn.at_s // SLOT_S == slot]) / SLOT_S for slot in range(2)]
        before = {at: hour[int(rng.random() * 2)] for at in range(run.window.start)}
        start = AZURE.start
    else:
        before = rates(traces, run.window.load)
        workload = Workload("", arrivals(before, run.window.start, lengths_of(traces), dice(run.window.seed)("arrivals")), BLOCK_TOKENS)
        start = min(max(ceil(between(before, run.window.start * SLOT_S) * PER_RATE), 1), MOST)
    made = msgspec.json.decode(run.value)
    rule: Callable[[ElasticView], int]
    rule = ours(run, before) if run.kind == "recommended" else on_requests(made) if run.kind == "requests" else on_busy(made)
    slo = {"ttft_s": 2.0, "tpot_s": AZURE.tpot_s}
    fleet = FleetFile.model_validate({"engines": [{"machine": AZURE.machine, "count": 2 * MOST}], "signals": {"every_s": 1.0}, "slo": slo})
    elasticity = Elasticity(rule, start, cold_start_s=run.cold_start_s)
    fleet_run = ElasticFleet(fleet, workload, partial(policy_instance, "predicted_latency"), dice(run.window.seed), elasticity)
    outcomes = fleet_run.run()
    seconds = fleet_run.engine_seconds
    found = Found(figures(workload, fleet, outcomes).goodput, seconds / 3600, seconds / fleet_run.now, fleet_run.most)
    loads = rule.loads if isinstance(rule, Recommended) else [0.0]
    return Filled(found, sum(loads) / len(loads))


def errors(traces: Path, wanted: Load, predict: PredictSettings | None, lead_s: float) -> tuple[float, float]:
    """The forecast's errors in the second week: the weighted absolute percentage error of the load a lead later, and the share of it that
    the forecast lacks.

    Without `predict` the forecast is the load of now.
    """
    known = rates(traces, wanted)
    off = lacks = total = 0.0
    slots = LoadSlots(predict) if predict is not None else None
    for slot in range(WEEK, 2 * WEEK - 2):
        if slot not in known or slot - 1 not in known or slot + 1 not in known or slot + 2 not in known:
            continue
        now = slot * SLOT_S
        ahead = between(known, now)
        if slots is not None:
            slots.take((((at + 1.0) * SLOT_S, known[at]) for at in range(0 if not len(slots) else slot - 2, slot) if at in known), now)
            ahead += slots.growth(now).backends or 0.0
        then = between(known, now + lead_s)
        off, lacks, total = off + abs(then - ahead), lacks + max(then - ahead, 0.0), total + then
    return off / total, lacks / total


FORECASTS: Final[dict[str, dict[str, Any] | None]] = {
    "the load of now": None,
    "one day before": {"days": 1},
    "7 days, quantile 0.5": {"quantile": 0.5},
    "7 days, quantile 0.8": {"quantile": 0.8},
    "one week before": {"season": "week"},
}


def error_table(traces: Path, rows: list[Row]) -> list[str]:
    """How far forecasts are off."""
    text = ["| load | forecast | error, 180 s | lacks | error, 660 s | lacks |", "|---|---|---|---|---|---|"]
    for wanted in LOADS:
        for name, constants in FORECASTS.items():
            cells = []
            for lead_s in (180.0, 660.0):
                predict = None if constants is None else PredictSettings(lead_s=lead_s, **constants)
                off, lacks = errors(traces, wanted, predict, lead_s)
                cells += [f"{off:.1%}", f"{lacks:.2%}"]
                rows.append(Row(metric=f"error_{lead_s:.0f}:{wanted.name}", subject=name, value=round(off, 4), unit="share", n=1))
            text.append(f"| {wanted.name} | {name} | {' | '.join(cells)} |")
    return text


Measure = Callable[[list[Run]], list[Filled]]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _mean(filled: list[Filled]) -> Found:
    return mean([one.found for one in filled])


def tuned(loads: list[Load], traces: Path, measure: Measure) -> dict[Load, tuple[float, list[tuple[str, str]]]]:
    """From the first week: the backends that a request a second fills, and the peers with their targets."""
    places = {one: windows(rates(traces, one), one, DAY, WEEK, 2, 0, 0) for one in loads}
    kinds = [("recommended", "{}")] + [("requests", _json(t)) for t in TARGETS_RPS] + [("busy", _json(t)) for t in TARGETS_BUSY]
    runs = [Run(window, COLD_STARTS_S[0], kind, value, 0.0) for one in loads for window in places[one] for kind, value in kinds]
    found = dict(zip(runs, measure(runs), strict=True))
    chose: dict[Load, tuple[float, list[tuple[str, str]]]] = {}
    for one in loads:
        known = rates(traces, one)

        def of(kind: str, value: str, one: Load = one) -> list[Filled]:
            return [found[Run(window, COLD_STARTS_S[0], kind, value, 0.0)] for window in places[one]]

        came = [sum(known[window.start + i] for i in range(WINDOW)) / WINDOW for window in places[one]]
        fills = sum(filled.load for filled in of("recommended", "{}")) / sum(came)
        base = _mean(of("recommended", "{}"))
        peers = [(kind, chosen(base, {v: _mean(of(kind, v)) for k, v in kinds if k == kind})) for kind in ("requests", "busy")]
        chose[one] = fills, peers
    return chose


def compared(loads: list[Load], traces: Path, steep: int, others: int, measure: Measure, rows: list[Row]) -> list[str]:
    """The table of the second week."""
    chose = tuned(loads, traces, measure)
    runs: list[Run] = []
    for one in loads:
        fills, peers = chose[one]
        subjects = [("recommended", _json(constants)) for constants in OURS] + peers
        places = windows(rates(traces, one), one, WEEK, 2 * WEEK, steep, others, 114)
        runs += [Run(window, cold, kind, value, fills) for window in places for cold in COLD_STARTS_S for kind, value in subjects]
    none = Load(AZURE.name, (-1,))
    fills = sum(fills for fills, _ in chose.values()) / len(chose)
    azure = [Window(none, WEEK, True, seed) for seed in (114, 115)]
    runs += [Run(window, cold, "recommended", _json(constants), fills) for window in azure for cold in COLD_STARTS_S for constants in OURS]
    found = list(zip(runs, measure(runs), strict=True))
    text = ["| load | windows | cold start | rule | in time | lowest | GPU-hours |", "|---|---|---|---|---|---|---|"]
    for name, is_steep, cold, kind, value in dict.fromkeys((r.window.load, r.window.steep, r.cold_start_s, r.kind, r.value) for r in runs):
        each = [
            filled
            for run, filled in found
            if (run.window.load, run.window.steep, run.cold_start_s, run.kind, run.value) == (name, is_steep, cold, kind, value)
        ]
        one, lowest = _mean(each), min((filled.found.good for filled in each), default=inf)
        said = {"{}": "recommended"}.get(value, f"{kind} {value}".replace('"', ""))
        what = f"{len(each)} steep" if name.clients != (-1,) and is_steep else f"{len(each)} at random" if name.clients != (-1,) else "-"
        text.append(f"| {name.name} | {what} | {cold:.0f} s | {said} | {one.good:.1%} | {lowest:.1%} | {one.gpu_hours:.2f} |")
        key = f"{name.name}, {what}, {cold:.0f} s"
        rows.append(Row(metric=f"in_time:{key}", subject=said, value=round(one.good, 4), unit="share", n=len(each)))
        rows.append(Row(metric=f"gpu_hours:{key}", subject=said, value=round(one.gpu_hours, 3), unit="h", n=len(each)))
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling_ahead", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public traces")
    parser.add_argument("--loads", default=";".join(one.name for one in LOADS), help="loads, separated by semicolons")
    parser.add_argument("--steep", type=int, default=3, help="windows in which the rate rises most, of each load")
    parser.add_argument("--random", type=int, default=2, help="windows at random, of each load")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/numbers.md")
    arguments = parser.parse_args()
    loads = [one for one in LOADS if one.name in arguments.loads.split(";")]
    rows: list[Row] = []
    errors_text = error_table(arguments.traces, rows)
    print("\n".join(errors_text), flush=True)
    with ProcessPoolExecutor(arguments.jobs) as processes:
        text = compared(
            loads,
            arguments.traces,
            arguments.steep,
            arguments.random,
            lambda runs: list(processes.map(partial(measured, traces=arguments.traces), runs)),
            rows,
        )
    made = "\n".join(
        [f"`{parser.prog}`, simulated; targets chosen on the first week, seeds 0 and 1; the second week, seeds from 114 on.", "", *text]
    )
    print(made)
    if arguments.write:
        refresh("scaling-ahead", "\n".join([made, "", "The load a lead later, second week:", "", *errors_text]))
        write_rows("scaling-ahead", rows)


if __name__ == "__main__":
    main()
