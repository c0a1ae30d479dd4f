"""What is read of a gateway while it runs: memory of its worker, and everything that requests take and must give back."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SERIES = (
    "tidegate_in_flight_requests",
    "tidegate_connections",
    "tidegate_tasks",
    "tidegate_limits_open_holds",
    "tidegate_limits_undelivered_settlements",
)


class Held(NamedTuple):
    """What a worker holds at one moment."""

    sockets: int
    files: int
    """Beside those of SQLite."""
    databases: int
    """Files of SQLite: each connection of its pool has a thread and up to two files."""
    threads: int
    in_flight: int
    connections: int
    tasks: int
    holds: int
    undelivered: int
    leases: int
    """Concurrency that the counter store holds for requests."""


def rss_mib(pid: int) -> float:
    """Resident memory of one process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def held(pid: int, admin: str, token: str, tenants: Sequence[str]) -> Held:
    links = [link for path in Path(f"/proc/{pid}/fd").iterdir() if (link := _link(path))]
    threads = sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    page = _get(f"{admin}/metrics", token)
    numbers = [int(float(found[1])) if (found := re.search(rf"^{name} (\S+)$", page, re.MULTILINE)) else 0 for name in SERIES]
    in_flight, connections, tasks, holds, undelivered = numbers
    leases = 0
    for tenant in tenants:
        states = json.loads(_get(f"{admin}/admin/v1/limits/state?level=tenant&name={tenant}", token))
        leases += sum(one["held"] or 0 for one in states["items"] if one["id"].endswith(":concurrent_requests:now"))
    sockets = sum(link.startswith("socket:") for link in links)
    databases = sum(link.endswith((".db", ".db-wal", ".db-shm")) for link in links)
    files = len(links) - sockets - databases
    return Held(sockets, files, databases, threads, in_flight, connections, tasks, holds, undelivered, leases)


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _get(url: str, token: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"authorization": f"Bearer {token}"}), timeout=10) as reply:
        text: str = reply.read().decode()
        return text


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares: change of the second number for one of the first."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
