"""Gauges of the issuers of JWTs: how many keys are known, and how old they are."""

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.telemetry.cells import MAX_LABEL_CHARS
from gateway.worker_state import WorkerSnapshot

ISSUER_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_jwks_keys": ("Keys of the issuer that tokens are verified with; of several workers the fewest.", ("issuer",)),
    "tidegate_jwks_age_seconds": ("Since the issuer's keys were read last; of several workers the longest.", ("issuer",)),
}

Rows = list[tuple[tuple[str, ...], float]]


def issuer_rows(workers: Sequence[WorkerSnapshot]) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge; an issuer that could never be read has no age."""
    states = [state for worker in workers for state in worker.issuers]
    names = sorted({state.issuer for state in states})
    yield "tidegate_jwks_keys", [((name[:MAX_LABEL_CHARS],), float(min(s.keys for s in states if s.issuer == name))) for name in names]
    ages = {name: max((s.age_s for s in states if s.issuer == name and s.age_s is not None), default=None) for name in names}
    yield "tidegate_jwks_age_seconds", [((name[:MAX_LABEL_CHARS],), age_s) for name, age_s in ages.items() if age_s is not None]
