"""Counts how requests waited for room on a backend, what they were given instead and whether promises were kept; for `Metrics`, which owns
the cells."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from gateway.degrading import STEPS
from gateway.queueing.refusals import REFUSALS, SERVED
from gateway.record import Record
from gateway.telemetry.cells import Cells, model_label
from gateway.telemetry.families import DEGRADED, DURATION_BOUNDS_S, FALLBACKS, PROMISED, PULLED_BACK, QUEUE_REFUSED, QUEUE_WAIT
from policies.fallback import CONDITIONS

CONDITION_AT: Final[Mapping[str, int]] = {on: at for at, on in enumerate(CONDITIONS)}


def count_wait(cells: Mapping[str, Cells], record: Record, pool: str) -> None:
    """One request that waited, or was refused to."""
    key = (pool, record.priority_class)
    if record.pulled_back:
        cells[PULLED_BACK.name].cell(key)[0] += 1
    if record.queued == SERVED:
        waits = cells[QUEUE_WAIT.name].cell(key)
        waits[bisect_left(DURATION_BOUNDS_S, record.queue_s)] += 1
        waits[-1] += record.queue_s
    elif record.queued in REFUSALS:
        cells[QUEUE_REFUSED.name].cell(key)[REFUSALS.index(record.queued)] += 1


def count_steps(cells: Mapping[str, Cells], record: Record, models: frozenset[str]) -> None:
    """One request that went down its tenant's ladder, under the model that it asked for."""
    model = model_label(record.asked_model or record.model, models)
    for step in record.steps:
        cells[DEGRADED.name].cell((model,))[STEPS.index(step.partition("=")[0])] += 1


def count_policy(cells: Mapping[str, Cells], record: Record, models: frozenset[str]) -> None:
    """One request that other models were tried for, or whose tenant was promised something."""
    for promise, met in record.promises:
        cells[PROMISED.name].cell((model_label(record.model, models), promise))[not met] += 1
    for one in record.fell_back:
        if one.to:
            cells[FALLBACKS.name].cell((model_label(one.model, models), model_label(one.to, models)))[CONDITION_AT[one.on]] += 1
