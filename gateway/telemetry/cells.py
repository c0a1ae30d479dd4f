"""The numbers of metric families by their label values, and what rarer things of a request add to them.

`Cells` are the numbers of one family. The functions below it count, for `telemetry.metrics.Metrics`: waits in the queue, degradations,
fallbacks and service levels (SLO), look-ups in the answer cache, and what guard rules said.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from cache.eligible import NOT_KEPT, SIMILAR_REASONS
from domain.usage import NO_USAGE
from gateway.guards.facts import GuardCount, GuardRecord
from gateway.queue.refusals import REFUSALS, SERVED
from gateway.record import Record
from gateway.request.degrade import STEPS
from gateway.telemetry.exemplars import Slots
from gateway.telemetry.families import (
    ANSWER_BOUNDS_TOKENS,
    CACHE_BYPASSED,
    CACHE_BYPASSES,
    CACHE_NOT_KEPT,
    CACHE_RESULTS,
    CACHE_SAVED,
    CACHE_SAVED_COST,
    CACHE_SIMILAR,
    DEGRADED,
    DURATION_BOUNDS_S,
    FALLBACKS,
    GOODPUT_REQUESTS,
    GOODPUT_TOKENS,
    GUARD_DIRECTIONS,
    GUARD_FAILURES,
    GUARD_FINDINGS,
    GUARD_MODES,
    GUARD_VERDICTS,
    GUARD_WORDS,
    LOOKED_UP,
    MAX_SERIES,
    NONE,
    OTHER,
    PROMISED,
    PULLED_BACK,
    QUEUE_REFUSED,
    QUEUE_WAIT,
    Family,
)
from policies.fallback import CONDITIONS

MAX_NAMES: Final = 500
"""Distinct models, pools, backends, adapters, tenants and guard rules that get a label value of their own."""
MAX_LABEL_CHARS: Final = 128
"""Characters kept of a label value; longer names would let one tenant's choice of name fill the scrape."""


