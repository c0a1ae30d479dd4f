"""The part of docs/numbers.md on routing policies: the default beside the best other one, and every policy at the middle load."""

from collections.abc import Mapping, Sequence

from bench.results_file import Row
from routing.registry import POLICIES

DEFAULT = "predicted_latency"
Values = Mapping[tuple[str, str], float]
"""By metric and subject."""


def text(rows: Sequence[Row], *, seeds: int, limit: int) -> str:
    """The part between the markers."""
    values = {(row["metric"], row["subject"]): row["value"] for row in rows}
    first = "ttft_mean_s:"
    workloads = list(dict.fromkeys(row["metric"].removeprefix(first) for row in rows if row["metric"].startswith(first)))
    middle = [one for one in workloads if "@" not in one]
    parts = [
        f"`make bench-fleet`, simulated, {seeds} seeds that chose nothing, the first {limit:,} requests of each workload; medians.",
        "",
    ]
    parts += [
        "The default beside the best other policy at the middle load; a ratio below 1 is in its favour.",
        "",
        *_standing(values, middle),
        "",
        "At the other loads (`bench/results/fleet.json` has each policy's figures):",
        "",
        *_elsewhere(values, workloads),
        "",
    ]
    parts += ["Mean seconds to the first token, middle load:", "", *_every(values, "ttft_mean_s", middle)]
    return "\n".join(parts).rstrip()


def _best_other(values: Values, metric: str) -> tuple[float, str]:
    """The least value of a metric among the other policies, and the policy's name."""
    return min((value, s) for (m, s), value in values.items() if m == metric and s not in (DEFAULT, "pooled"))


def _standing(values: Values, workloads: Sequence[str]) -> list[str]:
    lines = [
        "| workload | TTFT mean s | best other | ratio | TTFT p99 s | best other | ratio | of the pooled hit rate |",
        "|---|" + "---|" * 7,
    ]
    for workload in workloads:
        cells = [workload]
        for metric in ("ttft_mean_s", "ttft_p99_s"):
            own = values[f"{metric}:{workload}", DEFAULT]
            other, name = _best_other(values, f"{metric}:{workload}")
            cells += [f"{own:.3g}", f"{other:.3g} ({name})", f"{own / other:.2f}"]
        pooled = values.get((f"hit_rate:{workload}", "pooled"), 0.0)
        cells.append(f"{values[f'hit_rate:{workload}', DEFAULT] / pooled:.0%}" if pooled else "nothing is shared")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _elsewhere(values: Values, workloads: Sequence[str]) -> list[str]:
    """One line for each load: how many workloads the default's mean is near the best on, and its largest ratios to the best."""
    lines = ["| load | mean within 10 % of the best | largest ratio of the mean | largest ratio of the p99 |", "|---|---|---|---|"]
    for load in dict.fromkeys(workload.partition("@")[2] for workload in workloads if "@" in workload):
        ratios: dict[str, list[tuple[float, str]]] = {}
        for workload in workloads:
            if workload.endswith(f"@{load}"):
                for metric in ("ttft_mean_s", "ttft_p99_s"):
                    ratio = values[f"{metric}:{workload}", DEFAULT] / _best_other(values, f"{metric}:{workload}")[0]
                    ratios.setdefault(metric, []).append((ratio, workload.partition("@")[0]))
        means = ratios["ttft_mean_s"]
        largest = (max(ratios[metric]) for metric in ("ttft_mean_s", "ttft_p99_s"))
        near = f"{sum(ratio <= 1.1 for ratio, _ in means)} of {len(means)}"
        lines.append(f"| {load} | {near} | " + " | ".join(f"{ratio:.2f} ({workload})" for ratio, workload in largest) + " |")
    return lines


def _every(values: Values, metric: str, workloads: Sequence[str]) -> list[str]:
    lines = ["| policy | " + " | ".join(workloads) + " |", "|---|" + "---|" * len(workloads)]
    for policy in POLICIES:
        cells = [f"{values[f'{metric}:{one}', policy]:.3g}" if (f"{metric}:{one}", policy) in values else "" for one in workloads]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return lines
