"""Writes merged snapshots as Prometheus text. Runs in the admin process; the only place that knows prometheus_client.

`render` writes one `Scrape`. `describe` lists every family with its labels; `docs/reference/metrics.md` is compared with it by a test.
Gauges with sources of their own have their names, texts and samples in one section each: the backends' concurrency limits (`limit_rows`;
backends without a limit have no samples), the issuers of JWTs (`issuer_rows`: how many keys are known, and how old they are), the active
policies (`policy_rows`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from backends.signals import Signals
from domain.priority import WORDS
from gateway.alerts.watch import AlertCounts
from gateway.fleet.view import BREAKER_STATES, clashes_seen, fleet_seen, sources_seen
from gateway.ledger.bookkeeper import BookingState
from gateway.placement.backend_state import BackendState
from gateway.process.snapshots import Supervision, WorkerSnapshot
from gateway.telemetry.alert_counters import ALERT_COUNTERS, ALERT_GAUGES, alert_counts, alert_rows
from gateway.telemetry.cells import MAX_LABEL_CHARS
from gateway.telemetry.exemplars import ExemplarRows
from gateway.telemetry.families import COST, FAMILIES, MAX_SERIES, NONE, Family
from gateway.telemetry.file_gauges import FILE_GAUGES
from gateway.telemetry.headroom import HEADROOM_GAUGES
from gateway.telemetry.judge_gauges import JUDGE_GAUGES
from gateway.telemetry.processes import PROCESS_COUNTERS, PROCESS_GAUGES, ProcessUse, process_counts, process_rows
from gateway.telemetry.request_log_counters import REQUEST_LOG_COUNTERS, RequestLogCounts, request_log_counts
from gateway.telemetry.rollout_gauges import ROLLOUT_COUNTERS, ROLLOUT_GAUGES, RolloutFigures, rollout_counts, rollout_rows
from gateway.telemetry.scaling_gauges import SCALING_GAUGES
from gateway.telemetry.snapshot import CellRows, MetricsSnapshot

_LABELS: Final = ("pool", "backend")

LIMIT_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_backend_limit_requests": ("Requests that the engine is taken to bear, of all gateways together.", _LABELS),
    "tidegate_backend_limit_tokens": ("Uncached prompt tokens that it is taken to bear likewise.", _LABELS),
    "tidegate_backend_limit_own_requests": ("Of those requests, what this gateway may have there.", _LABELS),
    "tidegate_backend_limit_processes": ("Workers of all gateways that share it; 0 while nobody knows.", _LABELS),
}


def limit_rows(fleet: Iterable[BackendState]) -> Iterator[tuple[str, list[tuple[tuple[str, ...], float]]]]:
    """The samples of each gauge, in the order of `LIMIT_GAUGES`."""
    limited = [((b.pool, b.backend), b.limit, b.processes) for b in fleet if b.limit is not None]
    columns: tuple[list[tuple[tuple[str, ...], float]], ...] = (
        [(labels, limit.requests) for labels, limit, _ in limited],
        [(labels, limit.tokens) for labels, limit, _ in limited if limit.tokens is not None],
        [(labels, limit.own) for labels, limit, _ in limited],
        [(labels, float(processes)) for labels, _, processes in limited if processes is not None],
    )
    yield from zip(LIMIT_GAUGES, columns, strict=True)


ISSUER_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_jwks_keys": ("Keys of the issuer that tokens are verified with; of several workers the fewest.", ("issuer",)),
    "tidegate_jwks_age_seconds": ("Since the issuer's keys were read last; of several workers the longest.", ("issuer",)),
}

GaugeRows = list[tuple[tuple[str, ...], float]]


def issuer_rows(workers: Sequence[WorkerSnapshot]) -> Iterator[tuple[str, GaugeRows]]:
    """Samples by gauge; an issuer that could never be read has no age."""
    states = [state for worker in workers for state in worker.issuers]
    names = sorted({state.issuer for state in states})
    yield "tidegate_jwks_keys", [((name[:MAX_LABEL_CHARS],), float(min(s.keys for s in states if s.issuer == name))) for name in names]
    ages = {name: max((s.age_s for s in states if s.issuer == name and s.age_s is not None), default=None) for name in names}
    yield "tidegate_jwks_age_seconds", [((name[:MAX_LABEL_CHARS],), age_s) for name, age_s in ages.items() if age_s is not None]


POLICY_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_policies_refused": ("Problems for which the policy files as they are now are not in force; of several workers the most.", ()),
    "tidegate_policies_loaded_timestamp_seconds": ("When the policies in force were read; of several workers the one that did first.", ()),
}


def policy_rows(workers: Sequence[WorkerSnapshot]) -> Iterator[tuple[str, GaugeRows]]:
    """Samples by gauge; none before a worker has loaded its policies."""
    loaded = [worker.policies for worker in workers if worker.policies.digest]
    if not loaded:
        return
    yield "tidegate_policies_refused", [((), float(max(policies.problem_count for policies in loaded)))]
    yield "tidegate_policies_loaded_timestamp_seconds", [((), min(policies.loaded_unix for policies in loaded))]


CERTIFICATE_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_certificate_expires_timestamp_seconds": (
        "When a certificate in use expires: the data port's (callers), the picker's (proxies), or the one shown to a pool (engines).",
        ("use", "pool"),
    ),
}


def certificate_rows(workers: Sequence[WorkerSnapshot]) -> Iterator[tuple[str, GaugeRows]]:
    """Samples by gauge; of several workers the earliest, since one may not have taken up a new one."""
    ends: dict[tuple[str, ...], float] = {}
    for state in (state for worker in workers for state in worker.certificates):
        labels = (state.use, state.pool or NONE)
        ends[labels] = min(ends.get(labels, state.ends_unix), state.ends_unix)
    for name in CERTIFICATE_GAUGES:
        yield name, list(ends.items())


WORKER_STATES: Final = ("starting", "ready", "draining", "missing")
"""States of a worker's slot; `missing` is a slot for which no process answers."""

GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_in_flight_requests": ("Requests begun and not finished.", ()),
    "tidegate_connections": ("Open connections of callers.", ()),
    "tidegate_tasks": ("Coroutines begun and not finished: one for each request, and some that always run.", ()),
    "tidegate_backend_up": ("1 when every worker that answers may use the backend, else 0.", ("pool", "backend")),
    "tidegate_backend_revision": ("1, with the revision that its pool says it serves.", ("pool", "backend", "revision")),
    "tidegate_backend_in_flight_requests": ("Requests of this gateway on the backend.", ("pool", "backend")),
    "tidegate_backend_signals_age_seconds": ("Age of the last reading of what the engine reports.", ("pool", "backend")),
    "tidegate_backend_load_age_seconds": ("Age of what the engine told of its batch and queue, read or pushed.", ("pool", "backend")),
    "tidegate_backend_load_pushed": ("1 when every worker hears the load that the engine pushes, else 0.", ("pool", "backend")),
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
    "tidegate_backend_index_trust_ratio": ("Share of what the index says of the backend's cache that is believed.", ("pool", "backend")),
    "tidegate_backend_index_off": ("1 when the engine says something else than the index, mostly.", ("pool", "backend")),
    "tidegate_backend_breaker_state": ("0 when its breakers are closed, 1 when one is half open, 2 when one is open.", ("pool", "backend")),
    "tidegate_backend_ttft_error_seconds": (
        "By how much 9 of 10 predicted times to the first token were wrong at most.",
        ("pool", "backend"),
    ),
    **LIMIT_GAUGES,
    "tidegate_index_blocks": ("Blocks in the index of prefixes; of several workers the most.", ()),
    "tidegate_index_blocks_max": ("Its bound.", ()),
    "tidegate_queue_depth": ("Requests that wait for room on a backend.", ("pool", "class")),
    "tidegate_queue_drain_tokens_per_second": ("How fast what waits is let through, measured while it waits.", ("pool",)),
    "tidegate_discovery_source_up": ("1 when every worker can read the source of backends, else 0.", ("pool", "source")),
    "tidegate_discovery_left_out": ("Engines that the source finds and leaves out, by their labels.", ("pool", "source")),
    "tidegate_discovery_answer_age_seconds": ("Age of the source's answer in force.", ("pool", "source")),
    **ISSUER_GAUGES,
    "tidegate_discovery_clashes": ("Backends that two sources name, that share a URL, or that are for an unknown pool.", ()),
    "tidegate_worker_state": ("Processes in this state at this worker's place.", ("worker", "state")),
    "tidegate_ledger_waiting_bytes": ("Usage on disk that is not booked in SQL yet.", ()),
    "tidegate_ledger_lag_seconds": ("Age of the oldest usage on disk that is not booked in SQL yet.", ()),
    "tidegate_ledger_full": ("1 when a worker cannot make usage durable, else 0.", ()),
    "tidegate_ledger_database_up": ("1 when usage can be booked in SQL, else 0.", ()),
    "tidegate_limits_degraded": ("1 when a worker decides on limits without the shared counters, else 0.", ()),
    "tidegate_limits_degraded_seconds": ("For how long a worker has decided so; of several the longest.", ()),
    "tidegate_limits_undelivered_settlements": ("Settlements that wait for the counter store.", ()),
    "tidegate_limits_open_holds": ("Requests that hold something of a limit or would, were there one.", ()),
    "tidegate_limits_unread": ("1 when what was used before is not in the counters of a worker, else 0.", ()),
    "tidegate_limits_drift_ratio": ("Largest share by which a counter had drifted from the ledger at the last comparison.", ()),
    **POLICY_GAUGES,
    **CERTIFICATE_GAUGES,
    **ROLLOUT_GAUGES,
    **ALERT_GAUGES,
    **FILE_GAUGES,
    **JUDGE_GAUGES,
    **HEADROOM_GAUGES,
    **SCALING_GAUGES,
    **PROCESS_GAUGES,
    "tidegate_backend_usd_per_hour": ("Price of an hour of the backend's engine, where one is set.", ("pool", "backend")),
    "tidegate_scrape_slice_seconds": (
        "The longest time that the worker's event loop was held by one part of its answer to a scrape, since it started.",
        ("worker",),
    ),
    "tidegate_build_info": ("1; the labels say what runs.", ("version",)),
}
_SIGNAL_GAUGES: Final[dict[str, Callable[[Signals], float | None]]] = {
    "tidegate_backend_running_requests": lambda signals: signals.running,
    "tidegate_backend_waiting_requests": lambda signals: signals.waiting,
    "tidegate_backend_kv_usage_ratio": lambda signals: signals.kv_usage,
}
COST_USD: Final = "tidegate_cost_usd_total"
NANOUSD: Final = 1e9
"""Nano-dollars of a dollar."""

COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    COST_USD: ("What finished requests cost, in dollars.", COST.labels),
    **PROCESS_COUNTERS,
    "tidegate_backend_breaker_opens_total": ("Times that a breaker of the backend opened, over all workers.", ("pool", "backend")),
    "tidegate_worker_restarts_total": ("Unexpected ends of a worker (or of the admin process).", ("worker",)),
    "tidegate_ledger_booked_total": ("Usage events by what became of them in SQL.", ("state",)),
    **ROLLOUT_COUNTERS,
    **ALERT_COUNTERS,
    **REQUEST_LOG_COUNTERS,
    "tidegate_access_log_dropped_total": ("Access-log lines dropped because nobody read them fast enough.", ()),
}


class Scrape(msgspec.Struct, frozen=True):
    """The data of one scrape."""

    totals: MetricsSnapshot
    workers: Sequence[WorkerSnapshot]
    supervision: Supervision | None
    expected_workers: int
    version: str
    booking: BookingState | None = None
    """The state of the bookkeeper that writes usage to SQL; None where usage is not recorded."""
    rollouts: RolloutFigures | None = None
    alerts: AlertCounts | None = None
    """What became of budget alerts; None where nobody is told."""
    request_log: RequestLogCounts | None = None
    """What became of finished requests; None where no request log is kept."""
    files: Sequence[tuple[str, GaugeRows]] = ()
    """Samples of the gauges of stored files and batches, where they are known."""
    headroom: Sequence[tuple[str, GaugeRows]] = ()
    """Samples of the gauges of what tenants have left of their limits, where they are known."""
    agreement: Sequence[tuple[str, GaugeRows]] = ()
    """Samples of the gauges of the judge's agreement, where it was measured."""
    scaling: Sequence[tuple[str, GaugeRows]] = ()
    """Samples of the gauges for autoscalers, by pool."""
    processes: Mapping[str, ProcessUse] = {}
    """What each process of this gateway uses, by its name."""
    usd_per_hour: Mapping[str, float] = {}
    """The price of an engine's hour by pool, for backends without one of their own."""


