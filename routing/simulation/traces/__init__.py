"""Trace readers, one file each; the reader of a trace file is chosen by its first line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from routing.simulation.traces import access_log, azure, claude_code, mooncake, servegen, usage, vtc_arena
from routing.simulation.traces.lines import TraceError, lines
from routing.simulation.turns import Dice, Workload

__all__ = ["READERS", "TraceError", "load"]

SUFFIXES: Final = (".jsonl", ".csv", ".log", ".jsonl.gz", ".csv.gz", ".log.gz", ".parquet")
"""Endings of the files that are read in a folder."""
MAX_SPAN_S: Final = 400 * 86_400
"""Seconds from first to last arrival at most: as long as the gateway keeps single requests. A longer trace has times in a wrong unit, and
its run would take for ever."""


class TraceReader(NamedTuple):
    """The reader of one kind of trace."""

    knows: Callable[[bytes], bool]
    read: Callable[[list[Path], Dice], Workload]


READERS: Final[Mapping[str, TraceReader]] = {
    "mooncake": TraceReader(mooncake.knows, mooncake.read),
    "azure": TraceReader(azure.knows, azure.read),
    "servegen": TraceReader(servegen.knows, servegen.read),
    "claude-code": TraceReader(claude_code.knows, claude_code.read),
    "vtc-arena": TraceReader(vtc_arena.knows, vtc_arena.read),
    "records": TraceReader(access_log.knows, access_log.read),
    "usage": TraceReader(usage.knows, usage.read),
}


def load(path: Path, dice: Dice) -> Workload:
    """The workload of a file, or of all files of a folder, which must be of one kind.

    Raises:
        TraceError: there is no request, the kind is unknown, or a line is invalid.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES) and not file.name.startswith("."))
        if not files:
            raise TraceError(f"{path}: has no file that ends with {', '.join(SUFFIXES)}")
    kinds = {file: _kind(file) for file in files}
    kind = kinds[files[0]]
    for file, other_kind in kinds.items():
        if other_kind != kind:
            raise TraceError(f"{file}:1: is {other_kind}, but {files[0].name} is {kind}; read one kind at a time")
    workload = READERS[kind].read(files, dice)
    if not workload.turns:
        raise TraceError(f"{path}: has no requests")
    last = max(workload.turns, key=lambda turn: turn.at_s)
    if last.at_s > MAX_SPAN_S:
        raise TraceError(f"{path}: goes on for {last.at_s / 86_400:.3g} days; at most {MAX_SPAN_S // 86_400} can be simulated")
    return workload


def _kind(file: Path) -> str:
    number, head = next(lines(file), (1, b""))
    if not head.strip():
        raise TraceError(f"{file}: is empty; a trace has a request in each line")
    for name, reader in READERS.items():
        if reader.knows(head):
            return name
    raise TraceError(f"{file}:{number}: is no trace that Tidegate reads; it reads {', '.join(READERS)} (docs/explanation/simulation.md)")
