"""The hot restart: the supervisor's process loads code and settings anew and keeps its sockets, its children and its pid.

    asked -> rehearsal: a separate process loads everything as a start would
                 |-- fails: its output is in the log, everything goes on as before
                 `-- succeeds: exec; the new supervisor takes over the state in `Handed` and replaces every child

No listening socket is closed on the way. Two gateways that share a port through SO_REUSEPORT could not do that: Linux resets the
connections in the queue of a listener that is closed.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gateway.process.children import HANDLED, Child, Slot

VARIABLE: Final = "TIDEGATE_HANDED_OVER"
"""Environment variable with the descriptor of the file that contains `Handed`, for the new supervisor alone."""
REHEARSE: Final = "--rehearse"
"""Option that makes `tidegate serve` end where it would begin to serve."""
REHEARSED_WITHIN_S: Final = 60.0
"""Longest rehearsal: the time that a replacement has to become ready."""

log = logging.getLogger("tidegate.supervisor")


class HandedChild(msgspec.Struct, frozen=True):
    """A `forking.Child`, to be handed over. Deadlines are on the monotonic clock, which goes on through exec."""

    pid: int
    index: int
    ready_fd: int | None
    lifeline: int | None
    ready: bool
    retired: bool
    kill_at: float | None


class HandedSlot(msgspec.Struct, frozen=True):
    """A `forking.Slot`, to be handed over."""

    name: str
    index: int
    sock: int
    current: int | None
    """The pid of the current child."""
    ends: tuple[float, ...]
    restarts: int
    streak: int
    last_end: str
    refused_replacements: int = 0
    last_refusal: str = ""


class Handed(msgspec.Struct, frozen=True):
    """The state that one supervisor leaves to the next, which may be of another version: a new field needs a default."""

    pid: int
    home: str
    lock: int
    """Descriptor that holds the run directory's lock; closing it would let another gateway in."""
    temporary: bool
    """Whether the run directory is removed at the end."""
    data: tuple[str, int]
    """Host and port of the data port, as in the settings at the start."""
    admin: tuple[str, int]
    slots: tuple[HandedSlot, ...]
    children: tuple[HandedChild, ...]
    """The running children, draining ones included."""


def handed_slot(slot: Slot) -> HandedSlot:
    """The slot as it is handed over."""
    current = slot.current.pid if slot.current is not None else None
    return HandedSlot(
        slot.name,
        slot.index,
        slot.sock.fileno(),
        current,
        tuple(slot.ends),
        slot.restarts,
        slot.streak,
        slot.last_end,
        slot.refused_replacements,
        slot.last_refusal,
    )


def handed_child(child: Child) -> HandedChild:
    """The child as it is handed over."""
    return HandedChild(child.pid, child.index, child.ready_fd, child.lifeline, child.ready, child.retired, child.kill_at)


def handed_over() -> Handed | None:
    """The state that the previous supervisor of this process left; None at a start.

    Raises:
        ValueError: the environment variable names something else.
    """
    named = os.environ.pop(VARIABLE, None)
    if named is None:
        return None
    try:
        with os.fdopen(int(named), "rb") as file:
            file.seek(0)
            handed = msgspec.json.decode(file.read(), type=Handed)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise ValueError(f"{VARIABLE} is for Tidegate's own use; unset it ({error})") from None
    if handed.pid != os.getpid():
        raise ValueError(f"{VARIABLE} is of process {handed.pid}; unset it")
    for fd in _descriptors(handed):
        os.set_inheritable(fd, False)
    return handed


class Renewal:
    """Runs the rehearsal of a hot restart, then the hot restart itself.

    Args:
        command: the command that starts this program; None when it cannot be started anew.
    """

    def __init__(self, command: Sequence[str] | None) -> None:
        self._command = command
        self._asked = False
        self._passed = False
        self._rehearsal: subprocess.Popen[bytes] | None = None
        self.give_up_at: float | None = None

    def ask(self, now: float) -> None:
        """Ask for a hot restart."""
        self._asked = True

    def due(self, now: float, calm: bool) -> bool:
        """Whether it is time to `become` the new supervisor. To be called in every turn of the supervisor's loop.

        Args:
            calm: whether no rolling restart is in progress; one in progress ends first.
        """
        if self._rehearsal is not None:
            self._check(self._rehearsal, now)
        elif self._asked and calm:
            self._asked = False
            self._begin(now)
        return self._passed and calm

    def _check(self, rehearsal: "subprocess.Popen[bytes]", now: float) -> None:
        code = rehearsal.poll()
        if code is not None:
            self._rehearsal = self.give_up_at = None
            self._passed = code == 0
            if code:
                log.error("SIGUSR2: the new start fails (exit %d), its reason stands above; everything stays as it is", code)
        elif self.give_up_at is not None and self.give_up_at <= now:
            self.stop()
            log.error("SIGUSR2: the new start was not ready within %g s; everything stays as it is", REHEARSED_WITHIN_S)

    def _begin(self, now: float) -> None:
        if self._command is None:
            log.error("SIGUSR2: this program cannot be started anew")
            return
        log.info("SIGUSR2: rehearsing a new start")
        try:
            self._rehearsal = subprocess.Popen([*self._command, REHEARSE], stdin=subprocess.DEVNULL)
        except OSError as error:
            log.error("SIGUSR2: the new start cannot be rehearsed (%s); everything stays as it is", error)
        else:
            self.give_up_at = now + REHEARSED_WITHIN_S

    def stop(self) -> None:
        """Kill a rehearsal in progress, and forget the request."""
        if self._rehearsal is not None:
            self._rehearsal.kill()
            self._rehearsal.wait()
        self._asked = self._passed = False
        self._rehearsal = self.give_up_at = None

    def become(self, handed: Handed) -> None:
        """Replace this process by the new supervisor (exec). Returns only when the kernel refuses."""
        assert self._command is not None
        self._passed = False
        note = os.memfd_create("tidegate-handed-over", 0)
        os.write(note, msgspec.json.encode(handed))
        fds = (note, *_descriptors(handed))
        for fd in fds:
            os.set_inheritable(fd, True)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # until the new supervisor can handle them: blocked signals wait, and stay blocked through exec
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            os.execve(self._command[0], list(self._command), {**os.environ, VARIABLE: str(note)})
        except OSError as error:
            log.error("SIGUSR2: %s cannot be executed (%s); everything stays as it is", self._command[0], error)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for fd in fds:
            os.set_inheritable(fd, False)
        os.close(note)


def this_program() -> list[str]:
    """The command that started this program."""
    return [sys.executable, *sys.orig_argv[1:]]


def _descriptors(handed: Handed) -> Iterable[int]:
    inherited = [handed.lock, *(slot.sock for slot in handed.slots)]
    return [*inherited, *(fd for child in handed.children for fd in (child.ready_fd, child.lifeline) if fd is not None)]