def describe() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every family: name -> (kind, label names)."""
    families: dict[str, tuple[str, tuple[str, ...]]] = {
        f.name: (f.kind, f.labels + f.closed + ((f.split_label,) if f.split else ())) for f in FAMILIES
    }
    families |= {name: ("gauge", labels) for name, (_, labels) in GAUGES.items()}
    families |= {name: ("counter", labels) for name, (_, labels) in COUNTERS.items()}
    return families


def render(scrape: Scrape, accept: str = "") -> tuple[bytes, str]:
    """The scrape as text, with its content type; `accept` is the scraper's Accept header (OpenMetrics or plain)."""
    encode, content_type = choose_encoder(accept)
    return encode(_Families(scrape)), content_type


class _Families(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        rows, exemplars = self._scrape.totals.families, self._scrape.totals.exemplars
        for family in FAMILIES:
            yield _counted(family, rows.get(family.name, []), exemplars.get(family.name, []))
        yield _in_dollars(rows.get(COST.name, []))
        yield from _gauges(self._scrape)
        yield from _process_counters(self._scrape)


def _counted(family: Family, rows: CellRows, exemplars: ExemplarRows) -> Metric:
    labels = family.labels + family.closed
    if family.kind == "histogram":
        return _histogram(family, rows, exemplars)
    split = (family.split_label,) if family.split else ()
    metric = CounterMetricFamily(family.name, family.help, labels=labels + split)
    for values, cell in rows:
        for at, number in enumerate(cell):
            metric.add_metric((*values, family.split[at]) if family.split else values, number)
    return metric


def _histogram(family: Family, rows: CellRows, exemplars: ExemplarRows) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels + family.closed)
    edges = [repr(float(bound)) for bound in family.bounds] + ["+Inf"]
    marked = {labels: dict(found) for labels, found in exemplars}
    for values, cell in rows:
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        below = 0.0
        of_cell = marked.get(values, {})
        for at, (edge, count) in enumerate(zip(edges, cell, strict=False)):  # the cell's last number is the sum, not a bucket
            below += count
            if (kept := of_cell.get(at)) is None:
                buckets.append((edge, below))
            else:
                buckets.append((edge, below, Exemplar({"trace_id": kept[0]}, kept[1], kept[2])))
        metric.add_metric(values, buckets, sum_value=cell[-1])
    return metric


def _in_dollars(rows: CellRows) -> Metric:
    """The cost in dollars, beside `COST` in whole nano-dollars."""
    return _counter(COST_USD, [(labels, nanousd / NANOUSD) for labels, (nanousd,) in rows])


