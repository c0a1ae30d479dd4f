"""The numbers of one process as a value that other processes read, and the sum of several of them.

A worker encodes its numbers in slices (`slices`) and lets its event loop run between two of them, because all of them at once, with every
family at its ceiling, would hold the loop for tens of milliseconds.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, cast

import msgspec

from gateway.telemetry.cells import Cells
from gateway.telemetry.exemplars import ExemplarRows, latest
from gateway.telemetry.families import FAMILIES, MAX_SERIES

CellRows = list[tuple[tuple[str, ...], list[float]]]
"""Label values and numbers of the cells of a family."""


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """The numbers of one process at one moment, or the sum of several. `families` has the rows of each family by its name."""

    families: dict[str, CellRows] = {}
    exemplars: dict[str, ExemplarRows] = {}
    """By the names of families that have any."""
    in_flight: int = 0
    connections: int = 0
    access_log_dropped: int = 0


SLICE_CELLS: Final = 1000
"""Cells that are copied and encoded at a time, and a family more at most: some 0.2 ms of one core (docs/numbers.md)."""


class FamilyNumbers(NamedTuple):
    """The numbers of one family when they were copied."""

    name: str
    rows: CellRows
    exemplars: ExemplarRows


def slices(families: Iterable[FamilyNumbers], rest: MetricsSnapshot) -> Iterator[MetricsSnapshot | None]:
    """Copy and encode the families, at most `SLICE_CELLS` cells and one family for each step.

    Args:
        families: copied one by one, as the steps come to them.
        rest: everything but the families.

    Yields:
        None after each slice but the last one; then the snapshot, whose families are encoded already, so that encoding it costs a copy.
    """
    encoded, marked, cells = {}, {}, 0
    for family in families:
        encoded[family.name] = msgspec.Raw(msgspec.msgpack.encode(family.rows))
        cells += len(family.rows)
        if family.exemplars:
            marked[family.name] = msgspec.Raw(msgspec.msgpack.encode(family.exemplars))
            cells += sum(len(found) for _, found in family.exemplars)
        if cells >= SLICE_CELLS:
            cells = 0
            yield None
    yield msgspec.structs.replace(rest, families=cast("dict[str, CellRows]", encoded), exemplars=cast("dict[str, ExemplarRows]", marked))


def merge(snapshots: Iterable[MetricsSnapshot], max_series: int = MAX_SERIES) -> MetricsSnapshot:
    """The sum of several processes' numbers, under the same ceiling. Rows of unknown families or shapes are skipped:
    during a rolling restart a worker of another version may answer."""
    totals = {family.name: Cells(family, max_series) for family in FAMILIES}
    in_flight = connections = dropped = 0
    snapshots = list(snapshots)
    for snapshot in snapshots:
        in_flight += snapshot.in_flight
        connections += snapshot.connections
        dropped += snapshot.access_log_dropped
        for family in FAMILIES:
            for labels, cell in snapshot.families.get(family.name, ()):
                if len(cell) != family.width or len(labels) != len(family.labels) + len(family.closed):
                    continue
                total = totals[family.name].cell(labels)
                for at, number in enumerate(cell):
                    total[at] += number
    marked = dict.fromkeys(name for snapshot in snapshots for name in snapshot.exemplars if name in totals)
    exemplars = {
        name: [row for row in latest(snapshot.exemplars.get(name, []) for snapshot in snapshots) if row[0] in totals[name].cells]
        for name in marked
    }
    return MetricsSnapshot({name: cells.rows() for name, cells in totals.items()}, exemplars, in_flight, connections, dropped)
