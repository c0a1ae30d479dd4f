"""Writes merged snapshots as Prometheus text. Runs in the admin process; the only place that knows prometheus_client.

`describe()` lists every family with its labels; `docs/metrics.md` is compared with it by a test.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from backends.signals import Signals
from gateway.fleet.seen import clashes_seen, fleet_seen, sources_seen
from gateway.telemetry.families import DURATION, FAMILIES, MAX_SERIES, NONE, TPOT, TTFT, Family
from gateway.telemetry.metrics import Cells, MetricsSnapshot
from gateway.worker_link import BackendState, Supervision, WorkerSnapshot

STATES: Final = ("starting", "ready", "draining", "missing")
"""States of a worker's place; `missing` is a place from which no process answers."""

GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_in_flight_requests": ("Requests begun and not finished.", ()),
    "tidegate_connections": ("Open connections of callers.", ()),
    "tidegate_backend_up": ("1 when every worker that answers may use the backend, else 0.", ("pool", "backend")),
    "tidegate_backend_in_flight_requests": ("Requests of this gateway on the backend.", ("pool", "backend")),
    "tidegate_backend_signals_age_seconds": ("Age of the last reading of what the engine reports.", ("pool", "backend")),
    "tidegate_backend_signals_missing": ("Required signals that the engine does not report.", ("pool", "backend")),
    "tidegate_backend_running_requests": ("Sequences in the engine's batch, as it reports.", ("pool", "backend")),
    "tidegate_backend_waiting_requests": ("Requests in the engine's queue, as it reports.", ("pool", "backend")),
    "tidegate_backend_kv_usage_ratio": ("Share of the engine's KV cache in use, as it reports.", ("pool", "backend")),
    "tidegate_backend_prefill_tokens_per_second": (
        "Prompt tokens the engine computes per second of prefill, measured between readings.",
        ("pool", "backend"),
    ),
    "tidegate_backend_lora": ("1 for each adapter on the backend.", ("pool", "backend", "lora")),
    "tidegate_backend_kv_blocks": ("Blocks that the engine certainly holds in its prefix cache.", ("pool", "backend")),
    "tidegate_backend_kv_events_trusted": ("1 when every worker knows exactly what the engine holds, else 0.", ("pool", "backend")),
    "tidegate_discovery_source_up": ("1 when every worker can read the source of backends, else 0.", ("pool", "source")),
    "tidegate_discovery_answer_age_seconds": ("Age of the source's answer in force.", ("pool", "source")),
    "tidegate_discovery_clashes": ("Backends that two sources name, or that are for an unknown pool.", ()),
    "tidegate_worker_state": ("Processes in this state at this worker's place.", ("worker", "state")),
    "tidegate_build_info": ("1; the labels say what runs.", ("version",)),
}
_SIGNAL_GAUGES: Final[dict[str, Callable[[Signals], float | None]]] = {
    "tidegate_backend_running_requests": lambda signals: signals.running,
    "tidegate_backend_waiting_requests": lambda signals: signals.waiting,
    "tidegate_backend_kv_usage_ratio": lambda signals: signals.kv_usage,
}
COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_worker_restarts_total": ("Unexpected ends of a worker (or of the admin process).", ("worker",)),
    "tidegate_access_log_dropped_total": ("Access-log lines dropped because nobody read them fast enough.", ()),
}
ALIASES: Final = (
    (TTFT, "gen_ai_server_time_to_first_token_seconds", ("gen_ai_request_model",)),
    (TPOT, "gen_ai_server_time_per_output_token_seconds", ("gen_ai_request_model",)),
    (DURATION, "gen_ai_server_request_duration_seconds", ("gen_ai_request_model",)),
)
"""OpenTelemetry's names for the histograms that dashboards of the field expect, written from the same cells: an alias
costs the workers nothing. Only the model label is kept."""


class Scrape(msgspec.Struct, frozen=True):
    """All that one scrape shows."""

    totals: MetricsSnapshot
    workers: Sequence[WorkerSnapshot]
    supervision: Supervision | None
    expected_workers: int
    version: str


def describe() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every family: name -> (kind, label names)."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {
        f.name: (f.kind, f.labels + f.closed + ((f.split_label,) if f.split else ())) for f in FAMILIES
    }
    found |= {name: ("gauge", labels) for name, (_, labels) in GAUGES.items()}
    found |= {name: ("counter", labels) for name, (_, labels) in COUNTERS.items()}
    return found | {name: ("histogram", labels) for _, name, labels in ALIASES}


def render(scrape: Scrape, accept: str = "") -> tuple[bytes, str]:
    """The scrape as text, with its content type; `accept` is the scraper's Accept header (OpenMetrics or plain)."""
    encode, content_type = choose_encoder(accept)
    return encode(_Families(scrape)), content_type


