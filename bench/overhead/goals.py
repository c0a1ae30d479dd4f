"""The goals that were set for overhead, beside what a run measured. Ratios within one run; nothing here can fail a test."""

from collections.abc import Callable, Sequence

from bench.results_file import Row

Get = Callable[[str, str], float]


def _ratio(metric: str, peer: str = "nginx") -> Callable[[Get], float]:
    return lambda get: get(metric, "tidegate") / get(metric, peer)


def _beyond(metric: str, peer: str = "nginx") -> Callable[[Get], float]:
    return lambda get: get(metric, "tidegate") - get(metric, peer)


GOALS: list[tuple[str, float, Callable[[Get], float]]] = [
    ("plain 1 KB request, CPU over nginx's", 3.0, _ratio("cpu_us_plain_1k")),
    ("plain 1 KB request, CPU over sglang-router's", 1.0, _ratio("cpu_us_plain_1k", "sglang-router")),
    ("plain 1 KB request, CPU over vllm-router's", 1.0, _ratio("cpu_us_plain_1k", "vllm-router")),
    ("plain 16 KB request, CPU over nginx's", 4.0, _ratio("cpu_us_plain_16k")),
    ("plain 1 KB request, CPU over litellm's", 0.01, _ratio("cpu_us_plain_1k", "litellm")),
    ("streamed event at 64 streams, CPU over nginx's", 1.3, _ratio("cpu_us_event_64")),
    ("streamed event at 256 streams, CPU over nginx's", 1.3, _ratio("cpu_us_event_256")),
    ("streamed event at 1,000 streams, CPU over nginx's", 1.3, _ratio("cpu_us_event_1000")),
    ("latency added at one connection, p50, beyond nginx's, ms", 0.03, _beyond("added_p50_ms_c1")),
    ("latency added at one connection, p99, beyond nginx's, ms", 1.0, _beyond("added_p99_ms_c1")),
    ("time added to the first event at 1,000 streams, p50, ms", 1.0, lambda get: get("added_first_event_ms_1000", "tidegate")),
    ("memory of a worker at 1,000 streams, MB", 60.0, lambda get: get("rss_mb_1000_streams", "tidegate")),
]


def goals_table(rows: Sequence[Row]) -> str:
    """Markdown: goal, limit, measured, whether it is met."""
    values = {(row["metric"], row["subject"]): row["value"] for row in rows}
    lines = ["| goal | at most | measured | |", "|---|---|---|---|"]
    for text, limit, measure in GOALS:
        try:
            measured = measure(lambda metric, subject: values[metric, subject])
        except KeyError:
            lines.append(f"| {text} | {limit:g} | | not measured in this run |")
            continue
        lines.append(f"| {text} | {limit:g} | {measured:.3g} | {'met' if measured <= limit else '**missed**'} |")
    return "\n".join(lines)
