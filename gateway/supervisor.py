"""The parent process of `tidegate serve`: claims sockets, forks workers and the admin process, keeps them alive.

Has no event loop, no threads and no idea what its children do: an entry gets a `Seat` and says when it is ready.
When a child is started again is decided in `gateway.restarts`; this file waits for signals, ready bytes and ends of
children, and acts.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

import msgspec

from domain.clock import Clock, Rng
from gateway.claims import CannotStart, claim_admin_socket, claim_data_sockets, claim_run_dir
from gateway.forking import Child, Entry, Seat, Slot, describe_end, ended_cleanly, fork_child, listening_to_signals
from gateway.restarts import MAX_RESTART_S
from gateway.worker_link import Supervision, publish

__all__ = ["CannotStart", "Entry", "Plan", "Seat", "run"]

REST_FROM_S: Final = 1.0
"""From this delay on the place's socket stops listening, so that the kernel gives its connections to other workers. Below
it they wait in the socket's queue for the replacement, which is kinder than a refusal."""
AFTER_GRACE_S: Final = 10.0
"""From the end of the drain's grace to SIGKILL: time to end the last streams with an error and to write the log out."""
ADMIN_END_S: Final = 5.0
"""Time the admin process has to end once it is let go; uvicorn gives open answers 2 s."""

log = logging.getLogger("tidegate.supervisor")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor needs to know of the settings. Ports may be 0: any free one."""

    data_host: str
    data_port: int
    admin_host: str
    admin_port: int
    workers: int
    accept_s: float
    """Seconds a draining worker still accepts connections (`drain.accept_s`)."""
    grace_s: float
    """Seconds running requests have to finish (`drain.grace_s`)."""
    data_scheme: str = "http"
    ready_within_s: float = 60.0
    """Time a replacement has to become ready in a rolling restart, before the old process is kept."""


class Ready(msgspec.Struct, frozen=True):
    """What `ready.json` holds: written when every child is ready for the first time."""

    data_port: int
    admin_port: int
    pid: int


def run(
    plan: Plan,
    worker: Entry,
    admin: Entry,
    *,
    clock: Clock,
    rng: Rng,
    run_dir: Path | None = None,
    out: TextIO | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT; 0 when every child then ended in order, else 1.

    SIGHUP restarts all children one after the other without refusing a connection; a second SIGINT ends at once.

    Args:
        worker, admin: run in forked children; see `Entry`. Must be called from a process with one thread.
        out: where the one line goes that says everything is ready; stderr when None.

    Raises:
        CannotStart: an address or the run directory is taken; the message is for the operator.
    """
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(claim_run_dir(run_dir))
        sockets = claim_data_sockets(plan.data_host, plan.data_port, plan.workers)
        slots = [Slot("admin", -1, claim_admin_socket(plan.admin_host, plan.admin_port), admin)]
        slots += [Slot(f"worker-{index}", index, sock, worker) for index, sock in enumerate(sockets)]
        for slot in slots:
            stack.callback(slot.sock.close)
        wake, caught = stack.enter_context(listening_to_signals())
        return _Supervisor(plan, slots, home, clock, rng, wake, caught, out or sys.stderr).watch()


