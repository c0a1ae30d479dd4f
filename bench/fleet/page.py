"""What docs/numbers.md shows of a comparison of routing policies: how the default stands, then every policy at the middle load."""

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
        "The default beside the best other policy of each line; a ratio below 1 is in its favour.",
        "",
        *_standing(values, workloads),
        "",
    ]
    for metric, words in (
        ("ttft_mean_s", "Mean seconds to the first token, middle load"),
        ("ttft_p99_s", "99th percentile of them"),
        ("goodput", "Share of requests within 2 s to the first token and 100 ms a token"),
        ("hit_rate", "Share of prompt tokens found cached; *pooled* is what one cache as large as all would have found"),
    ):
        parts += [f"{words}:", "", *_every(values, metric, middle), ""]
    return "\n".join(parts).rstrip()


def _standing(values: Values, workloads: Sequence[str]) -> list[str]:
    lines = [
        "| workload | TTFT mean s | best other | ratio | TTFT p99 s | best other | ratio | of the pooled hit rate |",
        "|---|" + "---|" * 7,
    ]
    for workload in workloads:
        cells = [workload]
        for metric in ("ttft_mean_s", "ttft_p99_s"):
            own = values[f"{metric}:{workload}", DEFAULT]
            other, name = min(
                (value, s) for (m, s), value in values.items() if m == f"{metric}:{workload}" and s not in (DEFAULT, "pooled")
            )
            cells += [f"{own:.3g}", f"{other:.3g} ({name})", f"{own / other:.2f}"]
        pooled = values.get((f"hit_rate:{workload}", "pooled"), 0.0)
        cells.append(f"{values[f'hit_rate:{workload}', DEFAULT] / pooled:.0%}" if pooled else "nothing is shared")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _every(values: Values, metric: str, workloads: Sequence[str]) -> list[str]:
    lines = ["| policy | " + " | ".join(workloads) + " |", "|---|" + "---|" * len(workloads)]
    for policy in (*POLICIES, *(("pooled",) if metric == "hit_rate" else ())):
        cells = [f"{values[f'{metric}:{one}', policy]:.3g}" if (f"{metric}:{one}", policy) in values else "" for one in workloads]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return lines
