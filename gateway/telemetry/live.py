"""The figures of a worker that somebody looks at while they change: a few sums, many times smaller than a scrape.

A worker answers the question `LIVE_LINE` on its socket (`gateway.process.worker_link`) with a `WorkerLive`. `LiveFigures` joins the answers
of all workers into one `LiveSample` a second: rates since the sample before, quantiles over the last `WINDOW` samples. It runs in the admin
process and only while somebody listens; what nobody looks at costs nothing.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from domain.priority import WORDS
from gateway.fleet.view import fleet_seen
from gateway.placement.backend_state import BackendState
from gateway.process.snapshots import WorkerSnapshot
from gateway.queue.refusals import REFUSALS
from gateway.telemetry.families import (
    CACHE_RESULTS,
    CLASS_RESULTS,
    CLASSES,
    COST,
    DURATION,
    DURATION_BOUNDS_S,
    GUARD_VERDICTS,
    GUARD_WORDS,
    LOOKED_UP,
    OVERHEAD,
    OVERHEAD_BOUNDS_S,
    PROMISED,
    QUEUE_REFUSED,
    TOKEN_TYPES,
    TOKENS,
    TPOT,
    TPOT_BOUNDS_S,
    TTFT,
    TTFT_BOUNDS_S,
    Family,
)

LIVE_LINE: Final = b"live\n"
SUMMED: Final[tuple[Family, ...]] = (
    *(CLASSES, DURATION, OVERHEAD, TTFT, TPOT, TOKENS),
    *(COST, QUEUE_REFUSED, LOOKED_UP, GUARD_VERDICTS, PROMISED),
)
"""The families that are told, each as the sum over all its labels."""
WINDOW: Final = 30
"""Samples that quantiles and hit ratios are of: a quantile of one second's requests would jump with each of them."""
QUANTILES: Final = (0.5, 0.95, 0.99)

Sums = dict[str, list[float]]
"""By family, the sum of its cells."""


class WorkerLive(msgspec.Struct, frozen=True):
    """One worker's figures at one moment, counted since its start."""

    worker: WorkerSnapshot
    """Its state, without metrics."""
    in_flight: int
    connections: int
    sums: Sums


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles in milliseconds, by linear interpolation inside a histogram's bucket; None without requests."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class BackendLive(msgspec.Struct, frozen=True):
    """One backend now."""

    pool: str
    id: str
    state: str
    why: str
    url: str
    source: str
    in_flight: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    """Share of the engine's KV cache in use."""
    hit_ratio: float | None
    """Share of the prompt tokens of the last `WINDOW` samples that the engine found in its prefix cache; None where it does not say."""
    limit_requests: float | None
    """The adaptive concurrency limit that was found."""
    trust: float
    index_off: bool
    breaker: str
    ttft_error_s: float
    loras: tuple[str, ...]
    signals_age_s: float | None


