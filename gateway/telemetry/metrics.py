"""Counts finished requests. One `Metrics` per worker process; `observe` reads each closed Record once.

On the hot path there are only dicts, lists and `bisect`: how numbers become Prometheus text is `telemetry.exposition`,
which runs in the admin process. Knows nothing of HTTP, sockets or who asks for a snapshot.

Bounds (requirement R38): label values come from closed sets or bounded name sets, and every family has a ceiling of
`MAX_SERIES` exposed series. At the ceiling the least important labels become `_other`; nothing is refused or lost.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from backends.lora_loader import LoadDone
from gateway.story import OK, Record
from gateway.telemetry.families import (
    ATTEMPTS,
    CLOSINGS,
    DURATION,
    DURATION_BOUNDS_S,
    ENDPOINTS,
    FAMILIES,
    HOLDS,
    INTER_TOKEN,
    KV_BATCHES,
    KV_GAPS,
    LORA_CALL_WORDS,
    LORA_CALLS,
    LORA_REQUESTS,
    MAX_SERIES,
    NONE,
    OTHER,
    OUTCOMES,
    OVERHEAD,
    OVERHEAD_BOUNDS_S,
    REQUESTS,
    STATUS_CLASSES,
    TOKENS,
    TPOT,
    TPOT_BOUNDS_S,
    TTFT,
    TTFT_BOUNDS_S,
    Family,
)

MAX_NAMES: Final = 500
"""Distinct models, pools, backends, adapters and tenants that get a label value of their own."""
MAX_LABEL_CHARS: Final = 128
"""Characters kept of a label value; longer names would let one tenant's choice of name fill the scrape."""
MAX_BOUND: Final = 4096
"""Label combinations whose cells are looked up with one dict access. A cache: when full it is emptied and refilled."""
SETTLED: Final = "settle"
_CLOSING_AT: Final = {word: at for at, word in enumerate(CLOSINGS)}


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """The numbers of one process at one moment, or the sum of several. `families`: name -> (label values, cell) rows."""

    families: dict[str, list[tuple[tuple[str, ...], list[float]]]] = {}
    in_flight: int = 0
    connections: int = 0
    access_log_dropped: int = 0


