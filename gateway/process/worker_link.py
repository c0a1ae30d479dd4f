"""State exchange between the processes of one gateway: files and unix sockets in the run directory.

Every worker serves snapshots of itself on `worker-<index>-<pid>.sock`; the supervisor writes `supervisor.json`; the admin process
reads both. This module knows the layout of the run directory, and leaves the meaning of the numbers to `gateway.process.snapshots`.

Workers answer on sockets instead of writing files, so that a worker that nobody scrapes does no work.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from domain.clock import Clock
from gateway.config.addresses import UNIX_PATH_BYTES
from gateway.process.snapshots import Supervision, WorkerSnapshot
from gateway.telemetry.snapshot import FamilyNumbers, MetricsSnapshot, merge, slices
from tenancy.hold import LimitUsage
from tenancy.limits import Group
from tenancy.ports import CountersAway

MAX_SNAPSHOT_BYTES: Final = 16 * 1024 * 1024
"""Largest snapshot read; a snapshot at every ceiling of `telemetry.families` is below 1 MiB."""
MAX_SOCKETS: Final = 1024
"""Most worker sockets read in one run directory; a machine has fewer cores than that."""
MAX_LINKS: Final = 16
"""Connections a worker answers at once: one admin process, its predecessor during a restart, and a person looking."""
REQUEST_WITHIN_S: Final = 1.0
"""Longest wait for the question on a connection; the peer is another process of this gateway on the same machine."""
MAX_GONE: Final = 8
"""Missing workers whose last numbers are kept apart, in case they only missed a scrape."""

MAX_LOOK_BYTES: Final = 1024 * 1024
"""Largest question about limits; a page of limits is below 100 KiB."""

_STATE_LINE: Final = b"state\n"
_ALL_LINE: Final = b"all\n"
_LOOK_LINE: Final = b"look\n"
"""Followed by a group of limits, until the asker closes its side."""

Answer = Callable[[bytes], Awaitable[bytes]]
"""Answers the question that follows its line, up to the end of the asker's side; empty bytes for no answer."""


def worker_socket(run_dir: Path, index: int, pid: int) -> Path:
    """The path of the socket of worker `index` in process `pid`. Raises ValueError when the run directory's path is too long."""
    path = run_dir / f"worker-{index}-{pid}.sock"
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise ValueError(f"run directory {run_dir}: its path is too long for a unix socket ({UNIX_PATH_BYTES} bytes); choose a shorter one")
    return path


class WorkerLink:
    """The worker's end: answers questions about the worker until it is closed.

    Args:
        path: from `worker_socket`; a stale socket there is replaced.
        snapshot: the worker's snapshot, with or without metrics; called in the loop for every question, so it must not block.
        families: the families of the worker's metrics, copied one by one; the metrics of `snapshot` then need none. Without it they are
            in `snapshot`.
        clock: measures how long the loop is held.
        look: reads the state of limits in this worker's counters.
        answers: answers to further questions, by the question's line.
    """

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[bool], WorkerSnapshot],
        look: Callable[[Group], Awaitable[list[LimitUsage]]] | None = None,
        answers: Mapping[bytes, Answer] | None = None,
        *,
        families: Callable[[], Iterable[FamilyNumbers]] | None = None,
        clock: Clock = lambda: 0.0,
    ) -> None:
        self._path = path
        self._snapshot = snapshot
        self._families = families
        self._clock = clock
        self.longest_slice_s = 0.0
        """The longest time for which one slice of an answer to a scrape has held the loop."""
        self._look = look
        self._answers = answers or {}
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        """Begin to answer. Raises OSError when the socket cannot be made."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._server = await asyncio.start_unix_server(self._answer, path=str(self._path), limit=1024)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop answering and remove the socket; safe to call twice and before `start`."""
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
                writer.write(await self._encoded(with_metrics=line == _ALL_LINE))
                await asyncio.wait_for(writer.drain(), REQUEST_WITHIN_S)
            elif line == _LOOK_LINE and self._look is not None:
                question = await asyncio.wait_for(_read_all(reader, MAX_LOOK_BYTES), REQUEST_WITHIN_S)
                writer.write(msgspec.msgpack.encode(await self._look(msgspec.msgpack.decode(question, type=Group))))
                await asyncio.wait_for(writer.drain(), REQUEST_WITHIN_S)
            elif line in self._answers:
                question = await asyncio.wait_for(_read_all(reader, MAX_SNAPSHOT_BYTES), REQUEST_WITHIN_S)
                writer.write(await self._answers[line](question))
                await asyncio.wait_for(writer.drain(), REQUEST_WITHIN_S)
        except (OSError, TimeoutError, ValueError, CountersAway):
            pass  # the asker left, was too slow or sent nonsense; the empty answer says so
        finally:
            self._open -= 1
            writer.close()

    async def _encoded(self, *, with_metrics: bool) -> bytes:
        """The snapshot. Its metrics are encoded in slices, between which the loop runs: no request waits for a scrape."""
        began_at = self._clock()
        snapshot = self._snapshot(with_metrics)
        if not with_metrics or snapshot.metrics is None or self._families is None:
            return msgspec.msgpack.encode(snapshot)
        for metrics in slices(self._families(), snapshot.metrics):
            if metrics is not None:
                snapshot = msgspec.structs.replace(snapshot, metrics=metrics)
                continue
            self.longest_slice_s = max(self.longest_slice_s, self._clock() - began_at)
            await asyncio.sleep(0)
            began_at = self._clock()
        encoded = msgspec.msgpack.encode(snapshot)
        self.longest_slice_s = max(self.longest_slice_s, self._clock() - began_at)
        return encoded


