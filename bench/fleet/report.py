"""The tables of docs/numbers.md on routing policies, from finished cells: the default beside the best other policy of each line, means over
all lines, and what is missed."""

import math
from collections.abc import Mapping
from typing import Final

from bench.fleet.cells import Cell, Finished, Line
from bench.fleet.ratios import Ratio, Runs, against_best, against_fixed, by_line, geometric, mean

DEFAULT: Final = "predicted_latency"
METRICS: Final = ("ttft_mean_s", "ttft_p99_s")
NEAR_FULL: Final = 0.75
"""Load from which on the default is compared with the best single other policy."""
PER_LINE: Final = {"ttft_mean_s": 0.95, "ttft_p99_s": 0.90}
FIXED: Final = {"ttft_mean_s": 0.72, "ttft_p99_s": 0.70}
MOST_EXCEPTIONS: Final = 3
OF_POOLED: Final = 0.92
"""Goal for the hit rate on conversation, as a share of the pooled bound."""


def text(found: Mapping[Cell, Finished], command: str) -> str:
    """The part between the markers.

    Raises:
        ValueError: no line has both the default and another policy, or the cells do not go together.
    """
    lines = {line: runs for line, runs in by_line(found).items() if against_best(runs, DEFAULT, METRICS[0]) is not None}
    if not lines:
        raise ValueError(f"no line has cells of both {DEFAULT} and another policy; run the grid first")
    seeds = sorted({cell.seed for cell in found})
    single = {line: runs for line, runs in lines.items() if (line.replicas, line.events) == (1, True)}
    more = {line: runs for line, runs in lines.items() if line not in single}
    limit = next(iter(found)).limit
    parts = [
        f"`{command}`, simulated, seeds {', '.join(map(str, seeds))}; at most {limit:,} requests a run; the first fifth is not scored.",
        "",
    ]
    if single:
        parts += ["One replica, KV events on; a ratio below 1 is in the default's favour, `±` its 95 % interval over the seeds.", ""]
        parts += [*_standing(single), "", *_means(single), "", *_missed(single), "", *_every(single), ""]
    if more:
        parts += ["Several replicas, and engines without KV events, for the default and its peers:", "", *_standing(more), ""]
        parts += [*_missed(more), ""]
    return "\n".join(parts).rstrip()


def _standing(lines: Mapping[Line, Runs]) -> list[str]:
    rows = [
        "| line | mean s | `bound` | best other | ratio | p99 s | `bound` | best other | ratio | hit rate | pooled | of it | seeds |",
        "|---|" + "---|" * 12,
    ]
    for line, runs in lines.items():
        own = runs[DEFAULT]
        cells = [str(line)]
        best: Ratio | None = None
        for metric in METRICS:
            best = against_best(runs, DEFAULT, metric)
            cells += [_number(mean(own, metric)), _number(mean(own, metric, of_bound=True))]
            cells += [f"{_number(mean(runs[best.other], metric))} ({best.other})", _ratio(best)] if best else ["", ""]
        hit, pooled = mean(own, "hit_rate") or 0.0, mean(own, "hit_rate", of_bound=True) or 0.0
        cells += [f"{hit:.1%}", f"{pooled:.1%}", f"{hit / pooled:.0%}" if pooled else "", str(best.seeds if best else 0)]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _means(lines: Mapping[Line, Runs]) -> list[str]:
    rows = ["| geometric means | lines | mean | goal | | p99 | goal | |", "|---|" + "---|" * 7]
    best = {metric: geometric([one.value for runs in lines.values() if (one := against_best(runs, DEFAULT, metric))]) for metric in METRICS}
    rows.append(_goal_row("the best other of each line", len(lines), best, PER_LINE))
    # the lowest ratio that the bound leaves room for
    room = {}
    for metric in METRICS:
        room[metric] = geometric([least for runs in lines.values() if (least := _least_ratio(runs, metric))])
    cells = " | ".join(f"{room[metric]:.3f} | |" for metric in METRICS)
    rows.append(f"| `bound` over the best other of each line | {len(lines)} | {cells} |")
    full = {line: runs for line, runs in lines.items() if line.load >= NEAR_FULL}
    fixed = {metric: against_fixed(full, DEFAULT, metric) for metric in METRICS}
    if all(fixed.values()):
        names = " / ".join(fixed[metric][0][1] for metric in METRICS)
        values = {metric: fixed[metric][0][0] for metric in METRICS}
        rows.append(_goal_row(f"the best single other, load of at least {NEAR_FULL:.0%}: {names}", len(full), values, FIXED))
    return rows


def _goal_row(name: str, count: int, values: Mapping[str, float], goals: Mapping[str, float]) -> str:
    cells = [
        f"{values[metric]:.3f} | {goals[metric]:.2f} | {'met' if values[metric] <= goals[metric] else '**missed**'}" for metric in METRICS
    ]
    return f"| {name} | {count} | " + " | ".join(cells) + " |"


def _least_ratio(runs: Runs, metric: str) -> float | None:
    best, least = against_best(runs, DEFAULT, metric), mean(runs[DEFAULT], metric, of_bound=True)
    theirs = mean(runs[best.other], metric) if best else None
    return least / theirs if least and theirs else None


def _missed(lines: Mapping[Line, Runs]) -> list[str]:
    named = []
    for line, runs in lines.items():
        for metric in METRICS:
            best = against_best(runs, DEFAULT, metric)
            if best is not None and best.missed:
                named.append(f"- {line}: {metric.split('_')[1]} {_ratio(best)} of {best.other}")
    lines_missed = len({one.split(":")[0] for one in named})
    verdict = "met" if lines_missed <= MOST_EXCEPTIONS else "**missed**"
    rows = [
        f"Worse than the best other beyond the interval and 3 %: {lines_missed} of {len(lines)} lines (goal {MOST_EXCEPTIONS}: {verdict})."
    ]
    if named:
        rows += ["", *named]
    shares = []
    for line, runs in lines.items():
        hit, pooled = mean(runs[DEFAULT], "hit_rate"), mean(runs[DEFAULT], "hit_rate", of_bound=True)
        if line.workload == "conversation" and hit is not None and pooled:
            shares.append((hit / pooled, line))
    if shares:
        least, line = min(shares)
        rows += [
            "",
            f"Hit rate, at least {least:.0%} of the pooled bound ({line}; goal {OF_POOLED:.0%}: {_verdict(least >= OF_POOLED)}).",
        ]
    return rows


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _every(lines: Mapping[Line, Runs]) -> list[str]:
    """Geometric mean over lines of each policy's figures over the default's."""
    rows = [
        "| policy, over the default | "
        + " | ".join(f"{metric.split('_')[1]}, {load:.0%}" for metric in METRICS for load in _loads(lines))
        + " |"
    ]
    rows.append("|---|" + "---|" * (len(METRICS) * len(_loads(lines))))
    columns = [({line: runs for line, runs in lines.items() if line.load == load}, metric) for metric in METRICS for load in _loads(lines)]
    found = [{other: 1.0 / value for value, other in against_fixed(part, DEFAULT, metric)} for part, metric in columns]
    for policy in dict.fromkeys(name for column in found for name in sorted(column, key=column.__getitem__)):
        rows.append(f"| {policy} | " + " | ".join(f"{column[policy]:.2f}" if policy in column else "" for column in found) + " |")
    return rows


def _loads(lines: Mapping[Line, Runs]) -> list[float]:
    return sorted({line.load for line in lines})


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _ratio(one: Ratio) -> str:
    return f"{one.value:.2f}" if math.isinf(one.high) else f"{one.value:.2f} ± {(one.high - one.low) / 2:.2f}"
