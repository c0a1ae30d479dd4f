"""The cells that numbers of one metric family are counted in, and the labels they have; both bounded."""

from typing import Final

from gateway.telemetry.families import MAX_SERIES, NONE, OTHER, Family

MAX_NAMES: Final = 500
"""Distinct models, pools, backends, adapters and tenants that get a label value of their own."""
MAX_LABEL_CHARS: Final = 128
"""Characters kept of a label value; longer names would let one tenant's choice of name fill the scrape."""


class Cells:
    """The cells of one family, never more than `max_series` exposed series."""

    __slots__ = ("_family", "_rooms", "cells")

    def __init__(self, family: Family, max_series: int = MAX_SERIES) -> None:
        self._family = family
        self.cells: dict[tuple[str, ...], list[float]] = {}
        usable = max(max_series // family.series - family.closed_combinations, 0)
        open_labels = len(family.labels)
        # Each label kept costs a share of the room, so that a flood of tenants (last label) cannot take the place of
        # models (first label): 75 % of the room for full detail, the rest for the collapsed combinations.
        self._rooms = [usable - usable * kept // (4 * open_labels) if open_labels else usable for kept in range(open_labels + 1)]

    def cell(self, labels: tuple[str, ...]) -> list[float]:
        """The cell for these label values, made if there is room, else that of a coarser combination."""
        open_labels = len(self._family.labels)
        for kept in range(open_labels, -1, -1):
            key = labels if kept == open_labels else labels[:kept] + (OTHER,) * (open_labels - kept) + labels[open_labels:]
            found = self.cells.get(key)
            if found is not None:
                return found
            # kept == 0 needs no room check: only closed combinations are left, and those were reserved.
            if kept == 0 or len(self.cells) < self._rooms[kept]:
                made = self.cells[key] = [0] * self._family.width
                return made
        raise AssertionError("unreachable: kept == 0 always returns")

    def rows(self) -> list[tuple[tuple[str, ...], list[float]]]:
        """A copy of every cell that has counted something, with its label values."""
        return [(labels, list(cell)) for labels, cell in self.cells.items() if any(cell)]


def named(value: str, seen: set[str]) -> str:
    """The label for a name of ours: itself while fewer than `MAX_NAMES` are known, then `_other`."""
    if not value:
        return NONE
    value = value[:MAX_LABEL_CHARS]
    if value not in seen:
        if len(seen) >= MAX_NAMES:
            return OTHER
        seen.add(value)
    return value


def model_label(name: str, known: frozenset[str]) -> str:
    """The label for a public model name: itself where the configuration has it."""
    return NONE if not name else name[:MAX_LABEL_CHARS] if name in known else OTHER