class Cells:
    """The cells of one family, never more than `max_series` exposed series."""

    __slots__ = ("_capacities", "_family", "cells", "exemplars")

    def __init__(self, family: Family, max_series: int = MAX_SERIES) -> None:
        self._family = family
        self.cells: dict[tuple[str, ...], list[float]] = {}
        self.exemplars: dict[tuple[str, ...], Slots] = {}
        """The exemplars of histograms, by the labels of the cell."""
        usable = max(max_series // family.series - family.closed_combinations, 0)
        open_labels = len(family.labels)
        # Each label that is kept costs a share of the cells, so that a flood of tenants (last label) cannot take the place of
        # models (first label): 75 % of the cells for full detail, the rest for the collapsed combinations.
        self._capacities = [
            usable - usable * kept_labels // (4 * open_labels) if open_labels else usable for kept_labels in range(open_labels + 1)
        ]

    def cell(self, labels: tuple[str, ...]) -> list[float]:
        """The cell for these label values, made if the ceiling allows it, else the cell of a coarser combination."""
        cell = self.cells.get(labels)
        return self.cells[self._key(labels)] if cell is None else cell

    def slots(self, labels: tuple[str, ...]) -> Slots:
        """Where the exemplars of this cell are kept, one for each bucket."""
        return self.exemplars.setdefault(self._key(labels), [None] * (len(self._family.bounds) + 1))

    def _key(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The label values of the cell that counts these ones; the cell is made."""
        open_labels = len(self._family.labels)
        for kept_labels in range(open_labels, -1, -1):
            key = (
                labels
                if kept_labels == open_labels
                else labels[:kept_labels] + (OTHER,) * (open_labels - kept_labels) + labels[open_labels:]
            )
            if key in self.cells:
                return key
            # kept_labels == 0 needs no check: only closed combinations are left, and their cells are reserved.
            if kept_labels == 0 or len(self.cells) < self._capacities[kept_labels]:
                self.cells[key] = [0] * self._family.width
                return key
        raise AssertionError("unreachable: kept_labels == 0 always returns")

    def rows(self) -> list[tuple[tuple[str, ...], list[float]]]:
        """A copy of every cell that has counted something, with its label values."""
        return [(labels, list(cell)) for labels, cell in self.cells.items() if any(cell)]

    def total(self) -> list[float]:
        """The sum of all cells."""
        return [sum(column) for column in zip(*self.cells.values(), strict=True)] or [0] * self._family.width


def named(value: str, seen: set[str]) -> str:
    """The label for a configured name: the name itself while fewer than `MAX_NAMES` are known, then `_other`."""
    if not value:
        return NONE
    value = value[:MAX_LABEL_CHARS]
    if value not in seen:
        if len(seen) >= MAX_NAMES:
            return OTHER
        seen.add(value)
    return value


def model_label(name: str, known: frozenset[str]) -> str:
    """The label for a public model name: the name itself where the configuration has it, else `_other`."""
    return NONE if not name else name[:MAX_LABEL_CHARS] if name in known else OTHER


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


def count_policy(cells: Mapping[str, Cells], record: Record, models: frozenset[str], tenant: str) -> None:
    """Count a request that fell back to other models, or whose tenant has service levels."""
    model = model_label(record.model, models)
    for promise, met in record.promises:
        cells[PROMISED.name].cell((model, promise))[not met] += 1
    if record.promises:
        missed = not all([met for _, met in record.promises])
        cells[GOODPUT_REQUESTS.name].cell((model, tenant))[missed] += 1
        cells[GOODPUT_TOKENS.name].cell((model, tenant))[missed] += record.usage.completion_tokens
    for step in record.fell_back:
        if step.to:
            cells[FALLBACKS.name].cell((model_label(step.model, models), model_label(step.to, models)))[CONDITION_AT[step.on]] += 1


def count_answer(answers: list[float], lengths: list[float], record: Record) -> None:
    """Count a whole answer that an engine generated: whether the model or a filter declined to give it, and how long it is."""
    answers[record.declined] += 1
    tokens = record.usage.completion_tokens
    lengths[bisect_left(ANSWER_BOUNDS_TOKENS, tokens)] += 1
    lengths[-1] += tokens


_RESULT_AT: Final[Mapping[str, int]] = {result: at for at, result in enumerate(CACHE_RESULTS)}
_SIMILAR_AT: Final[Mapping[str, int]] = {reason: at for at, reason in enumerate(SIMILAR_REASONS)}
_BYPASS_AT: Final[Mapping[str, int]] = {f"bypass:{reason}": at for at, reason in enumerate(CACHE_BYPASSES)}


def count_cache(cells: Mapping[str, Cells], record: Record, tenant: str) -> None:
    """Count a request of a tenant whose policy has an answer cache."""
    if (at := _RESULT_AT.get(record.cache)) is not None:
        cells[LOOKED_UP.name].cell((tenant,))[at] += 1
    elif (at := _BYPASS_AT.get(record.cache)) is not None:
        cells[CACHE_BYPASSED.name].cell((tenant,))[at] += 1
    if record.not_kept:
        cells[CACHE_NOT_KEPT.name].cell((tenant,))[NOT_KEPT.index(record.not_kept)] += 1
    if record.resembled:
        cells[CACHE_SIMILAR.name].cell((tenant,))[_SIMILAR_AT[record.resembled.partition(":")[0]]] += 1
    if record.saved is not NO_USAGE:
        saved = cells[CACHE_SAVED.name].cell((tenant,))
        saved[0] += record.saved.prompt_tokens
        saved[1] += record.saved.completion_tokens
        cells[CACHE_SAVED_COST.name].cell((tenant,))[0] += record.saved_nanousd


_GUARD_WORD_AT: Final[Mapping[str, int]] = {word: at for at, word in enumerate(GUARD_WORDS)}
_GUARD_MODES: Final = frozenset(GUARD_MODES)
_GUARD_DIRECTIONS: Final = frozenset(GUARD_DIRECTIONS)


def count_guards(cells: Mapping[str, Cells], said: GuardRecord, tenant: str, rules: set[str]) -> None:
    """Count what guard rules said of a request and its answer.

    Args:
        rules: the ids of rules that have a label of their own. Policies bound them; a tenant that renames its rules again and again
            would still make new ones.
    """
    cells[GUARD_VERDICTS.name].cell((tenant,))[_GUARD_WORD_AT[said.word]] += 1
    for found in said.counts:
        count_finding(cells, found, tenant, rules)
    for rule in said.failed:
        cells[GUARD_FAILURES.name].cell((tenant, named(rule, rules)))[0] += 1


def count_finding(cells: Mapping[str, Cells], found: GuardCount, tenant: str, rules: set[str]) -> None:
    """Count findings of a guard rule; `rules` as for `count_guards`."""
    mode = found.mode if found.mode in _GUARD_MODES else OTHER
    direction = found.direction if found.direction in _GUARD_DIRECTIONS else OTHER
    cells[GUARD_FINDINGS.name].cell((tenant, named(found.rule, rules), mode, direction))[0] += found.count
