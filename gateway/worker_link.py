"""How the processes of one Tidegate tell each other their state: files and unix sockets in the run directory.

Every worker serves snapshots of itself on `worker-<index>-<pid>.sock`; the supervisor leaves `supervisor.json`; the admin
process reads both. Knows the layout of the run directory and nothing of what the numbers mean.

Why sockets that are asked and not files that workers write: a worker that nobody scrapes then does nothing at all.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from backends.kv_blocks import KvState
from backends.readings import standing
from backends.signals import Signals
from domain.membership import Owner, SourceState
from gateway.addresses import UNIX_PATH_BYTES
from gateway.telemetry.metrics import MetricsSnapshot, merge

State = Literal["starting", "ready", "draining"]

MAX_SNAPSHOT_BYTES: Final = 16 * 1024 * 1024
"""Largest snapshot read; one at every ceiling of `telemetry.families` is below 1 MiB."""
MAX_SOCKETS: Final = 1024
"""Worker sockets looked at in one run directory; a machine has fewer cores than that."""
MAX_LINKS: Final = 16
"""Connections a worker answers at once: one admin process, its predecessor during a restart, and a person looking."""
REQUEST_WITHIN_S: Final = 1.0
"""Time a connection has to say what it wants; the peer is a process of ours on the same machine."""
MAX_GONE: Final = 8
"""Ended workers whose last numbers are kept apart, in case they only missed a scrape."""

_STATE_LINE: Final = b"state\n"
_ALL_LINE: Final = b"all\n"


class BackendState(msgspec.Struct, frozen=True):
    """One backend as one worker sees it. `why` says what keeps it from being used, empty when `up`; `loras` are its adapters."""

    pool: str
    backend: str
    up: bool
    why: str = ""
    in_flight: int = 0
    """Requests of this worker on it."""
    signals: Signals | None = None
    """What it last said of itself; `read_at` is on the worker's clock and means nothing elsewhere."""
    signals_age_s: float | None = None
    sent_since: int = 0
    """Requests this worker sent to it after that reading."""
    ended_since: int = 0
    """Requests of this worker that ended after it."""
    running_now: int | None = None
    """What it probably has in its batch by now: the reading, and what was sent and ended since."""
    waiting_now: int | None = None
    """The same of its queue."""
    prefill_tokens_per_s: float | None = None
    """How fast it prefills, measured between readings."""
    loras: tuple[str, ...] = ()
    kv: KvState | None = None
    """What its prefix cache holds, where it publishes that."""
    state: str = ""
    """`up`, `down`, `draining`, …: a value of `routing.fleet.State`."""
    source: Owner | Literal[""] = ""
    """Who names it."""
    url: str = ""

    def estimated(self) -> "BackendState":
        """With `running_now` and `waiting_now` worked out from the rest."""
        if self.signals is None:
            return self
        now = standing(self.signals, self.sent_since, self.ended_since)
        return msgspec.structs.replace(self, running_now=now.running, waiting_now=now.waiting)


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One worker at one moment. `reasons` says in words what a worker that is not ready waits for."""

    index: int
    pid: int
    state: State
    started_at: float
    """Seconds since the epoch."""
    reasons: tuple[str, ...] = ()
    fleet: tuple[BackendState, ...] = ()
    sources: tuple[SourceState, ...] = ()
    clashes: tuple[str, ...] = ()
    """Sources that name one backend twice, in words."""
    policy_digest: str = ""
    metrics: MetricsSnapshot | None = None
    """None when only the state was asked for."""


class SlotState(msgspec.Struct, frozen=True):
    """One place in the supervisor: a worker (`worker-0`, …) or `admin`."""

    name: str
    pid: int | None
    restarts: int
    """Unexpected ends since the supervisor started."""
    streak: int
    """Unexpected ends within the restart policy's window; a high one is a crash loop."""
    last_end: str = ""


class Supervision(msgspec.Struct, frozen=True):
    """What the supervisor knows, as it writes it to `supervisor.json` at every change."""

    pid: int
    data_port: int
    admin_port: int
    slots: tuple[SlotState, ...]


def worker_socket(run_dir: Path, index: int, pid: int) -> Path:
    """Where worker `index` of process `pid` answers. Raises ValueError when the run directory's path is too long."""
    path = run_dir / f"worker-{index}-{pid}.sock"
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise ValueError(f"run directory {run_dir}: its path is too long for a unix socket ({UNIX_PATH_BYTES} bytes); choose a shorter one")
    return path


