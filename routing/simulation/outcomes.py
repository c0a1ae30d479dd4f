"""The outcome of every request of one run, in columns."""

from enum import IntEnum

import msgspec


class RequestEnd(IntEnum):
    """How a request ended."""

    PENDING = 0
    DONE = 1
    REFUSED = 2
    """No engine could take it, or its tenant's limit was reached."""
    FAILED = 3
    """The request's engine died after the first token, or while no other engine was up."""


class Outcomes(msgspec.Struct):
    """One value per turn of the workload, in its order; times in seconds."""

    arrived: list[float]
    first: list[float]
    ended: list[float]
    cached: list[int]
    predicted: list[float]
    engine: list[int]
    """Number of the engine that answered; -1 for none."""
    state: list[RequestEnd]
    preemptions: int = 0
    retries: int = 0
    finished_at: float = 0.0
    """When the last request ended."""
    kv_readings: int = 0
    """How often an engine's cache was looked at, all engines together."""
    kv_used: float = 0.0
    """The sum of the shares of the cache in use that were seen then."""
    kv_peak: float = 0.0
    """The largest of them."""


def none_yet(count: int) -> Outcomes:
    """Columns for `count` turns, all pending."""
    return Outcomes([0.0] * count, [0.0] * count, [0.0] * count, [0] * count, [0.0] * count, [-1] * count, [RequestEnd.PENDING] * count)
