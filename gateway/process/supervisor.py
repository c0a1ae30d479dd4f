"""The parent process of `tidegate serve`: claims sockets, forks workers and the admin process, keeps them alive.

The parent has no event loop and no threads, and does not know what its children do: an entry gets a `WorkerSlot` and reports when it is
ready. `gateway.process.children` decides when a child is started again; this file waits for signals, ready bytes and ends of children,
and acts.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TextIO

from domain.clock import Clock, Rng
from gateway.process.children import (
    MAX_RESTART_S,
    STORE_SLOT,
    Child,
    Entries,
    Entry,
    Slot,
    WorkerSlot,
    describe_end,
    ended_cleanly,
    fork_child,
    listening_to_signals,
)
from gateway.process.hot_restart import Handed, Renewal, handed_child, handed_over, handed_slot
from gateway.process.sd_notify import ServiceManager, service_manager
from gateway.process.snapshots import Supervision
from gateway.process.sockets import CannotStart, ProcessPlan, StartState, claimed, taken_over, tell_ready
from gateway.process.worker_link import publish

__all__ = ["CannotStart", "Entry", "ProcessPlan", "WorkerSlot", "run"]

REST_FROM_S: Final = 1.0
"""From this restart delay on, the slot's socket stops listening, so that the kernel gives its connections to other workers. Below
it they wait in the socket's queue for the replacement, which is kinder than a refusal."""
AFTER_GRACE_S: Final = 10.0
"""From the end of the drain's grace to SIGKILL: time to end the last streams with an error and to write the log out."""
ADMIN_END_S: Final = 10.0
"""Time for the admin process to end once its lifeline is closed; uvicorn gives open answers 2 s, and the last usage is persisted
within 4 s."""

log = logging.getLogger("tidegate.supervisor")


