"""Exemplars: for a bucket of a histogram of requests, one request that fell into it, by the id of its trace.

A bucket keeps its exemplar for `KEPT_S`, so that a busy gateway writes few of them, and a rare slow request always gets to be one. Requests
without a trace cost nothing. They are shown in OpenMetrics alone.
"""

from collections.abc import Iterable, Mapping
from typing import Final

KEPT_S: Final = 10.0
"""Seconds for which a bucket keeps its exemplar: less than the usual 15 s between two scrapes, so that each scrape finds new ones."""

Exemplar = tuple[str, float, float]
"""The id of a trace, the observed value, and when it was, in seconds since the epoch."""
Slots = list[Exemplar | None]
"""One for each bucket of one cell."""
ExemplarRows = list[tuple[tuple[str, ...], list[tuple[int, Exemplar]]]]
"""By the labels of a cell: its exemplars, with the number of the bucket."""


def note(slots: Slots, bucket: int, trace_id: str, value: float, at_unix: float) -> None:
    """Make this request the bucket's exemplar, if it has none or an old one."""
    kept = slots[bucket]
    if kept is None or at_unix - kept[2] >= KEPT_S or at_unix < kept[2]:
        slots[bucket] = (trace_id, value, at_unix)


def rows_of(slots_by_labels: Mapping[tuple[str, ...], Slots]) -> ExemplarRows:
    """The exemplars of one family."""
    rows = []
    for labels, slots in slots_by_labels.items():
        found = [(at, exemplar) for at, exemplar in enumerate(slots) if exemplar is not None]
        if found:
            rows.append((labels, found))
    return rows


def latest(processes: Iterable[ExemplarRows]) -> ExemplarRows:
    """Of several processes' exemplars the last one for each bucket."""
    joined: dict[tuple[str, ...], dict[int, Exemplar]] = {}
    for rows in processes:
        for labels, found in rows:
            buckets = joined.setdefault(labels, {})
            for at, exemplar in found:
                if at not in buckets or buckets[at][2] < exemplar[2]:
                    buckets[at] = exemplar
    return [(labels, sorted(buckets.items())) for labels, buckets in joined.items()]