class Cells:
    """The cells of one family, never more than `max_series` exposed series."""

    __slots__ = ("_family", "_rooms", "cells")

    def __init__(self, family: Family, max_series: int = MAX_SERIES) -> None:
        self._family = family
        self.cells: dict[tuple[str, ...], list[float]] = {}
        usable = max(max_series // family.series - family.closed_combinations, 0)
        open_labels = len(family.labels)
        # Each label kept costs a share of the room, so that a flood of tenants (last label) cannot take the place of
        # models (first label): 75 % of the room for full detail, the rest for the collapsed combinations.
        self._rooms = [usable - usable * kept // (4 * open_labels) if open_labels else usable for kept in range(open_labels + 1)]

    def cell(self, labels: tuple[str, ...]) -> list[float]:
        """The cell for these label values, made if there is room, else that of a coarser combination."""
        open_labels = len(self._family.labels)
        for kept in range(open_labels, -1, -1):
            key = labels if kept == open_labels else labels[:kept] + (OTHER,) * (open_labels - kept) + labels[open_labels:]
            found = self.cells.get(key)
            if found is not None:
                return found
            # kept == 0 needs no room check: only closed combinations are left, and those were reserved.
            if kept == 0 or len(self.cells) < self._rooms[kept]:
                made = self.cells[key] = [0] * self._family.width
                return made
        raise AssertionError("unreachable: kept == 0 always returns")

    def rows(self) -> list[tuple[tuple[str, ...], list[float]]]:
        """A copy of every cell that has counted something, with its label values."""
        return [(labels, list(cell)) for labels, cell in self.cells.items() if any(cell)]


_Bound = tuple[
    list[float], list[float], list[float], list[float], list[float], list[float], list[float], list[float] | None
]  # fmt: skip


class Metrics:
    """The counters of one worker. Not thread-safe: the event loop's thread owns it.

    Args:
        models: public model names that get a label of their own; see `know`.
        max_series: ceiling of exposed series per family.
    """

    __slots__ = ("_backends", "_bound", "_cells", "_holds", "_loras", "_models", "_pools", "_tenants", "connections", "in_flight")

    def __init__(self, models: Iterable[str] = (), max_series: int = MAX_SERIES) -> None:
        self.in_flight = 0
        """Requests begun and not closed; written by the edge, so that the hot path has no call for it."""
        self.connections = 0
        """Open connections of callers; written by the edge."""
        self._cells = {family.name: Cells(family, max_series) for family in FAMILIES}
        self._holds = self._cells[HOLDS.name].cell(())
        self._bound: dict[tuple[str, str, str, str, str, str, int], _Bound] = {}
        self._models: frozenset[str] = frozenset()
        self._pools: set[str] = set()
        self._backends: set[str] = set()
        self._tenants: set[str] = set()
        self._loras: set[str] = set()
        self.know(models)

    def know(self, models: Iterable[str]) -> None:
        """Sets the model names that get a label of their own (the first `MAX_NAMES`); call when the policy changes."""
        self._models = frozenset(islice(models, MAX_NAMES))
        self._bound.clear()

    def observe(self, record: Record) -> None:
        """Counts one finished request. Costs about 1 us plain and 2 us streamed; never raises on odd label values."""
        key = (
            record.model, record.endpoint, record.outcome, record.tenant, record.pool, record.backend, record.status
        )  # fmt: skip
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bind(key)
        requests, duration, overhead, ttft, inter_token, tpot, tokens, attempts = bound
        requests[0] += 1
        value = record.duration_s
        duration[bisect_left(DURATION_BOUNDS_S, value)] += 1
        duration[-1] += value
        value = record.overhead_s
        overhead[bisect_left(OVERHEAD_BOUNDS_S, value)] += 1
        overhead[-1] += value
        if attempts is not None and record.attempts:
            attempts[0] += 1
        for backend in record.failed:
            self._attempt_failed(record.pool, backend)
        if record.lora:
            names = (_named(record.lora, self._loras), _named(record.pool, self._pools))
            self._cells[LORA_REQUESTS.name].cell(names)[record.outcome != OK] += 1
        if record.closing:
            at = _CLOSING_AT.get(record.closing)
            if at is not None:
                self._holds[at] += 1
        usage = record.usage
        if record.closing == SETTLED:  # engines' own counts; what was estimated is in the log
            tokens[0] += usage.prompt_tokens
            tokens[1] += usage.cached_tokens
            tokens[2] += usage.completion_tokens
            tokens[3] += usage.reasoning_tokens
        first = record.ttft_s
        if first is None:
            return
        ttft[bisect_left(TTFT_BOUNDS_S, first)] += 1
        ttft[-1] += first
        if record.gaps and record.decode_s is not None:
            self._observe_gaps(record.gaps, record.decode_s, usage.completion_tokens, inter_token, tpot)

    @staticmethod
    def _observe_gaps(gaps: tuple[int, ...], decode_s: float, completion_tokens: int, inter_token: list[float], tpot: list[float]) -> None:
        for at, count in enumerate(gaps):
            if count:
                inter_token[at] += count
        inter_token[-1] += decode_s  # the gaps add up to exactly first-to-last
        if completion_tokens > 1:
            per_token = decode_s / (completion_tokens - 1)
            tpot[bisect_left(TPOT_BOUNDS_S, per_token)] += 1
            tpot[-1] += per_token

    def _attempt_failed(self, pool: str, backend: str) -> None:
        """Counts an attempt that was made good by another backend; the last attempt is counted with its request."""
        self._cells[ATTEMPTS.name].cell((_named(pool, self._pools), _named(backend, self._backends)))[0] += 1

    def observe_load(self, done: LoadDone) -> None:
        """Counts one load or unload of an adapter."""
        names = (_named(done.backend, self._backends), _named(done.served, self._loras))
        word = f"{done.act}_failed" if done.why else done.act
        self._cells[LORA_CALLS.name].cell(names)[LORA_CALL_WORDS.index(word)] += 1

    def count_kv_events(self, pool: str, backend: str, batches: int, gaps: int) -> None:
        """Counts what a backend published."""
        if batches or gaps:
            labels = (_named(pool, self._pools), _named(backend, self._backends))
            self._cells[KV_BATCHES.name].cell(labels)[0] += batches
            self._cells[KV_GAPS.name].cell(labels)[0] += gaps

    def snapshot(self, access_log_dropped: int = 0) -> MetricsSnapshot:
        """A copy of all numbers; `access_log_dropped` comes from the access log of the same process."""
        rows = {name: cells.rows() for name, cells in self._cells.items()}
        return MetricsSnapshot(rows, self.in_flight, self.connections, access_log_dropped)

    def _bind(self, key: tuple[str, str, str, str, str, str, int]) -> _Bound:
        name, path, word, owner, pool_id, backend_id, status = key
        model = NONE if not name else name[:MAX_LABEL_CHARS] if name in self._models else OTHER
        endpoint = NONE if not path else path if path in ENDPOINTS else OTHER
        outcome = word if word in OUTCOMES else OTHER
        status_class = STATUS_CLASSES[status // 100 - 1] if 100 <= status < 600 else OTHER
        tenant, pool = _named(owner, self._tenants), _named(pool_id, self._pools)
        cells = self._cells
        bound = (
            cells[REQUESTS.name].cell((model, endpoint, outcome, status_class)),
            cells[DURATION.name].cell((model, endpoint)),
            cells[OVERHEAD.name].cell((endpoint,)),
            cells[TTFT.name].cell((model, pool)),
            cells[INTER_TOKEN.name].cell((model, pool)),
            cells[TPOT.name].cell((model, pool)),
            cells[TOKENS.name].cell((model, tenant)),
            cells[ATTEMPTS.name].cell((pool, _named(backend_id, self._backends))) if backend_id else None,
        )
        if len(self._bound) >= MAX_BOUND:
            self._bound.clear()
        self._bound[key] = bound
        return bound


def _named(value: str, seen: set[str]) -> str:
    """The label for a name of ours: itself while fewer than `MAX_NAMES` are known, then `_other`."""
    if not value:
        return NONE
    value = value[:MAX_LABEL_CHARS]
    if value not in seen:
        if len(seen) >= MAX_NAMES:
            return OTHER
        seen.add(value)
    return value


def merge(snapshots: Iterable[MetricsSnapshot], max_series: int = MAX_SERIES) -> MetricsSnapshot:
    """The sum of several processes' numbers, under the same ceiling. Rows of unknown families or shapes are skipped:
    during a rolling restart a worker of another version may answer."""
    totals = {family.name: Cells(family, max_series) for family in FAMILIES}
    in_flight = connections = dropped = 0
    for snapshot in snapshots:
        in_flight += snapshot.in_flight
        connections += snapshot.connections
        dropped += snapshot.access_log_dropped
        for family in FAMILIES:
            for labels, cell in snapshot.families.get(family.name, ()):
                if len(cell) != family.width or len(labels) != len(family.labels) + len(family.closed):
                    continue
                total = totals[family.name].cell(labels)
                for at, number in enumerate(cell):
                    total[at] += number
    return MetricsSnapshot({name: cells.rows() for name, cells in totals.items()}, in_flight, connections, dropped)
