"""A supervisor that becomes a new one: its process loads code and settings anew and keeps its sockets, its children and its pid.

    asked -> rehearsal: a process of its own loads everything as a start would
                 |-- fails: its words stand in the log, everything goes on as it was
                 `-- ends well: exec; the new supervisor takes over what `Handed` lists and replaces every child

No listening socket is closed on the way. Two gateways that share a port through SO_REUSEPORT could not do that: Linux resets what
waits in the queue of a listener that is closed.
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

from gateway.forking import HANDLED, Child, Slot

VARIABLE: Final = "TIDEGATE_HANDED_OVER"
"""The descriptor of the file that `Handed` is in, for the new supervisor alone."""
REHEARSE: Final = "--rehearse"
"""Tells `tidegate serve` to end where it would begin to serve."""
REHEARSED_WITHIN_S: Final = 60.0
"""As long as a replacement has to become ready."""

log = logging.getLogger("tidegate.supervisor")


class HandedChild(msgspec.Struct, frozen=True):
    """See `forking.Child`. Moments are on the monotonic clock, which a process does not change by exec."""

    pid: int
    index: int
    ready_fd: int | None
    lifeline: int | None
    ready: bool
    retired: bool
    kill_at: float | None


class HandedSlot(msgspec.Struct, frozen=True):
    """See `forking.Slot`."""

    name: str
    index: int
    sock: int
    current: int | None
    """The pid."""
    ends: tuple[float, ...]
    restarts: int
    streak: int
    last_end: str


class Handed(msgspec.Struct, frozen=True):
    """What one supervisor leaves to the next. Versions differ: fields may be added, and have defaults then."""

    pid: int
    home: str
    lock: int
    """Descriptor that holds the run directory; closing it would let another gateway in."""
    temporary: bool
    """Whether the run directory goes with the gateway."""
    data: tuple[str, int]
    """Host and port of the settings that it started with."""
    admin: tuple[str, int]
    slots: tuple[HandedSlot, ...]
    children: tuple[HandedChild, ...]
    """Those that drain, too."""


def handed_slot(slot: Slot) -> HandedSlot:
    """A place, to be handed over."""
    current = slot.current.pid if slot.current is not None else None
    return HandedSlot(slot.name, slot.index, slot.sock.fileno(), current, tuple(slot.ends), slot.restarts, slot.streak, slot.last_end)


def handed_child(child: Child) -> HandedChild:
    """A child, to be handed over."""
    return HandedChild(child.pid, child.index, child.ready_fd, child.lifeline, child.ready, child.retired, child.kill_at)


def handed_over() -> Handed | None:
    """What this process was before; None at a start.

    Raises:
        ValueError: the variable names something else.
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
    """The rehearsal, and the step after it.

    Args:
        command: what starts this program; None when it cannot be started anew.
    """

    def __init__(self, command: Sequence[str] | None) -> None:
        self._command = command
        self._asked = self._passed = False
        self._rehearsal: subprocess.Popen[bytes] | None = None
        self.give_up_at: float | None = None

    def ask(self, now: float) -> None:
        """Somebody wants a new supervisor."""
        self._asked = True

    def due(self, now: float, calm: bool) -> bool:
        """Whether the time has come to `become` the new one. To be asked whenever a child ended.

        Args:
            calm: whether no other restart is under way; one that is ends first.
        """
        if self._rehearsal is not None:
            self._look(self._rehearsal, now)
        elif self._asked and calm:
            self._asked = False
            self._begin(now)
        return self._passed and calm

    def _look(self, rehearsal: "subprocess.Popen[bytes]", now: float) -> None:
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
        """End a rehearsal that is under way."""
        if self._rehearsal is not None:
            self._rehearsal.kill()
            self._rehearsal.wait()
        self._asked = self._passed = False
        self._rehearsal = self.give_up_at = None

    def become(self, handed: Handed) -> None:
        """This process becomes the new supervisor. Returns only when the kernel refuses."""
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
        # until the new one can hear them: blocked signals wait, and stay blocked through exec
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
    """What starts it, as it was started."""
    return [sys.executable, *sys.orig_argv[1:]]


def _descriptors(handed: Handed) -> Iterable[int]:
    found = [handed.lock, *(slot.sock for slot in handed.slots)]
    return [*found, *(fd for child in handed.children for fd in (child.ready_fd, child.lifeline) if fd is not None)]