class LiveSample(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway in one second. Rates are per second since the sample before; None in the first sample."""

    at_unix: float
    workers: int
    """Workers that answered."""
    in_flight: int
    connections: int
    waiting: dict[str, int]
    """Queued requests by class."""
    requests: dict[str, float] | None = None
    """Finished requests by result: `ok`, or the side of the failure."""
    tokens: dict[str, float] | None = None
    cost_usd: float | None = None
    cache: dict[str, float] | None = None
    guards: dict[str, float] | None = None
    queue_refused: float | None = None
    queue_reasons: dict[str, float] | None = None
    """Requests whose wait for room ended without it, or did not begin, by the reasons that occurred."""
    slo_met: float | None = None
    """Share of the service levels that were met within the last `WINDOW` samples; None without any."""
    ttft_ms: Quantiles = Quantiles()
    tpot_ms: Quantiles = Quantiles()
    duration_ms: Quantiles = Quantiles()
    overhead_ms: Quantiles = Quantiles()
    backends: tuple[BackendLive, ...] = ()


def quantiles(bounds: Sequence[float], counts: Sequence[float]) -> Quantiles:
    """Quantiles of a histogram, as Prometheus' `histogram_quantile` interpolates them.

    Args:
        bounds: upper bounds of the buckets in seconds; values above the last one count as that bound.
        counts: values in each bucket, one more than bounds.
    """
    total = sum(counts)
    if total <= 0:
        return Quantiles()
    found = []
    for share in QUANTILES:
        rank, below = share * total, 0.0
        value = bounds[-1]
        for at, count in enumerate(counts):
            if below + count >= rank and count > 0:
                lower = bounds[at - 1] if at else 0.0
                value = lower if at >= len(bounds) else lower + (bounds[at] - lower) * (rank - below) / count
                break
            below += count
        found.append(round(value * 1000, 3))
    return Quantiles(*found)


class LiveFigures:
    """Joins the answers of the workers, sample after sample."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, float], Sums] = {}
        self._window: deque[Sums] = deque(maxlen=WINDOW)
        self._hits: dict[str, deque[tuple[int, int]]] = {}
        """By backend, its counters of prompt tokens looked up and found."""
        self._at_unix = 0.0

    def sample(self, answers: Iterable[WorkerLive], at_unix: float) -> LiveSample:
        """The sample of this second.

        Args:
            answers: of the workers that answered.
            at_unix: when, seconds since the epoch.
        """
        lives = list(answers)
        workers = [live.worker for live in lives]
        took_s = at_unix - self._at_unix
        first = not self._at_unix
        self._at_unix = at_unix
        change = self._change(lives)
        if not first:
            self._window.append(change)
        recent = _sum(self._window)
        waiting = dict.fromkeys(WORDS, 0)
        for worker in workers:
            for queue in worker.queues:
                for word, count in zip(waiting, queue.waiting, strict=False):
                    waiting[word] += count

        def rates(family: Family, words: Sequence[str]) -> dict[str, float] | None:
            if first or took_s <= 0:
                return None
            return {word: round(count / took_s, 3) for word, count in zip(words, change[family.name], strict=True)}

        def rate(family: Family) -> float | None:
            return None if first or took_s <= 0 else sum(change[family.name]) / took_s

        met, missed = recent[PROMISED.name]
        cost, refused = rate(COST), rates(QUEUE_REFUSED, REFUSALS)
        return LiveSample(
            at_unix=round(at_unix, 3),
            workers=len({worker.index for worker in workers}),
            in_flight=sum(live.in_flight for live in lives),
            connections=sum(live.connections for live in lives),
            waiting=waiting,
            requests=rates(CLASSES, CLASS_RESULTS),
            tokens=rates(TOKENS, TOKEN_TYPES),
            cost_usd=None if cost is None else round(cost / 1e9, 9),
            cache=rates(LOOKED_UP, CACHE_RESULTS),
            guards=rates(GUARD_VERDICTS, GUARD_WORDS),
            queue_refused=rate(QUEUE_REFUSED),
            queue_reasons=None if refused is None else {word: each for word, each in refused.items() if each},
            slo_met=None if met + missed == 0 else met / (met + missed),
            ttft_ms=quantiles(TTFT_BOUNDS_S, recent[TTFT.name][:-1]),
            tpot_ms=quantiles(TPOT_BOUNDS_S, recent[TPOT.name][:-1]),
            duration_ms=quantiles(DURATION_BOUNDS_S, recent[DURATION.name][:-1]),
            overhead_ms=quantiles(OVERHEAD_BOUNDS_S, recent[OVERHEAD.name][:-1]),
            backends=self._backends(workers),
        )

    def _change(self, lives: Sequence[WorkerLive]) -> Sums:
        """What all workers counted since the sample before. A worker that is new counts from its first sample on."""
        change = _zeros()
        now = {(live.worker.pid, live.worker.started_at): live.sums for live in lives}
        for key, sums in now.items():
            before = self._last.get(key)
            if before is None:
                continue
            for name, total in change.items():
                old, new = before.get(name, ()), sums.get(name, ())
                if len(old) == len(new) == len(total):
                    for at, value in enumerate(new):
                        total[at] += max(value - old[at], 0.0)
        self._last = now
        return change

    def _backends(self, workers: Sequence[WorkerSnapshot]) -> tuple[BackendLive, ...]:
        seen = fleet_seen(workers)
        self._hits = {b.backend: self._hits.get(b.backend, deque(maxlen=WINDOW)) for b in seen}
        return tuple(self._backend(state) for state in seen)

    def _backend(self, state: BackendState) -> BackendLive:
        signals = state.signals
        ratio = None
        if signals is not None and signals.prefix_queries is not None and signals.prefix_hits is not None:
            counted = self._hits[state.backend]
            if counted and signals.prefix_queries < counted[-1][0]:
                counted.clear()  # the engine began anew
            counted.append((signals.prefix_queries, signals.prefix_hits))
            asked = counted[-1][0] - counted[0][0]
            ratio = None if asked <= 0 else round(min((counted[-1][1] - counted[0][1]) / asked, 1.0), 4)
        return BackendLive(
            pool=state.pool,
            id=state.backend,
            state=state.state,
            why=state.why,
            url=state.url,
            source=state.source,
            in_flight=state.in_flight,
            running=state.running_now,
            waiting=state.waiting_now,
            kv_usage=None if signals is None else signals.kv_usage,
            hit_ratio=ratio,
            limit_requests=None if state.limit is None else round(state.limit.requests, 1),
            trust=round(state.trust, 3),
            index_off=state.index_off,
            breaker=state.breaker,
            ttft_error_s=round(state.residual_s, 4),
            loras=state.loras,
            signals_age_s=None if state.reported_age_s is None else round(state.reported_age_s, 3),
        )


def _zeros() -> Sums:
    return {family.name: [0.0] * family.width for family in SUMMED}


def _sum(parts: Iterable[Mapping[str, Sequence[float]]]) -> Sums:
    total = _zeros()
    for part in parts:
        for name, values in part.items():
            into = total[name]
            for at, value in enumerate(values):
                into[at] += value
    return total
