"""The table of metric families that finished requests feed: names, labels, buckets and their bounds. Values only.

How they are counted is `telemetry.metrics`, how they are written `telemetry.exposition`; what each means to an operator
is `docs/metrics.md`, which a test compares with this table.
"""

from typing import Final, Literal

import msgspec

from domain.ask import Endpoint
from domain.faults import Kind
from gateway.story import GAP_BOUNDS_S, OK

OTHER: Final = "_other"
"""The label value of everything beyond a bound, or outside a closed set."""
NONE: Final = "_none"
"""The label value of what a request never had (no pool was chosen, no key was known). Prometheus reads an empty value
as a missing label, which would make such series collide with aggregations by people."""

MAX_SERIES: Final = 2000
"""Exposed series per family, buckets counted, over all workers together. The figure of requirement R38."""

OUTCOMES: Final = frozenset({OK, *(kind.value for kind in Kind)})
ENDPOINTS: Final = frozenset({*(endpoint.value for endpoint in Endpoint), "/v1/models"})
STATUS_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")

TOKEN_TYPES: Final = ("prompt", "cached", "completion", "reasoning")
CLOSINGS: Final = ("settle", "estimate", "release")
LORA_RESULTS: Final = ("ok", "failed")
LORA_CALL_WORDS: Final = ("load", "load_failed", "unload", "unload_failed")

DURATION_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
"""From a cached model list to a long reasoning answer; roughly doubling, so quantiles are within a factor of 2."""
TTFT_BOUNDS_S: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 120.0)
"""Dense from 80 ms to 2 s, where service levels for the first token are set; 120 s is the largest deadline we allow."""
TPOT_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.8, 2.5)
"""Dense from 5 to 100 ms per token, the range between a small model alone and a large one at its batch limit."""
OVERHEAD_BOUNDS_S: Final = (
    0.00001, 0.00002, 0.00003, 0.00005, 0.000075, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005,
    0.001, 0.002, 0.005, 0.01, 0.025, 0.1,
)  # fmt: skip
"""From 10 us: the gateway's own share of a request is tens of microseconds, three decades below an engine's."""


class Family(msgspec.Struct, frozen=True):
    """One metric family. A cell is the list of numbers behind one combination of its labels.

    A counter's cell is `[n]`, or one number per value of `split`; a histogram's is one count per bucket (bounds, then
    +Inf) and the sum of the observed values last.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    """Most important first: at the ceiling the last of them becomes `_other` first."""
    closed: tuple[str, ...] = ()
    """Labels with a closed set of values; they follow `labels` and are never collapsed."""
    closed_combinations: int = 1
    kind: Literal["counter", "histogram"] = "counter"
    bounds: tuple[float, ...] = ()
    split_label: str = ""
    split: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Numbers per cell."""
        return len(self.bounds) + 2 if self.kind == "histogram" else len(self.split) or 1

    @property
    def series(self) -> int:
        """Exposed series per cell: a histogram has its buckets, `_sum` and `_count`."""
        return self.width + 1 if self.kind == "histogram" else self.width


REQUESTS: Final = Family(
    "tidegate_requests_total", "Finished requests by how they ended.", ("model", "endpoint"), ("outcome", "status_class"),
    closed_combinations=(len(OUTCOMES) + 1) * (len(STATUS_CLASSES) + 1),
)  # fmt: skip
DURATION: Final = Family(
    "tidegate_request_duration_seconds", "From the request's head to the end of its answer.", ("model", "endpoint"),
    kind="histogram", bounds=DURATION_BOUNDS_S,
)  # fmt: skip
OVERHEAD: Final = Family(
    "tidegate_overhead_seconds", "Time spent by the gateway itself; engines, queue and callers excluded.", ("endpoint",),
    kind="histogram", bounds=OVERHEAD_BOUNDS_S,
)  # fmt: skip
TTFT: Final = Family(
    "tidegate_time_to_first_token_seconds", "From the request's last byte to the first event of the answer.",
    ("model", "pool"), kind="histogram", bounds=TTFT_BOUNDS_S,
)  # fmt: skip
INTER_TOKEN: Final = Family(
    "tidegate_inter_token_seconds", "Gaps between the events of a streamed answer.", ("model", "pool"),
    kind="histogram", bounds=GAP_BOUNDS_S,
)  # fmt: skip
TPOT: Final = Family(
    "tidegate_time_per_output_token_seconds", "Per streamed answer: (last event - first event) / (completion tokens - 1).",
    ("model", "pool"), kind="histogram", bounds=TPOT_BOUNDS_S,
)  # fmt: skip
TOKENS: Final = Family(
    "tidegate_tokens_total", "Tokens as reported by engines; cached is part of prompt, reasoning part of completion.",
    ("model", "tenant"), split_label="type", split=TOKEN_TYPES,
)  # fmt: skip
ATTEMPTS: Final = Family(
    "tidegate_upstream_attempts_total", "Requests sent to a backend, those that failed over included.", ("pool", "backend")
)
HOLDS: Final = Family(
    "tidegate_hold_closings_total", "How reservations ended.", split_label="closing", split=CLOSINGS
)  # fmt: skip
LORA_REQUESTS: Final = Family(
    "tidegate_lora_requests_total", "Finished requests to models that are answered with an adapter.", ("lora", "pool"),
    split_label="result", split=LORA_RESULTS,
)  # fmt: skip
LORA_CALLS: Final = Family(
    "tidegate_lora_calls_total", "Adapters that engines were told to load or unload.", ("backend", "lora"),
    split_label="call", split=LORA_CALL_WORDS,
)  # fmt: skip
KV_BATCHES: Final = Family(
    "tidegate_backend_kv_event_batches_total", "Batches of KV events applied, over all workers.", ("pool", "backend")
)
KV_GAPS: Final = Family(
    "tidegate_backend_kv_event_gaps_total", "Times that batches of KV events were missing, over all workers.", ("pool", "backend")
)

FAMILIES: Final = (
    REQUESTS,
    DURATION,
    OVERHEAD,
    TTFT,
    INTER_TOKEN,
    TPOT,
    TOKENS,
    ATTEMPTS,
    HOLDS,
    LORA_REQUESTS,
    LORA_CALLS,
    KV_BATCHES,
    KV_GAPS,
)