class _Families(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        rows = self._scrape.totals.families
        for family in FAMILIES:
            yield _counted(family, rows.get(family.name, ()))
        for family, name, labels in ALIASES:
            yield _alias(family, name, labels, rows.get(family.name, ()))
        yield from _gauges(self._scrape)
        yield from _process_counters(self._scrape)


Rows = Iterable[tuple[tuple[str, ...], list[float]]]


def _counted(family: Family, rows: Rows) -> Metric:
    labels = family.labels + family.closed
    if family.kind == "histogram":
        return _histogram(family.name, family.help, labels, family.bounds, rows)
    split = (family.split_label,) if family.split else ()
    metric = CounterMetricFamily(family.name, family.help, labels=labels + split)
    for values, cell in rows:
        for at, number in enumerate(cell):
            metric.add_metric((*values, family.split[at]) if family.split else values, number)
    return metric


def _histogram(name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...], rows: Rows) -> Metric:
    metric = HistogramMetricFamily(name, text, labels=labels)
    edges = [repr(bound) for bound in bounds] + ["+Inf"]
    for values, cell in rows:
        buckets, below = [], 0.0
        for edge, count in zip(edges, cell, strict=False):  # the cell's last number is the sum, not a bucket
            below += count
            buckets.append((edge, below))
        metric.add_metric(values, buckets, sum_value=cell[-1])
    return metric


def _alias(family: Family, name: str, labels: tuple[str, ...], rows: Rows) -> Metric:
    """The same histogram under another name, summed over all labels but the first (the model)."""
    sums = Cells(Family(name, family.help, labels, kind="histogram", bounds=family.bounds), MAX_SERIES)
    for values, cell in rows:
        total = sums.cell(values[:1])
        for at, number in enumerate(cell):
            total[at] += number
    return _histogram(name, f"{family.help} Alias of {family.name}.", labels, family.bounds, sums.rows())


def _gauge(name: str, rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    text, labels = GAUGES[name]
    metric = GaugeMetricFamily(name, text, labels=labels)
    for values, number in rows:
        metric.add_metric(values, number)
    return metric


def _gauges(scrape: Scrape) -> Iterator[Metric]:
    yield _gauge("tidegate_in_flight_requests", [((), scrape.totals.in_flight)])
    yield _gauge("tidegate_connections", [((), scrape.totals.connections)])
    yield from _backend_gauges(fleet_seen(scrape.workers)[:MAX_SERIES])
    sources = [((s.pool or NONE, s.owner), s) for s in sources_seen(scrape.workers)]
    yield _gauge("tidegate_discovery_source_up", [(labels, float(not s.trouble)) for labels, s in sources])
    yield _gauge("tidegate_discovery_answer_age_seconds", [(labels, s.age_s) for labels, s in sources if s.age_s is not None])
    yield _gauge("tidegate_discovery_clashes", [((), float(len(clashes_seen(scrape.workers))))])
    places = dict.fromkeys(((i, state) for i in range(scrape.expected_workers) for state in STATES), 0)
    for worker in scrape.workers:
        places[worker.index, worker.state] = places.get((worker.index, worker.state), 0) + 1
    for index in range(scrape.expected_workers):
        places[index, "missing"] = int(not any(places[index, state] for state in STATES[:3]))
    yield _gauge("tidegate_worker_state", [((str(index), state), count) for (index, state), count in sorted(places.items())])
    yield _gauge("tidegate_build_info", [((scrape.version,), 1)])


def _backend_gauges(fleet: list[BackendState]) -> Iterator[Metric]:
    """What is unknown has no sample: a zero would say that the engine is idle."""
    yield _gauge("tidegate_backend_up", [((b.pool, b.backend), float(b.up)) for b in fleet])
    yield _gauge("tidegate_backend_in_flight_requests", [((b.pool, b.backend), float(b.in_flight)) for b in fleet])
    read = [((b.pool, b.backend), b.signals, b.signals_age_s or 0.0) for b in fleet if b.signals is not None]
    yield _gauge("tidegate_backend_signals_age_seconds", [(labels, age_s) for labels, _, age_s in read])
    yield _gauge("tidegate_backend_signals_missing", [(labels, float(len(signals.missing))) for labels, signals, _ in read])
    rates = [((b.pool, b.backend), b.prefill_tokens_per_s) for b in fleet if b.prefill_tokens_per_s is not None]
    yield _gauge("tidegate_backend_prefill_tokens_per_second", rates)
    there = [((b.pool, b.backend, lora), 1.0) for b in fleet for lora in b.loras]
    yield _gauge("tidegate_backend_lora", there[:MAX_SERIES])
    for name, value in _SIGNAL_GAUGES.items():
        yield _gauge(name, [(labels, float(number)) for labels, signals, _ in read if (number := value(signals)) is not None])
    heard = [((b.pool, b.backend), b.kv) for b in fleet if b.kv is not None]
    yield _gauge("tidegate_backend_kv_blocks", [(labels, float(kv.blocks)) for labels, kv in heard])
    yield _gauge("tidegate_backend_kv_events_trusted", [(labels, float(kv.trusted)) for labels, kv in heard])


def _process_counters(scrape: Scrape) -> Iterator[Metric]:
    text, labels = COUNTERS["tidegate_worker_restarts_total"]
    restarts = CounterMetricFamily("tidegate_worker_restarts_total", text, labels=labels)
    for slot in scrape.supervision.slots if scrape.supervision else ():
        restarts.add_metric((slot.name.removeprefix("worker-"),), slot.restarts)
    yield restarts
    text, _ = COUNTERS["tidegate_access_log_dropped_total"]
    yield CounterMetricFamily("tidegate_access_log_dropped_total", text, value=scrape.totals.access_log_dropped)