def run(
    plan: ProcessPlan,
    worker: Entry,
    admin: Entry,
    store: Entry | None = None,
    *,
    clock: Clock,
    rng: Rng,
    run_dir: Path | None = None,
    out: TextIO | None = None,
    again: Sequence[str] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; 0 when every child then ended in order, else 1.

    SIGHUP restarts all children one after the other without refusing a connection; SIGUSR2 replaces this process itself
    first, then the children (`gateway.process.hot_restart`); a second SIGINT ends at once.

    Args:
        worker, admin, store: run in forked children; see `Entry`. Must be called from a process with one thread.
        out: receives the one line that says that everything is ready; stderr when None.
        again: the command that starts this program anew, for SIGUSR2; with `renewal.REHEARSE` added it ends where serving would
            begin.

    Raises:
        CannotStart: an address or the run directory is taken; the message is for the operator.
    """
    entries = Entries(admin, worker, store)
    try:
        before = handed_over()
    except ValueError as error:
        raise CannotStart(str(error)) from None
    with taken_over(before, plan, entries) if before is not None else claimed(plan, entries, run_dir) as places:
        with listening_to_signals() as (wake, caught):
            return _Supervisor(places, Renewal(again), clock, rng, wake, caught, out or sys.stderr).watch()


class _Supervisor:
    def __init__(self, places: StartState, renewal: Renewal, clock: Clock, rng: Rng, wake: int, caught: list[int], out: TextIO) -> None:
        self._plan = places.plan
        self._slots = places.slots
        self._run_dir = places.run_dir
        self._home = places.run_dir.path
        self._renewal = renewal
        self._clock = clock
        self._rng = rng
        self._wake = wake
        self._caught = caught
        self._out = out
        self._ports = (self._slots[1].sock.getsockname()[1], self._slots[0].sock.getsockname()[1])
        self._children = {child.pid: (child, slot) for child, slot in places.children}
        self._to_roll: deque[Slot] = deque()
        self._stopping = False
        self._announced = bool(places.children)
        self._clean = True
        self._manager: ServiceManager = service_manager()
        self._published: Supervision | None = None
        self._act: dict[int, Callable[[float], None]] = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._interrupted,
            signal.SIGHUP: self._begin_roll,
            signal.SIGUSR2: renewal.ask,
        }

    def watch(self) -> int:
        """Run the parent until every child has ended; returns the exit code."""
        for slot in self._slots:
            slot.start_at = self._clock() if slot.current is None else None
        if self._children:
            self._resume(self._clock())
        while True:
            now = self._clock()
            while self._caught:
                act = self._act.get(self._caught.pop(0))
                if act is not None:  # SIGCHLD only wakes the loop
                    act(now)
            self._reap(now)
            if self._stopping and not self._children:
                return 0 if self._clean else 1
            self._retire_admin(now)
            self._start_due(now)
            self._continue_roll(now)
            self._continue_renewal(now)
            self._enforce_deadlines(now)
            self._manager.alive(now)
            self._publish()
            self._wait()

    def _start(self, slot: Slot) -> Child | None:
        def release() -> None:
            for child, _ in self._children.values():
                child.close()
            for sibling in self._slots:
                if sibling is not slot:
                    sibling.sock.close()
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

    def _resume(self, now: float) -> None:
        """Continue as the new supervisor after a hot restart: retire children without a slot, replace all others."""
        for child, slot in self._children.values():
            if slot not in self._slots and not child.retired:
                self._retire(child, now)
        self._begin_roll(now)

    def _continue_renewal(self, now: float) -> None:
        calm = not self._to_roll and all(slot.candidate is None for slot in self._slots)
        if calm and self._announced and not self._stopping:
            self._manager.reloaded(self._plan.workers, now)
        if self._stopping or not self._renewal.due(now, calm):
            return
        run_dir = self._run_dir
        data, admin = self._plan.addresses
        slots = map(handed_slot, self._slots)
        children = (handed_child(child) for child, _ in self._children.values())
        self._renewal.become(
            Handed(os.getpid(), str(self._home), run_dir.lock, run_dir.temporary, data, admin, tuple(slots), tuple(children))
        )

    def _begin_roll(self, now: float) -> None:
        if not self._stopping:
            self._manager.reloading(now)
            log.info("restarting every process, one at a time")
            self._to_roll = deque(slot for slot in self._slots[1:] + self._slots[:1] if slot.index != STORE_SLOT)

    def _continue_roll(self, now: float) -> None:
        while self._to_roll and not self._stopping and all(slot.candidate is None for slot in self._slots):
            slot = self._to_roll.popleft()
            if slot.current is None:
                continue  # it is about to be started anyway
            slot.candidate = self._start(slot)
            if slot.candidate is None:
                self._give_up_roll(slot, "it cannot be forked")
            else:
                slot.candidate.ready_by = now + self._plan.ready_within_s

    def _became_ready(self, child: Child, slot: Slot, now: float) -> None:
        if child is slot.candidate:
            old = slot.current
            slot.candidate = None
            slot.current = child
            child.ready_by = None
            if old is not None:
                self._retire(old, now)
            if not self._to_roll:
                log.info("every process has been replaced")
        if not self._announced and all(slot.current and slot.current.ready for slot in self._slots):
            self._announced = True
            tell_ready(self._plan, self._ports, self._home, self._out)
            self._manager.ready(self._plan.workers, now)

    def _retire(self, child: Child, now: float) -> None:
        """Tell a child to end: the admin and store process by the lifeline, a worker by SIGTERM, on which it drains."""
        child.retired = True
        child.ready_by = None
        if child.index < 0:
            child.close_lifeline()
            child.kill_at = now + ADMIN_END_S
        else:
            child.signal(signal.SIGTERM)
            child.kill_at = now + self._plan.accept_s + self._plan.grace_s + AFTER_GRACE_S

    def _stop(self, now: float) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._to_roll.clear()
        self._renewal.stop()
        self._manager.stopping(self._plan.accept_s + self._plan.grace_s + AFTER_GRACE_S + ADMIN_END_S)
        for slot in self._slots[1:]:
            # Workers hold the sockets themselves while they accept; this copy would keep the port open, unanswered, afterwards.
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

    def _retire_admin(self, now: float) -> None:
        if self._stopping and all(child.index < 0 for child, _ in self._children.values()):
            for child, _ in self._children.values():
                if not child.retired:
                    self._retire(child, now)

    def _enforce_deadlines(self, now: float) -> None:
        for child, slot in list(self._children.values()):
            if child.ready_by is not None and child.ready_by <= now:
                log.error("%s: the replacement was not ready within %g s; the old process stays", slot.name, self._plan.ready_within_s)
                self._give_up_roll(slot, f"it was not ready within {self._plan.ready_within_s:g} s")
                self._retire(child, now)
            if child.kill_at is not None and child.kill_at <= now:
                log.error("%s: process %d does not end; killing it", slot.name, child.pid)
                child.signal(signal.SIGKILL)
                child.kill_at = None

    def _reap(self, now: float) -> None:
        # One wait per own child and never waitpid(-1), which would take ends away from libraries in this process.
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
            self._give_up_roll(slot, f"it ended ({describe_end(status)})")
            return
        restart = slot.note_end(status, now, self._rng)
        # A replacement that is starting takes the slot as it is.
        slot.current, slot.candidate = slot.candidate, None
        log.error("%s: process %d ended unexpectedly (%s), %d times lately", slot.name, child.pid, slot.last_end, restart.streak)
        if slot.current is not None:
            slot.current.ready_by = None
            return
        slot.start_at = now + restart.delay_s
        if restart.delay_s >= REST_FROM_S and slot.index >= 0 and all(sibling is not slot for _, sibling in self._children.values()):
            with contextlib.suppress(OSError):  # it was not listening
                slot.sock.shutdown(socket.SHUT_RD)

    def _give_up_roll(self, slot: Slot, why: str) -> None:
        slot.note_refusal(why)
        self._to_roll.clear()

    def _wait(self) -> None:
        moments = [self._renewal.give_up_at, self._manager.sign_at, *(slot.start_at for slot in self._slots)]
        moments += [moment for child, _ in self._children.values() for moment in (child.kill_at, child.ready_by)]
        due = [moment for moment in moments if moment is not None]
        with selectors.PollSelector() as poll:
            poll.register(self._wake, selectors.EVENT_READ)
            for child, _ in self._children.values():
                if child.ready_fd is not None:
                    poll.register(child.ready_fd, selectors.EVENT_READ, child.pid)
            events = poll.select(max(min(due) - self._clock(), 0.0) if due else None)
        for key, _ in events:
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            else:
                child, slot = self._children[key.data]
                if child.take_ready_byte():
                    self._became_ready(child, slot, self._clock())

    def _publish(self) -> None:
        slots = tuple(slot.state() for slot in self._slots)
        supervision = Supervision(os.getpid(), *self._ports, slots, self._plan.supervised())
        if supervision != self._published:
            self._published = supervision
            publish(self._home, "supervisor.json", supervision)
