"""The numbers of one metric family by their label values, and the bounds of these values.

Bounds (requirement R38): label values come from closed sets or bounded name sets, and every family has a ceiling of
`MAX_SERIES` exposed series. At the ceiling the least important labels become `_other`; nothing is refused or lost.
"""

from typing import Final

from gateway.telemetry.families import MAX_SERIES, NONE, OTHER, Family

MAX_NAMES: Final = 500
"""Distinct models, pools, backends, adapters, tenants and guard rules that get a label value of their own."""
MAX_LABEL_CHARS: Final = 128
"""Characters kept of a label value; longer names would let one tenant's choice of name fill the scrape."""


class Cells:
    """The cells of one family, never more than `max_series` exposed series."""

    __slots__ = ("_capacities", "_family", "cells")

    def __init__(self, family: Family, max_series: int = MAX_SERIES) -> None:
        self._family = family
        self.cells: dict[tuple[str, ...], list[float]] = {}
        usable = max(max_series // family.series - family.closed_combinations, 0)
        open_labels = len(family.labels)
        # Each label that is kept costs a share of the cells, so that a flood of tenants (last label) cannot take the place of
        # models (first label): 75 % of the cells for full detail, the rest for the collapsed combinations.
        self._capacities = [
            usable - usable * kept_labels // (4 * open_labels) if open_labels else usable for kept_labels in range(open_labels + 1)
        ]

    def cell(self, labels: tuple[str, ...]) -> list[float]:
        """The cell for these label values, made if the ceiling allows it, else the cell of a coarser combination."""
        open_labels = len(self._family.labels)
        for kept_labels in range(open_labels, -1, -1):
            key = (
                labels
                if kept_labels == open_labels
                else labels[:kept_labels] + (OTHER,) * (open_labels - kept_labels) + labels[open_labels:]
            )
            cell = self.cells.get(key)
            if cell is not None:
                return cell
            # kept_labels == 0 needs no check: only closed combinations are left, and their cells are reserved.
            if kept_labels == 0 or len(self.cells) < self._capacities[kept_labels]:
                new_cell = self.cells[key] = [0] * self._family.width
                return new_cell
        raise AssertionError("unreachable: kept_labels == 0 always returns")

    def rows(self) -> list[tuple[tuple[str, ...], list[float]]]:
        """A copy of every cell that has counted something, with its label values."""
        return [(labels, list(cell)) for labels, cell in self.cells.items() if any(cell)]


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
