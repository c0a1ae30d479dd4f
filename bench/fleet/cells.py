"""The cells of the grid: which there are, in which order they run, and the file that keeps the finished ones.

A cell is one run: a workload at a load, on a fleet behind so many replicas, with or without KV events, of one seed, under one policy.
A finished cell is one JSON line in a results file, so a grid that was stopped goes on where it was, and parts that ran on several machines
are joined by reading several files. Lines that other code or other capacities wrote do not count: figures of two states of the policies
cannot be compared.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
CODE: Final = ("domain", "routing", "bench/fleet")
"""The folders whose Python files decide what a cell's figures are."""
NOT_CODE: Final = frozenset({"__main__.py", "capacity.py", "cells.py", "report.py", "ratios.py", "holding.py"})
"""Files that choose, compare and print; figures do not depend on them."""


class Cell(msgspec.Struct, frozen=True):
    """What identifies a run."""

    workload: str
    load: float
    """Arrivals over the capacity of the workload's fleet."""
    replicas: int
    events: bool
    """Whether engines publish KV events."""
    seed: int
    policy: str
    part: str = "open"
    """`open`, or `sealed`: the last part of a trace, which nobody tunes on."""
    limit: int = 12_000
    """Requests at most."""

    @property
    def line(self) -> "Line":
        """What the policies of this cell's line have in common, but for the seed."""
        return Line(self.workload, self.load, self.replicas, self.events, self.part)


class Line(msgspec.Struct, frozen=True, order=True):
    """A row of the report: policies are compared on the same line only."""

    workload: str
    load: float
    replicas: int
    events: bool
    part: str

    def __str__(self) -> str:
        shown = f"{self.workload} @ {self.load:.0%}"
        if self.replicas > 1 or not self.events:
            shown += f", {self.replicas} replica{'s' * (self.replicas > 1)}, events {'on' if self.events else 'off'}"
        return shown if self.part == "open" else f"{shown}, {self.part}"


class Finished(msgspec.Struct, frozen=True):
    """A cell that has run."""

    cell: Cell
    code: str
    figures: dict[str, float]
    """`Figures` of the scored requests, by name."""
    bound: dict[str, float] = {}
    """What no policy can be better than; only in cells of the default policy."""
    notes: list[str] = []
    cpu_s: float = 0.0


def ordered(
    workloads: Sequence[str],
    loads: Sequence[float],
    variants: Sequence[tuple[int, bool]],
    seeds: Iterable[int],
    policies: Sequence[str],
    peers: Sequence[str],
    *,
    part: str,
    limit: int,
) -> Iterator[Cell]:
    """All cells in the order to run them: seed by seed, so that a grid that was stopped has whole lines with fewer seeds.

    Args:
        variants: pairs of replicas and events. With one replica and events all `policies` run, otherwise only `peers`.
    """
    for seed in seeds:
        for replicas, events in variants:
            for workload in workloads:
                for load in loads:
                    for policy in policies if (replicas, events) == (1, True) else peers:
                        yield Cell(workload, load, replicas, events, seed, policy, part, limit)


@cache
def code() -> str:
    """A short hash of the Python files and the measured capacities that decide what figures are."""
    digest = hashlib.sha256()
    for folder in CODE:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.name not in NOT_CODE:
                digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    capacities = ROOT / "bench" / "fleet" / "capacity.json"
    digest.update(capacities.read_bytes() if capacities.exists() else b"")
    return digest.hexdigest()[:12]


def read(files: Iterable[Path], code: str | None) -> dict[Cell, Finished]:
    """The finished cells of results files; a missing file has none. The line of a run that was killed while it wrote is left out.

    Args:
        code: leave out cells of other code; None takes all.

    Raises:
        ValueError: a line in the middle of a file is no finished cell.
    """
    found: dict[Cell, Finished] = {}
    for file in files:
        lines = file.read_bytes().split(b"\n") if file.exists() else []
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                one = msgspec.json.decode(line, type=Finished)
            except msgspec.DecodeError as error:
                if number == len(lines):
                    continue
                raise ValueError(f"{file}:{number}: is no finished cell ({error}); remove the line, and its cell runs again") from error
            if code in (None, one.code):
                found[one.cell] = one
    return found


def append(file: Path, finished: Finished) -> None:
    """Add a line. What a killed run had half written before it is cut off."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as out:
        end = out.seek(0, 2)
        if end:
            out.seek(0)
            whole = out.read().rfind(b"\n") + 1
            if whole != end:
                out.truncate(whole)
        out.write(msgspec.json.encode(finished) + b"\n")
