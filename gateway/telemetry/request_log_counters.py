"""Counters of the request log: finished requests that it lost, and what became of those at its further sinks. No series where it is off.

Size: one source of figures, as `alert_counters`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gateway.telemetry.otlp import RESULTS

LOST: Final = "tidegate_request_log_lost_total"
AT_SINKS: Final = "tidegate_request_log_sink_total"
REQUEST_LOG_COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    LOST: ("Finished requests that the request log did not keep.", ()),
    AT_SINKS: ("Finished requests by what became of them at another sink of the request log.", ("sink", "result")),
}

Rows = list[tuple[tuple[str, ...], float]]


class RequestLogCounts(msgspec.Struct, frozen=True):
    """Numbers of finished requests since the admin process began."""

    lost: int
    """Those that the log did not keep."""
    sinks: Mapping[str, tuple[int, int, int, int]] = {}
    """What became of them at each sink, by `RESULTS`."""


def request_log_counts(counts: RequestLogCounts | None) -> Iterator[tuple[str, Rows]]:
    """Samples by counter."""
    if counts is not None:
        yield LOST, [((), float(counts.lost))]
        by_result = [(name, result, number) for name, row in counts.sinks.items() for result, number in zip(RESULTS, row, strict=True)]
        yield AT_SINKS, [((name, result), float(number)) for name, result, number in by_result]
