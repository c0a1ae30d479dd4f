"""What a supervisor begins with: its run directory, the place of each child, and who is there already. And the word that all serve.

Claimed from the machine at a start, or taken over from the supervisor that this process was (`gateway.renewal`).
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

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Host and port of data and admin port."""
        return (self.data_host, self.data_port), (self.admin_host, self.admin_port)


class Places(NamedTuple):
    """What it begins with."""

    run_dir: RunDir
    slots: list[Slot]
    """The admin process's, the workers', the store's."""
    children: list[tuple[Child, Slot]]
    """Those that run already, draining ones included."""
    plan: Plan
    """With what cannot be changed as it was."""


@contextlib.contextmanager
def claimed(plan: Plan, entries: Entries, wanted: Path | None) -> Iterator[Places]:
    """New ones, nobody there yet. Raises CannotStart."""
    with claim_run_dir(wanted) as run_dir:
        sockets = claim_data_sockets(plan.data_host, plan.data_port, plan.workers)
        slots = slots_for(claim_admin_socket(plan.admin_host, plan.admin_port), sockets, entries)
        with _closed_in_the_end(slots):
            yield Places(run_dir, slots, [], plan)


@contextlib.contextmanager
def taken_over(handed: Handed, plan: Plan, entries: Entries) -> Iterator[Places]:
    """Those of the supervisor before. Addresses stay, and workers do not get fewer: a listener that closes loses what waits in its
    queue. Raises CannotStart when there are to be more workers and no socket for them."""
    children = {
        one.pid: Child(one.pid, one.index, one.ready_fd, one.lifeline, one.ready, one.retired, kill_at=one.kill_at)
        for one in handed.children
    }
    before = {one.index: _as_it_was(one, entries, children) for one in handed.slots}
    count = sum(index >= 0 for index in before)
    if (handed.data, handed.admin) != plan.addresses or plan.workers < count:
        log.warning("data.bind, admin.bind and a smaller number of workers are taken up by a new start only; they stay as they are")
    (data_host, data_port), (admin_host, admin_port) = handed.data, handed.admin
    addresses = {"data_host": data_host, "data_port": data_port, "admin_host": admin_host, "admin_port": admin_port}
    kept = msgspec.structs.replace(plan, **addresses, workers=max(count, plan.workers))
    more = more_data_sockets(data_host, before[0].sock.getsockname()[1], kept.workers - count)
    new = slots_for(before[ADMIN].sock, [*(before[index].sock for index in range(count)), *more], entries)
    slots = [before.get(slot.index, slot) for slot in new]
    with keep_run_dir(Path(handed.home), handed.lock, temporary=handed.temporary) as run_dir:
        with _closed_in_the_end([*before.values(), *new]):
            yield Places(run_dir, slots, [(child, before[child.index]) for child in children.values()], kept)


def _as_it_was(one: HandedSlot, entries: Entries, children: dict[int, Child]) -> Slot:
    current = children.get(one.current) if one.current is not None else None
    ends = deque(one.ends, maxlen=KEPT_ENDS)
    entry = entries.of(one.index) or entries.worker  # of a store that is no longer wanted: never run again
    sock = socket.socket(fileno=one.sock)
    return Slot(one.name, one.index, sock, entry, current, ends=ends, restarts=one.restarts, streak=one.streak, last_end=one.last_end)


@contextlib.contextmanager
def _closed_in_the_end(slots: list[Slot]) -> Iterator[None]:
    try:
        yield
    finally:
        for slot in slots:
            slot.sock.close()


class Ready(msgspec.Struct, frozen=True):
    """What `ready.json` holds: written when every child is ready for the first time."""

    data_port: int
    admin_port: int
    pid: int


def tell_ready(plan: Plan, ports: tuple[int, int], home: Path, out: TextIO) -> None:
    """Write `ready.json` and one line to `out`. `ports` are those of data and administration."""
    data, admin = ports
    publish(home, "ready.json", Ready(data, admin, os.getpid()))
    where = f"data {plan.data_scheme}://{_host(plan.data_host)}:{data} admin http://{_host(plan.admin_host)}:{admin}"
    with contextlib.suppress(OSError):  # nobody reads it
        print(f"tidegate ready: {where} workers {plan.workers} pid {os.getpid()}", file=out, flush=True)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
