"""The gauges of each backend's concurrency limit: names, texts and samples. Backends without a limit have no samples."""

from collections.abc import Iterable, Iterator
from typing import Final

from gateway.worker_state import BackendState

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
