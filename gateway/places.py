"""The start state of a supervisor: its run directory, the slot of each child, and the children that run already; and the ready line.

The state is claimed from the machine at a start, or taken over from the previous supervisor in a hot restart (`gateway.renewal`).
"""

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from gateway.claims import RunDir, claim_admin_socket, claim_data_sockets, claim_run_dir, keep_run_dir, more_data_sockets
from gateway.forking import ADMIN, Child, Entries, Slot, slots_for
from gateway.renewal import Handed, HandedSlot
from gateway.restarts import KEPT_ENDS
from gateway.worker_link import publish

log = logging.getLogger("tidegate.supervisor")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the settings that the supervisor needs. A port of 0 stands for any free one."""

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
    """Longest time for a replacement to become ready in a rolling restart; after it the old process is kept."""

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Host and port of data and admin port."""
        return (self.data_host, self.data_port), (self.admin_host, self.admin_port)


class Places(NamedTuple):
    """The start state of a supervisor."""

    run_dir: RunDir
    slots: list[Slot]
    """The slots of the admin process, the workers and the store, in this order."""
    children: list[tuple[Child, Slot]]
    """The children that run already, draining ones included, with their slots."""
    plan: Plan
    """The plan; in a hot restart with the old values of everything that only a new start can change."""


@contextlib.contextmanager
def claimed(plan: Plan, entries: Entries, run_dir_path: Path | None) -> Iterator[Places]:
    """A newly claimed state without children. Raises CannotStart."""
    with claim_run_dir(run_dir_path) as run_dir:
        sockets = claim_data_sockets(plan.data_host, plan.data_port, plan.workers)
        slots = slots_for(claim_admin_socket(plan.admin_host, plan.admin_port), sockets, entries)
        with _closing_sockets(slots):
            yield Places(run_dir, slots, [], plan)


@contextlib.contextmanager
def taken_over(handed: Handed, plan: Plan, entries: Entries) -> Iterator[Places]:
    """The state of the previous supervisor.

    Addresses stay, and the number of workers never falls: a listener that closes loses the connections in its queue.

    Raises:
        CannotStart: there are to be more workers, and no socket can be bound for them.
    """
    children = {
        old.pid: Child(old.pid, old.index, old.ready_fd, old.lifeline, old.ready, old.retired, kill_at=old.kill_at)
        for old in handed.children
    }
    before = {old.index: _slot_of(old, entries, children) for old in handed.slots}
    count = sum(index >= 0 for index in before)
    if (handed.data, handed.admin) != plan.addresses or plan.workers < count:
        log.warning("data.bind, admin.bind and a smaller number of workers are taken up by a new start only; they stay as they are")
    data_host, data_port = handed.data
    admin_host, admin_port = handed.admin
    addresses = {"data_host": data_host, "data_port": data_port, "admin_host": admin_host, "admin_port": admin_port}
    adapted = msgspec.structs.replace(plan, **addresses, workers=max(count, plan.workers))
    more_sockets = more_data_sockets(data_host, before[0].sock.getsockname()[1], adapted.workers - count)
    new = slots_for(before[ADMIN].sock, [*(before[index].sock for index in range(count)), *more_sockets], entries)
    slots = [before.get(slot.index, slot) for slot in new]
    with keep_run_dir(Path(handed.home), handed.lock, temporary=handed.temporary) as run_dir:
        with _closing_sockets([*before.values(), *new]):
            yield Places(run_dir, slots, [(child, before[child.index]) for child in children.values()], adapted)


def _slot_of(handed: HandedSlot, entries: Entries, children: dict[int, Child]) -> Slot:
    current = children.get(handed.current) if handed.current is not None else None
    ends = deque(handed.ends, maxlen=KEPT_ENDS)
    entry = entries.of(handed.index) or entries.worker  # the fallback is for a store that is no longer configured; it is never run again
    sock = socket.socket(fileno=handed.sock)
    return Slot(
        handed.name, handed.index, sock, entry, current, ends=ends, restarts=handed.restarts, streak=handed.streak, last_end=handed.last_end
    )


@contextlib.contextmanager
def _closing_sockets(slots: list[Slot]) -> Iterator[None]:
    try:
        yield
    finally:
        for slot in slots:
            slot.sock.close()


class Ready(msgspec.Struct, frozen=True):
    """The content of `ready.json`, which is written when every child is ready for the first time."""

    data_port: int
    admin_port: int
    pid: int


def tell_ready(plan: Plan, ports: tuple[int, int], home: Path, out: TextIO) -> None:
    """Write `ready.json` and one line to `out`. `ports` are the data port and the admin port."""
    data, admin = ports
    publish(home, "ready.json", Ready(data, admin, os.getpid()))
    where = f"data {plan.data_scheme}://{_host(plan.data_host)}:{data} admin http://{_host(plan.admin_host)}:{admin}"
    with contextlib.suppress(OSError):  # nobody reads it
        print(f"tidegate ready: {where} workers {plan.workers} pid {os.getpid()}", file=out, flush=True)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