async def collect(run_dir: Path, timeout_s: float = 0.5, *, with_metrics: bool = True) -> list[WorkerSnapshot]:
    """The snapshots of all workers in `run_dir`, asked concurrently; ordered by index, then age.

    A worker that does not answer within `timeout_s` is left out; the socket of a dead process is removed.
    """
    line = _ALL_LINE if with_metrics else _STATE_LINE
    answers = await asyncio.gather(*(_ask(path, line, timeout_s) for path in _sockets(run_dir)))
    return sorted(
        (answer for answer in answers if answer is not None), key=lambda snapshot: (snapshot.index, snapshot.started_at, snapshot.pid)
    )


async def look(run_dir: Path, group: Group, timeout_s: float = 0.5) -> list[LimitUsage]:
    """The state of limits in the counters of the ready worker; of several the newest, which replaces the other.

    Raises:
        CountersAway: no worker is ready, or the worker does not answer.
    """
    snapshots = await collect(run_dir, timeout_s, with_metrics=False)
    ready = max((snapshot for snapshot in snapshots if snapshot.state == "ready"), key=lambda snapshot: snapshot.started_at, default=None)
    if ready is None:
        raise CountersAway("limits are counted in a worker's memory, and no worker is ready")
    question = _LOOK_LINE + msgspec.msgpack.encode(group)
    if len(question) > MAX_LOOK_BYTES:
        raise CountersAway("too many limits for one question; ask for fewer at a time")
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _answer_to(worker_socket(run_dir, ready.index, ready.pid), question)
        return msgspec.msgpack.decode(answer, type=list[LimitUsage])
    except (OSError, TimeoutError, msgspec.DecodeError):
        raise CountersAway("limits are counted in a worker's memory, and it does not answer") from None


async def ask_every(run_dir: Path, question: bytes, timeout_s: float = 0.5) -> list[bytes]:
    """The non-empty answers of all workers in `run_dir`, asked concurrently."""
    answers = await asyncio.gather(*(_asked(path, question, timeout_s) for path in _sockets(run_dir)))
    return [answer for answer in answers if answer]


async def ask_newest(run_dir: Path, question: bytes, timeout_s: float = 0.5) -> bytes:
    """The answer of a ready worker, of several the newest; empty when no worker is ready or it has no answer."""
    snapshots = await collect(run_dir, timeout_s, with_metrics=False)
    ready = max((snapshot for snapshot in snapshots if snapshot.state == "ready"), key=lambda snapshot: snapshot.started_at, default=None)
    return b"" if ready is None else await _asked(worker_socket(run_dir, ready.index, ready.pid), question, timeout_s)


async def ask_oldest(run_dir: Path, question: bytes, timeout_s: float = 0.5) -> bytes:
    """The answer of a ready worker, of several the oldest, which has learned the most; empty when no worker is ready or it has none."""
    snapshots = await collect(run_dir, min(timeout_s, 0.5), with_metrics=False)  # one that is starting may be busy with that
    ready = min((snapshot for snapshot in snapshots if snapshot.state == "ready"), key=lambda snapshot: snapshot.started_at, default=None)
    return b"" if ready is None else await _asked(worker_socket(run_dir, ready.index, ready.pid), question, timeout_s)


