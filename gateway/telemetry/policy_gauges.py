"""Gauges of the active policies."""

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.worker_state import WorkerSnapshot

POLICY_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_policies_refused": ("Problems for which the policy files as they are now are not in force; of several workers the most.", ()),
    "tidegate_policies_loaded_timestamp_seconds": ("When the policies in force were read; of several workers the one that did first.", ()),
}

Rows = list[tuple[tuple[str, ...], float]]


def policy_rows(workers: Sequence[WorkerSnapshot]) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge; none before a worker has loaded its policies."""
    loaded = [worker.policies for worker in workers if worker.policies.digest]
    if not loaded:
        return
    yield "tidegate_policies_refused", [((), float(max(policies.problem_count for policies in loaded)))]
    yield "tidegate_policies_loaded_timestamp_seconds", [((), min(policies.loaded_unix for policies in loaded))]