def _gauge(name: str, rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    text, labels = GAUGES[name]
    metric = GaugeMetricFamily(name, text, labels=labels)
    for values, number in rows:
        metric.add_metric(values, number)
    return metric


def _gauges(scrape: Scrape) -> Iterator[Metric]:
    yield _gauge("tidegate_in_flight_requests", [((), scrape.totals.in_flight)])
    yield _gauge("tidegate_connections", [((), scrape.totals.connections)])
    yield _gauge("tidegate_tasks", [((), sum(worker.tasks for worker in scrape.workers))])
    fleet = fleet_seen(scrape.workers)[:MAX_SERIES]
    yield from _backend_gauges(fleet)
    prices = [((b.pool, b.backend), b.usd_per_hour or scrape.usd_per_hour.get(b.pool, 0.0)) for b in fleet]
    yield _gauge("tidegate_backend_usd_per_hour", [(labels, price) for labels, price in prices if price])
    longest: dict[str, float] = {}
    for worker in scrape.workers:  # a rolling restart has two processes at one place
        longest[str(worker.index)] = max(longest.get(str(worker.index), 0.0), worker.slice_s)
    yield _gauge("tidegate_scrape_slice_seconds", [((index,), held_s) for index, held_s in longest.items()])
    sources = [((s.pool or NONE, s.owner), s) for s in sources_seen(scrape.workers)]
    yield _gauge("tidegate_discovery_source_up", [(labels, float(not s.trouble)) for labels, s in sources])
    yield _gauge("tidegate_discovery_answer_age_seconds", [(labels, s.age_s) for labels, s in sources if s.age_s is not None])
    yield _gauge("tidegate_discovery_left_out", [(labels, float(s.left_out)) for labels, s in sources if s.owner == "kubernetes"])
    yield _gauge("tidegate_discovery_clashes", [((), float(len(clashes_seen(scrape.workers))))])
    fullest = max(
        (worker.prefixes for worker in scrape.workers if worker.prefixes is not None), key=lambda prefixes: prefixes.blocks, default=None
    )
    yield _gauge("tidegate_index_blocks", [((), float(fullest.blocks))] if fullest else [])
    yield _gauge("tidegate_index_blocks_max", [((), float(fullest.bound))] if fullest else [])
    yield from _queue_gauges(scrape.workers)
    own = chain(
        rollout_rows(scrape.rollouts),
        alert_rows(scrape.alerts),
        scrape.files,
        scrape.headroom,
        scrape.scaling,
        scrape.agreement,
        process_rows(scrape.processes),
    )
    for name, samples in chain(issuer_rows(scrape.workers), policy_rows(scrape.workers), certificate_rows(scrape.workers), own):
        yield _gauge(name, samples)
    places = dict.fromkeys(((i, state) for i in range(scrape.expected_workers) for state in WORKER_STATES), 0)
    for worker in scrape.workers:
        places[worker.index, worker.state] = places.get((worker.index, worker.state), 0) + 1
    for index in range(scrape.expected_workers):
        places[index, "missing"] = int(not any(places[index, state] for state in WORKER_STATES[:3]))
    yield _gauge("tidegate_worker_state", [((str(index), state), count) for (index, state), count in sorted(places.items())])
    yield from _ledger(scrape)
    yield from _limits(scrape.workers)
    yield _gauge("tidegate_build_info", [((scrape.version,), 1)])


def _queue_gauges(workers: Sequence[WorkerSnapshot]) -> Iterator[Metric]:
    depth: Counter[tuple[str, str]] = Counter()
    pace: defaultdict[tuple[str], float] = defaultdict(float)
    for queue in (queue for worker in workers for queue in worker.queues):
        depth.update({(queue.pool, word): waiting for word, waiting in zip(WORDS, queue.waiting, strict=False)})
        pace[(queue.pool,)] += queue.tokens_per_s
    yield _gauge("tidegate_queue_depth", [(labels, float(waiting)) for labels, waiting in sorted(depth.items())][:MAX_SERIES])
    yield _gauge("tidegate_queue_drain_tokens_per_second", [(labels, rate) for labels, rate in sorted(pace.items()) if rate])


def _backend_gauges(fleet: list[BackendState]) -> Iterator[Metric]:
    """The gauges of backends. An unknown value has no sample: a zero would say that the engine is idle."""
    yield _gauge("tidegate_backend_up", [((b.pool, b.backend), float(b.up)) for b in fleet])
    yield _gauge("tidegate_backend_revision", [((b.pool, b.backend, b.revision), 1.0) for b in fleet if b.revision])
    yield _gauge("tidegate_backend_in_flight_requests", [((b.pool, b.backend), float(b.in_flight)) for b in fleet])
    read = [((b.pool, b.backend), b.signals, b.signals_age_s or 0.0) for b in fleet if b.signals is not None]
    yield _gauge("tidegate_backend_signals_age_seconds", [(labels, age_s) for labels, _, age_s in read])
    load_ages = [((b.pool, b.backend), b.load_age_s) for b in fleet if b.load_age_s is not None]
    yield _gauge("tidegate_backend_load_age_seconds", load_ages)
    pushing = [((b.pool, b.backend), float(not b.push.reason)) for b in fleet if b.push is not None]
    yield _gauge("tidegate_backend_load_pushed", pushing)
    yield _gauge("tidegate_backend_signals_missing", [(labels, float(len(signals.missing))) for labels, signals, _ in read])
    rates = [((b.pool, b.backend), b.prefill_tokens_per_s) for b in fleet if b.prefill_tokens_per_s is not None]
    yield _gauge("tidegate_backend_prefill_tokens_per_second", rates)
    resident = [((b.pool, b.backend, lora), 1.0) for b in fleet for lora in b.loras]
    yield _gauge("tidegate_backend_lora", resident[:MAX_SERIES])
    for name, value in _SIGNAL_GAUGES.items():
        yield _gauge(name, [(labels, float(number)) for labels, signals, _ in read if (number := value(signals)) is not None])
    publishing = [((b.pool, b.backend), b.kv) for b in fleet if b.kv is not None]
    yield _gauge("tidegate_backend_kv_blocks", [(labels, float(kv.blocks)) for labels, kv in publishing])
    yield _gauge("tidegate_backend_kv_events_trusted", [(labels, float(kv.trusted)) for labels, kv in publishing])
    yield _gauge("tidegate_backend_index_trust_ratio", [((b.pool, b.backend), b.trust) for b in fleet])
    yield _gauge("tidegate_backend_index_off", [((b.pool, b.backend), float(b.index_off)) for b in fleet])
    breakers = [((b.pool, b.backend), float(BREAKER_STATES.index(b.breaker))) for b in fleet]
    yield _gauge("tidegate_backend_breaker_state", breakers)
    yield _gauge("tidegate_backend_ttft_error_seconds", [((b.pool, b.backend), b.residual_s) for b in fleet if b.residual_s])
    yield from (_gauge(name, rows) for name, rows in limit_rows(fleet))


def _ledger(scrape: Scrape) -> Iterator[Metric]:
    """The gauges of the usage ledger; no samples where usage is not recorded."""
    full = [worker.ledger.full for worker in scrape.workers if worker.ledger is not None]
    yield _gauge("tidegate_ledger_full", [((), float(any(full)))] if full else [])
    state = scrape.booking
    yield _gauge("tidegate_ledger_waiting_bytes", [((), float(state.waiting_bytes))] if state else [])
    yield _gauge("tidegate_ledger_lag_seconds", [((), state.lag_s)] if state else [])
    yield _gauge("tidegate_ledger_database_up", [((), float(not state.away))] if state else [])
    words = ("booked", "lost", "crowded", "repeated", "refused", "damaged") if state else ()
    yield _counter("tidegate_ledger_booked_total", [((word,), getattr(state, word)) for word in words])


def _limits(workers: Sequence[WorkerSnapshot]) -> Iterator[Metric]:
    states = [worker.limits for worker in workers if worker.limits is not None]
    reconciled = [limits.reconciled for limits in states if limits.reconciled is not None]
    figures: dict[str, float | None] = {
        "degraded": max((float(limits.degraded) for limits in states), default=None),
        "degraded_seconds": max((limits.degraded_s for limits in states), default=None),
        "undelivered_settlements": float(sum(limits.undelivered for limits in states)) if states else None,
        "open_holds": float(sum(limits.open_holds for limits in states)) if states else None,
        "unread": max((float(comparison.unread) for comparison in reconciled), default=None),
        "drift_ratio": max((comparison.drift for comparison in reconciled), default=None),
    }
    for name, figure in figures.items():
        yield _gauge(f"tidegate_limits_{name}", [] if figure is None else [((), figure)])


def _counter(name: str, rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    text, labels = COUNTERS[name]
    metric = CounterMetricFamily(name, text, labels=labels)
    for values, number in rows:
        metric.add_metric(values, number)
    return metric


def _process_counters(scrape: Scrape) -> Iterator[Metric]:
    slots = scrape.supervision.slots if scrape.supervision else ()
    yield _counter("tidegate_worker_restarts_total", [((slot.name.removeprefix("worker-"),), slot.restarts) for slot in slots])
    opens = [((backend.pool, backend.backend), backend.breaker_opens) for backend in fleet_seen(scrape.workers)[:MAX_SERIES]]
    yield _counter("tidegate_backend_breaker_opens_total", opens)
    own = chain(rollout_counts(scrape.rollouts), alert_counts(scrape.alerts), request_log_counts(scrape.request_log))
    for name, counts in chain(own, process_counts(scrape.processes)):
        yield _counter(name, counts)
    yield _counter("tidegate_access_log_dropped_total", [((), scrape.totals.access_log_dropped)])
