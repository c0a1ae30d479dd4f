"""What the processes of this gateway use: processor, memory, open files, by the process's name. Read from /proc by the admin process while
it answers a scrape; no series where there is no /proc.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")

PROCESS_COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_process_cpu_seconds_total": ("Processor time of the process, of user and system together.", ("process",)),
}
PROCESS_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_process_resident_memory_bytes": ("Memory of the process that is in use, shared pages counted whole.", ("process",)),
    "tidegate_process_open_fds": ("Open file descriptors of the process, connections counted.", ("process",)),
    "tidegate_process_max_fds": ("File descriptors that the process may have open.", ("process",)),
    "tidegate_process_threads": ("Threads of the process.", ("process",)),
    "tidegate_process_start_time_seconds": ("When the process began, seconds since the epoch.", ("process",)),
}

Rows = list[tuple[tuple[str, ...], float]]


class ProcessUse(msgspec.Struct, frozen=True):
    """One process at one moment."""

    cpu_s: float
    resident_bytes: int
    threads: int
    started_unix: float
    open_fds: int | None = None
    """None where the kernel does not let us look."""
    max_fds: int | None = None
    """None where there is no bound."""


def use_of(pid: int, proc: Path = PROC) -> ProcessUse | None:
    """The use of one process; None when it is gone, or there is no /proc."""
    home = proc / str(pid)
    try:
        # the name of the program is in brackets and may hold anything; what follows it are numbers
        stat = (home / "stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return ProcessUse(
            (int(stat[11]) + int(stat[12])) / ticks,
            int(stat[21]) * os.sysconf("SC_PAGE_SIZE"),
            int(stat[17]),
            _booted_unix(proc) + int(stat[19]) / ticks,
            _open_fds(home),
            _max_fds(home),
        )
    except (OSError, ValueError, IndexError):
        return None


def _booted_unix(proc: Path) -> int:
    for line in (proc / "stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    raise ValueError("no btime")


def _open_fds(home: Path) -> int | None:
    try:
        # Linux 6.2 and newer say the number as the folder's size; older ones have to be listed
        return (home / "fd").stat().st_size or len(os.listdir(home / "fd"))
    except OSError:
        return None


def _max_fds(home: Path) -> int | None:
    for line in (home / "limits").read_text().splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else None
    return None


def uses(named: Iterable[tuple[str, int]], proc: Path = PROC) -> dict[str, ProcessUse]:
    """The use of each process by its name, without those that are gone. Of two with one name the first counts."""
    found: dict[str, ProcessUse] = {}
    for name, pid in named:
        if name not in found and (use := use_of(pid, proc)) is not None:
            found[name] = use
    return found


def process_counts(used: Mapping[str, ProcessUse]) -> Iterator[tuple[str, Rows]]:
    """Samples by counter."""
    yield "tidegate_process_cpu_seconds_total", [((name,), use.cpu_s) for name, use in used.items()]


def process_rows(used: Mapping[str, ProcessUse]) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge."""
    yield "tidegate_process_resident_memory_bytes", [((name,), float(use.resident_bytes)) for name, use in used.items()]
    yield "tidegate_process_open_fds", [((name,), float(use.open_fds)) for name, use in used.items() if use.open_fds is not None]
    yield "tidegate_process_max_fds", [((name,), float(use.max_fds)) for name, use in used.items() if use.max_fds is not None]
    yield "tidegate_process_threads", [((name,), float(use.threads)) for name, use in used.items()]
    yield "tidegate_process_start_time_seconds", [((name,), use.started_unix) for name, use in used.items()]
