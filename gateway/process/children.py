"""The child processes of the supervisor: fork, clean start, ready byte, lifeline, restart; and the supervisor's signal handling.

`fork_child` starts a `Child` in a `Slot`; the child gets a `WorkerSlot`. `run_apart` runs work of the start in a child of its own.
`next_restart` decides when a child that ended unexpectedly is started again, from times alone. `listening_to_signals` turns signals into
a readable descriptor. `gateway.process.supervisor` decides when to use all of this. Children are forked without exec, so that they share
the parent's imported pages; this is safe because the parent has one thread and no event loop.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import msgspec

from domain.clock import Rng
from gateway.process.snapshots import SlotState

FIRST_RESTART_S: Final = 0.2
"""Ceiling of the first delay; with half of it as jitter, a single crash costs 0.1 to 0.2 s."""
MAX_RESTART_S: Final = 10.0
"""Ceiling of every delay: a worker that cannot start is tried at least this often, for ever."""
STREAK_WINDOW_S: Final = 300.0
"""Ends within this window count as one streak; five minutes, so that delays of up to 10 s still add up."""
KEPT_ENDS: Final = 16
"""Ends remembered per slot; the delay reaches its ceiling after 7."""


class Restart(msgspec.Struct, frozen=True):
    """When to start a child again."""

    delay_s: float
    streak: int
    """Ends within `STREAK_WINDOW_S`, the latest included; a high number is a crash loop."""


def next_restart(ends: Sequence[float], now: float, rng: Rng) -> Restart:
    """Exponential back-off with half jitter: delay = min(0.2 s * 2^(streak - 1), 10 s) * U[0.5, 1).

    Args:
        ends: moments of unexpected ends, the latest included, on the clock of `now`.
    """
    streak = sum(now - end <= STREAK_WINDOW_S for end in ends)
    ceiling = min(FIRST_RESTART_S * 2.0 ** max(streak - 1, 0), MAX_RESTART_S)
    return Restart(ceiling * (0.5 + 0.5 * rng.random()), streak)


_PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>: the signal a process gets when its parent dies."""
_libc: Final = ctypes.CDLL(None, use_errno=True)

HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)
"""Signals that the supervisor handles."""

ADMIN_SLOT: Final = -1
"""Index of the admin process, which ends by its lifeline once every worker has ended."""
STORE_SLOT: Final = -2
"""Index of the process that keeps an embedded store. It ends like the admin process, and no rolling restart replaces it: two stores
cannot share their files."""


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """The slot that a child gets from the supervisor. `sock` is bound and not listening: listen only when requests can be served."""

    index: int
    """The worker's number, or `ADMIN_SLOT` or `STORE_SLOT`."""
    sock: socket.socket
    run_dir: Path
    lifeline: int
    """Descriptor that reads end-of-file when the supervisor retires this child or is dead itself. Workers are retired by SIGTERM and
    may ignore it."""
    ready: Callable[[], None]
    """Tells the supervisor that requests are served; calling it again does nothing."""


Entry = Callable[[WorkerSlot], None]
"""Runs a child and returns at its end. SIGTERM has its default action; SIGINT, SIGHUP and SIGUSR2 are ignored."""


class Entries(NamedTuple):
    """The entry of each kind of child."""

    admin: Entry
    worker: Entry
    store: Entry | None

    def of(self, index: int) -> Entry | None:
        """The entry of the slot with this index; None for a store where there is none."""
        return {ADMIN_SLOT: self.admin, STORE_SLOT: self.store}.get(index, self.worker)


@dataclass(slots=True)
class Child:
    """A running child as the parent sees it. `None` means a closed descriptor, or a deadline that is not set."""

    pid: int
    index: int
    ready_fd: int | None
    lifeline: int | None
    ready: bool = False
    retired: bool = False
    """Whether the child was told to end, so that its end is expected."""
    ready_by: float | None = field(default=None)
    kill_at: float | None = field(default=None)

    def take_ready_byte(self) -> bool:
        """Read the ready pipe, which is readable or whose child has ended; true when the child became ready."""
        if self.ready_fd is None:
            return False
        message = b""
        with suppress(BlockingIOError):  # a process that the child left behind still holds the other end
            message = os.read(self.ready_fd, 1)
        os.close(self.ready_fd)
        self.ready_fd = None
        self.ready = message == b"1"
        return self.ready

    def close_lifeline(self) -> None:
        """Close the lifeline, on which the child ends."""
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None

    def close(self) -> None:
        """Close the parent's descriptors of this child."""
        self.close_lifeline()
        if self.ready_fd is not None:
            os.close(self.ready_fd)
            self.ready_fd = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; harmless once the child has ended, because its pid stays taken until it is reaped."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


