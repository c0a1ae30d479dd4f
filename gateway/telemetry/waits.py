"""Counts how requests waited in the queue, which degradations and fallbacks they were given, and whether their service levels (SLO) were
met; for `Metrics`, which owns the cells."""

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
    """Count a request that waited in the queue, or was refused by it."""
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
    """Count the degradation steps that were applied to a request, under the model that it asked for."""
    model = model_label(record.asked_model or record.model, models)
    for step in record.steps:
        cells[DEGRADED.name].cell((model,))[STEPS.index(step.partition("=")[0])] += 1


def count_policy(cells: Mapping[str, Cells], record: Record, models: frozenset[str]) -> None:
    """Count a request that fell back to other models, or whose tenant has service levels."""
    for promise, met in record.promises:
        cells[PROMISED.name].cell((model_label(record.model, models), promise))[not met] += 1
    for step in record.fell_back:
        if step.to:
            cells[FALLBACKS.name].cell((model_label(step.model, models), model_label(step.to, models)))[CONDITION_AT[step.on]] += 1