async def _ask(path: Path, line: bytes, timeout_s: float) -> WorkerSnapshot | None:
    try:
        return msgspec.msgpack.decode(await _asked(path, line, timeout_s), type=WorkerSnapshot)
    except msgspec.DecodeError:
        return None


async def _asked(path: Path, question: bytes, timeout_s: float) -> bytes:
    """The answer, empty when none comes in time; the socket of a dead process is removed."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _answer_to(path, question)
    except ConnectionRefusedError:
        _remove_if_gone(path)
    except (OSError, TimeoutError):
        pass
    return b""


async def _answer_to(path: Path, question: bytes) -> bytes:
    """The answer to one question. Raises OSError."""
    reader, writer = await asyncio.open_unix_connection(str(path), limit=MAX_SNAPSHOT_BYTES)
    try:
        writer.write(question)
        writer.write_eof()
        return await _read_all(reader, MAX_SNAPSHOT_BYTES)
    finally:
        writer.close()


async def _read_all(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """The bytes up to the end of the stream; empty when there are more than `most`."""
    parts = []
    size = 0
    while part := await reader.read(1 << 18):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            return b""
    return b"".join(parts)


def _sockets(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("worker-*.sock"))[:MAX_SOCKETS]


def _remove_if_gone(path: Path) -> None:
    """Remove the socket of a killed process, so that crash loops do not fill the directory.

    The process is looked up first, because a starting worker refuses connections too, between binding and listening.
    """
    with contextlib.suppress(OSError, ValueError):
        try:
            os.kill(int(path.stem.rpartition("-")[2]), 0)
        except ProcessLookupError:
            path.unlink()


class Totals:
    """Sums counters over workers that come and go, so that the sums never fall.

    Prometheus reads a falling counter as a restart from zero, and would add the counts of the surviving workers once more.
    Only what an ended worker counted after its last scrape is lost.
    """

    def __init__(self) -> None:
        self._ended = MetricsSnapshot()
        self._last: dict[tuple[int, float], MetricsSnapshot] = {}

    def add(self, snapshots: Iterable[WorkerSnapshot]) -> MetricsSnapshot:
        """The totals now: gauges (in flight, connections) over the workers in `snapshots`, counters over all workers ever seen."""
        in_flight = connections = 0
        present = set()
        for worker in snapshots:
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
    """Write `value` as JSON to `run_dir/name`, atomically, readable by its owner only."""
    partial = run_dir / f".{name}.partial"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(value) + b"\n")
    partial.replace(run_dir / name)


def supervision(run_dir: Path) -> Supervision | None:
    """The state that the supervisor wrote last, or None when there is none that can be read (a worker run by hand)."""
    try:
        return msgspec.json.decode((run_dir / "supervisor.json").read_bytes(), type=Supervision)
    except (OSError, msgspec.DecodeError):
        return None


def not_ready(snapshots: Sequence[WorkerSnapshot], workers: int, published: Supervision | None = None) -> list[str]:
    """The reasons why the gateway is not ready, in words; empty when every worker takes requests.

    During a rolling restart two processes have one index; the index is ready while either process is.
    """
    ends = (
        {slot.name: f" (ended {slot.streak} times lately: {slot.last_end})" for slot in published.slots if slot.streak} if published else {}
    )
    reasons = []
    for index in range(workers):
        processes = [worker for worker in snapshots if worker.index == index]
        if any(worker.state == "ready" for worker in processes):
            continue
        if not processes:
            reasons.append(f"worker {index}: not answering{ends.get(f'worker-{index}', '')}")
        reasons += [f"worker {index}: {'; '.join((worker.state, *worker.reasons))}" for worker in processes[:2]]
    return reasons


def processes_of(published: Supervision | None, snapshots: Iterable[WorkerSnapshot], own_pid: int) -> list[tuple[str, int]]:
    """The names and ids of the processes of this gateway; `own_pid` is the admin process, where no supervisor says so."""
    slots = [(slot.name, slot.pid) for slot in published.slots if slot.pid is not None] if published is not None else []
    supervisor = [("supervisor", published.pid)] if published is not None else []
    return [*supervisor, *slots, ("admin", own_pid), *((f"worker-{worker.index}", worker.pid) for worker in snapshots)]