@dataclass(slots=True, eq=False)
class Slot:
    """One slot of the supervisor: a socket, the children that serve it, and the history of their unexpected ends."""

    name: str
    index: int
    sock: socket.socket
    entry: Entry
    current: Child | None = None
    candidate: Child | None = None
    """The replacement in a rolling restart, until it is ready."""
    start_at: float | None = None
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_ENDS))
    restarts: int = 0
    streak: int = 0
    last_end: str = ""
    refused_replacements: int = 0
    last_refusal: str = ""

    def note_end(self, status: int, now: float, rng: Rng) -> Restart:
        """Record that the current child ended unexpectedly; returns when to start the next one."""
        self.restarts += 1
        self.ends.append(now)
        self.last_end = describe_end(status)
        restart = next_restart(self.ends, now, rng)
        self.streak = restart.streak
        return restart

    def note_refusal(self, why: str) -> None:
        """Record that no replacement came, so that the current child stays."""
        self.candidate = None
        self.refused_replacements += 1
        self.last_refusal = why

    def state(self) -> SlotState:
        """The slot's state as it is published."""
        pid = self.current.pid if self.current else None
        return SlotState(self.name, pid, self.restarts, self.streak, self.last_end, self.refused_replacements, self.last_refusal)


def slots_for(admin: socket.socket, data: list[socket.socket], entries: Entries) -> list[Slot]:
    """The slots of one gateway: the admin process, the workers, and an embedded store where there is one.

    The store's socket is bound to nothing, because its server makes its own.
    """
    slots = [Slot("admin", ADMIN_SLOT, admin, entries.admin)]
    slots += [Slot(f"worker-{index}", index, sock, entries.worker) for index, sock in enumerate(data)]
    return slots if entries.store is None else [*slots, Slot("store", STORE_SLOT, socket.socket(socket.AF_UNIX), entries.store)]


def fork_child(index: int, sock: socket.socket, run_dir: Path, entry: Entry, release: Callable[[], None]) -> Child:
    """Start `entry` in a child process. `release` runs in the child and closes the descriptors that belong to the parent alone.

    Raises:
        OSError: the machine has no process or descriptor left.
    """
    ready_read, ready_write = os.pipe()
    os.set_blocking(ready_read, False)
    life_read, life_write = os.pipe()
    parent = os.getpid()
    # Blocked across the fork: a signal between fork and reset would run the parent's handler in the child and be lost.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        pid = os.fork()
        if pid == 0:
            os.close(ready_read)
            os.close(life_write)
            _run_child(WorkerSlot(index, sock, run_dir, life_read, _ready_once(ready_write)), entry, release, parent)
    except OSError:
        for fd in (ready_read, life_write):
            os.close(fd)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        os.close(ready_write)
        os.close(life_read)
    return Child(pid, index, ready_read, life_write)


def run_apart(work: Callable[[], int]) -> int:
    """Run `work` in a forked child and wait for its end, so that the modules it imports and the memory it takes are gone afterwards.

    Must be called from a process with one thread. The child ends with this process.

    Returns:
        What `work` returns, an exit code; 1 where it raised, which is on stderr; 128 and the signal's number where one ended it.
    """
    parent = os.getpid()
    with suppress(OSError, ValueError):
        sys.stdout.flush()  # the child has a copy of what is not written yet, and writes its own
        sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # a gateway that has taken another one's place starts with them blocked
            if os.getppid() == parent:
                code = work()
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT  # a terminal sends it to both processes, and the parent says so
        except BaseException:  # noqa: BLE001 - a forked child must never run on into its parent's code
            traceback.print_exc()
        finally:
            _flush_and_exit(code)
    _, status = os.waitpid(pid, 0)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def _flush_and_exit(code: int) -> NoReturn:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _ready_once(fd: int) -> Callable[[], None]:
    descriptors = [fd]

    def ready() -> None:
        if descriptors:
            with suppress(BrokenPipeError):  # the supervisor has died; SIGTERM is on its way
                os.write(descriptors[0], b"1")
            os.close(descriptors.pop())

    return ready


def _run_child(slot: WorkerSlot, entry: Entry, release: Callable[[], None], parent: int) -> NoReturn:
    """Run the child: never returns into the parent's code, whatever `entry` does."""
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # died before the prctl
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A terminal sends the first two to the whole process group; the supervisor passes them on as SIGTERM where needed.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        release()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        entry(slot)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - a forked child must never run on into its parent's code
        traceback.print_exc()
    finally:
        _flush_and_exit(code)


@contextmanager
def listening_to_signals() -> Iterator[tuple[int, list[int]]]:
    """Handle `HANDLED` signals: yields a descriptor that becomes readable with each signal, and the list of signals caught."""
    caught: list[int] = []
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda signum, _frame: caught.append(signum)) for number in HANDLED}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # delivers signals that came during a hot restart (`gateway.process.hot_restart`)
    try:
        yield read, caught
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def describe_end(status: int) -> str:
    """A wait status in words: `exit 1`, `SIGKILL`."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return signal.Signals(number).name if number < signal.SIGRTMIN else f"signal {number}"
    return f"exit {os.waitstatus_to_exitcode(status)}"


def ended_cleanly(status: int, ready: bool) -> bool:
    """Whether a child that was told to end did so in order. A child that was still starting has no SIGTERM handler yet."""
    return status == 0 or (not ready and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM)


def settle_memory() -> None:
    """Exempt the objects of start-up from garbage collection, because they live as long as the process, and collect less often.

    Requests make no cycles, and the default threshold (700 allocations) would be reached every tenth request; rows of the ledger, of which
    the admin process makes thousands at a time, make none either.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