class WorkerLink:
    """The worker's end: answers with `snapshot(with_metrics)` until it is closed.

    Args:
        path: from `worker_socket`; a stale socket there is replaced.
        snapshot: called in the loop for every question, so it must not block.
    """

    def __init__(self, path: Path, snapshot: Callable[[bool], WorkerSnapshot]) -> None:
        self._path = path
        self._snapshot = snapshot
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        """Begins to answer. Raises OSError when the socket cannot be made."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._server = await asyncio.start_unix_server(self._answer, path=str(self._path), limit=1024)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stops answering and removes the socket; safe to call twice and before `start`."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MAX_LINKS:
                return
            line = await asyncio.wait_for(reader.readline(), REQUEST_WITHIN_S)
            if line in (_STATE_LINE, _ALL_LINE):
                writer.write(msgspec.msgpack.encode(self._snapshot(line == _ALL_LINE)))
                await asyncio.wait_for(writer.drain(), REQUEST_WITHIN_S)
        except (OSError, TimeoutError, ValueError):
            pass  # the asker left, dawdled or spoke nonsense; it learns that from the empty answer
        finally:
            self._open -= 1
            writer.close()


async def collect(run_dir: Path, timeout_s: float = 0.5, *, with_metrics: bool = True) -> list[WorkerSnapshot]:
    """Asks every worker in `run_dir` at once; ordered by index, then age.

    A worker that does not answer within `timeout_s` is left out; the socket of a process that is gone is removed.
    """
    line = _ALL_LINE if with_metrics else _STATE_LINE
    answers = await asyncio.gather(*(_ask(path, line, timeout_s) for path in _sockets(run_dir)))
    return sorted((answer for answer in answers if answer is not None), key=lambda seen: (seen.index, seen.started_at, seen.pid))


async def _ask(path: Path, line: bytes, timeout_s: float) -> WorkerSnapshot | None:
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(str(path), limit=MAX_SNAPSHOT_BYTES)
            try:
                writer.write(line)
                parts, size = [], 0
                while part := await reader.read(1 << 18):
                    parts.append(part)
                    size += len(part)
                    if size > MAX_SNAPSHOT_BYTES:
                        return None
            finally:
                writer.close()
        return msgspec.msgpack.decode(b"".join(parts), type=WorkerSnapshot)
    except ConnectionRefusedError:
        _remove_if_gone(path)
    except (OSError, TimeoutError, msgspec.DecodeError):
        pass
    return None


def _sockets(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("worker-*.sock"))[:MAX_SOCKETS]


def _remove_if_gone(path: Path) -> None:
    """Removes the socket of a killed process, so that crash loops do not fill the directory. Its process is looked for
    because a starting worker refuses too, between binding and listening."""
    with contextlib.suppress(OSError, ValueError):
        try:
            os.kill(int(path.stem.rpartition("-")[2]), 0)
        except ProcessLookupError:
            path.unlink()


class Totals:
    """Adds up counters over workers that come and go, so that sums never fall.

    Why: Prometheus reads a falling counter as a restart from zero and would count everything that the surviving workers
    had counted once more. What an ended worker counted after its last scrape is lost, nothing else.
    """

    def __init__(self) -> None:
        self._ended = MetricsSnapshot()
        self._last: dict[tuple[int, float], MetricsSnapshot] = {}

    def add(self, seen: Iterable[WorkerSnapshot]) -> MetricsSnapshot:
        """The totals now. Gauges (in flight, connections) are those of the workers seen, counters those of all ever seen."""
        in_flight = connections = 0
        present = set()
        for worker in seen:
            if worker.metrics is None:
                continue
            key = (worker.pid, worker.started_at)  # a pid alone may be used again
            present.add(key)
            self._last[key] = worker.metrics
            in_flight += worker.metrics.in_flight
            connections += worker.metrics.connections
        gone = [key for key in self._last if key not in present]
        for key in gone[: max(len(gone) - MAX_GONE, 0)]:
            self._ended = merge((self._ended, self._last.pop(key)))
        total = merge((self._ended, *self._last.values()))
        return msgspec.structs.replace(total, in_flight=in_flight, connections=connections)


def publish(run_dir: Path, name: str, value: msgspec.Struct) -> None:
    """Writes `value` as JSON to `run_dir/name`, at once or not at all, readable by its owner only."""
    partial = run_dir / f".{name}.partial"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(value) + b"\n")
    partial.replace(run_dir / name)


def supervision(run_dir: Path) -> Supervision | None:
    """What the supervisor last wrote, or None when it wrote nothing readable (a worker run by hand)."""
    try:
        return msgspec.json.decode((run_dir / "supervisor.json").read_bytes(), type=Supervision)
    except (OSError, msgspec.DecodeError):
        return None


def not_ready(seen: Sequence[WorkerSnapshot], workers: int, known: Supervision | None = None) -> list[str]:
    """What keeps the gateway as a whole from being ready, in words; empty when every worker takes requests.

    During a rolling restart two processes hold one index; it is ready while either is.
    """
    ends = {slot.name: f" (ended {slot.streak} times lately: {slot.last_end})" for slot in known.slots if slot.streak} if known else {}
    reasons = []
    for index in range(workers):
        mine = [worker for worker in seen if worker.index == index]
        if any(worker.state == "ready" for worker in mine):
            continue
        if not mine:
            reasons.append(f"worker {index}: not answering{ends.get(f'worker-{index}', '')}")
        reasons += [f"worker {index}: {'; '.join((worker.state, *worker.reasons))}" for worker in mine[:2]]
    return reasons