class _Supervisor:
    def __init__(
        self, plan: Plan, slots: list[Slot], home: Path, clock: Clock, rng: Rng, wake: int, caught: list[int], out: TextIO
    ) -> None:
        self._plan, self._slots, self._home, self._clock, self._rng = plan, slots, home, clock, rng
        self._wake, self._caught, self._out = wake, caught, out
        self._ports = (slots[1].sock.getsockname()[1], slots[0].sock.getsockname()[1])
        self._children: dict[int, tuple[Child, Slot]] = {}
        self._to_roll: deque[Slot] = deque()
        self._stopping = self._announced = False
        self._clean = True
        self._told: Supervision | None = None
        self._act: dict[int, Callable[[float], None]] = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._interrupted,
            signal.SIGHUP: self._begin_roll,
        }

    def watch(self) -> int:
        """The parent's whole life."""
        for slot in self._slots:
            slot.start_at = self._clock()
        while True:
            now = self._clock()
            while self._caught:
                act = self._act.get(self._caught.pop(0))
                if act is not None:  # SIGCHLD only wakes us
                    act(now)
            self._reap(now)
            if self._stopping and not self._children:
                return 0 if self._clean else 1
            self._let_admin_go(now)
            self._start_due(now)
            self._roll_on(now)
            self._enforce(now)
            self._publish()
            self._wait()

    def _start(self, slot: Slot) -> Child | None:
        def release() -> None:
            for child, _ in self._children.values():
                child.close()
            for other in self._slots:
                if other is not slot:
                    other.sock.close()
            os.close(self._wake)

        try:
            child = fork_child(slot.index, slot.sock, self._home, slot.entry, release)
        except OSError as error:
            log.error("%s: cannot be started: %s", slot.name, error)
            return None
        self._children[child.pid] = (child, slot)
        return child

    def _start_due(self, now: float) -> None:
        for slot in self._slots:
            if slot.start_at is not None and slot.start_at <= now and not self._stopping:
                slot.current = self._start(slot)
                slot.start_at = None if slot.current else now + MAX_RESTART_S

    def _begin_roll(self, _now: float) -> None:
        if not self._stopping:
            log.info("SIGHUP: restarting every process, one at a time")
            self._to_roll = deque(self._slots[1:] + self._slots[:1])

    def _roll_on(self, now: float) -> None:
        while self._to_roll and not self._stopping and all(slot.candidate is None for slot in self._slots):
            slot = self._to_roll.popleft()
            if slot.current is None:
                continue  # it is about to be started anyway
            slot.candidate = self._start(slot)
            if slot.candidate is None:
                self._to_roll.clear()
            else:
                slot.candidate.ready_by = now + self._plan.ready_within_s

    def _became_ready(self, child: Child, slot: Slot, now: float) -> None:
        if child is slot.candidate:
            slot.candidate, old, slot.current = None, slot.current, child
            child.ready_by = None
            if old is not None:
                self._retire(old, now)
        if not self._announced and all(slot.current and slot.current.ready for slot in self._slots):
            self._announced = True
            data, admin = self._ports
            publish(self._home, "ready.json", Ready(data, admin, os.getpid()))
            where = (
                f"data {self._plan.data_scheme}://{_host(self._plan.data_host)}:{data} admin http://{_host(self._plan.admin_host)}:{admin}"
            )
            with contextlib.suppress(OSError):  # nobody reads it
                print(f"tidegate ready: {where} workers {self._plan.workers} pid {os.getpid()}", file=self._out, flush=True)

    def _retire(self, child: Child, now: float) -> None:
        """Tells a child to end: the admin process by its lifeline, a worker by SIGTERM, on which it drains."""
        child.retired, child.ready_by = True, None
        if child.index < 0:
            child.let_go()
            child.kill_at = now + ADMIN_END_S
        else:
            child.signal(signal.SIGTERM)
            child.kill_at = now + self._plan.accept_s + self._plan.grace_s + AFTER_GRACE_S

    def _stop(self, now: float) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._to_roll.clear()
        for slot in self._slots[1:]:
            # Workers hold the sockets themselves while they accept; ours would keep the port open, unanswered, after.
            slot.sock.close()
        for child, slot in list(self._children.values()):
            if not child.retired and slot.index >= 0:
                self._retire(child, now)
            elif slot.index < 0:
                child.signal(signal.SIGTERM)  # unready at once, but answering until the workers are gone

    def _interrupted(self, now: float) -> None:
        if self._stopping:
            for child, _ in self._children.values():
                child.kill_at = now
        self._stop(now)

    def _let_admin_go(self, now: float) -> None:
        if self._stopping and all(child.index < 0 for child, _ in self._children.values()):
            for child, _ in self._children.values():
                if not child.retired:
                    self._retire(child, now)

    def _enforce(self, now: float) -> None:
        for child, slot in list(self._children.values()):
            if child.ready_by is not None and child.ready_by <= now:
                log.error("%s: the replacement was not ready within %g s; the old process stays", slot.name, self._plan.ready_within_s)
                self._give_up_roll(slot)
                self._retire(child, now)
            if child.kill_at is not None and child.kill_at <= now:
                log.error("%s: process %d does not end; killing it", slot.name, child.pid)
                child.signal(signal.SIGKILL)
                child.kill_at = None

    def _reap(self, now: float) -> None:
        # One wait per child of ours and never waitpid(-1), which would take ends away from libraries in this process.
        for pid, (child, slot) in list(self._children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._children[pid]
                was_ready = child.ready or child.take_ready_byte()
                child.close()
                self._ended(child, slot, status, was_ready, now)

    def _ended(self, child: Child, slot: Slot, status: int, was_ready: bool, now: float) -> None:
        if child.retired or self._stopping:
            self._clean = self._clean and ended_cleanly(status, was_ready)
            return
        if child is slot.candidate:
            log.error("%s: the replacement ended (%s); the old process stays", slot.name, describe_end(status))
            self._give_up_roll(slot)
            return
        restart = slot.note_end(status, now, self._rng)
        # A replacement under way takes the place as it is.
        slot.current, slot.candidate = slot.candidate, None
        log.error("%s: process %d ended unexpectedly (%s), %d times lately", slot.name, child.pid, slot.last_end, restart.streak)
        if slot.current is not None:
            slot.current.ready_by = None
            return
        slot.start_at = now + restart.delay_s
        if restart.delay_s >= REST_FROM_S and slot.index >= 0 and all(other is not slot for _, other in self._children.values()):
            with contextlib.suppress(OSError):  # it was not listening
                slot.sock.shutdown(socket.SHUT_RD)

    def _give_up_roll(self, slot: Slot) -> None:
        slot.candidate = None
        self._to_roll.clear()

    def _wait(self) -> None:
        moments = [slot.start_at for slot in self._slots]
        moments += [moment for child, _ in self._children.values() for moment in (child.kill_at, child.ready_by)]
        due = [moment for moment in moments if moment is not None]
        with selectors.PollSelector() as poll:
            poll.register(self._wake, selectors.EVENT_READ)
            for child, _ in self._children.values():
                if child.ready_fd is not None:
                    poll.register(child.ready_fd, selectors.EVENT_READ, child.pid)
            found = poll.select(max(min(due) - self._clock(), 0.0) if due else None)
        for key, _ in found:
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            else:
                child, slot = self._children[key.data]
                if child.take_ready_byte():
                    self._became_ready(child, slot, self._clock())

    def _publish(self) -> None:
        told = Supervision(os.getpid(), *self._ports, tuple(slot.state() for slot in self._slots))
        if told != self._told:
            self._told = told
            publish(self._home, "supervisor.json", told)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
