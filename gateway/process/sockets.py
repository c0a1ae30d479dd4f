"""The resources that a gateway must own before its first child starts: listening addresses and the run directory.

Claiming one raises `CannotStart` with a sentence for the operator when another process has them. The start state of a supervisor (its run
directory, the slot of each child, the children that run already) is claimed from the machine at a start, or taken over from the previous
supervisor in a hot restart (`gateway.process.hot_restart`). Child processes are left to `gateway.process.children`.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import stat
import tempfile
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from gateway.process.children import ADMIN_SLOT, KEPT_ENDS, Child, Entries, Slot, slots_for
from gateway.process.hot_restart import Handed, HandedSlot
from gateway.process.snapshots import SupervisedPlan
from gateway.process.worker_link import publish, worker_socket
from gateway.telemetry.logs import for_people


class CannotStart(Exception):
    """An address or directory could not be claimed; the message names it, the reason and the remedy."""


class RunDir(NamedTuple):
    """A claimed run directory."""

    path: Path
    lock: int
    """The descriptor that holds the lock."""
    temporary: bool
    """Whether the directory is removed at the end."""


def claim_data_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` sockets bound to one port (any free one for 0), none listening, sharing the port through SO_REUSEPORT.

    Each worker has a socket, so that the kernel spreads connections and a worker that is not ready gets none.
    """
    probe = _bound("data port", "data.bind", host, port, share=False)
    with contextlib.closing(probe):
        chosen = probe.getsockname()[1]
        # The probe is bound without SO_REUSEPORT: with it, a second gateway of the same user would quietly take half of
        # the connections. Only now does it admit further sockets; closing it first would leave a gap for another process.
        # Those sockets name the port even when it was chosen freely, because a socket bound to port 0 loses its port when
        # it stops listening (`supervisor.REST_FROM_S`).
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return more_data_sockets(host, chosen, count)


def more_data_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` further sockets on the same port, as `claim_data_sockets` makes them."""
    return [_bound("data port", "data.bind", host, port, share=True) for _ in range(count)]


def claim_admin_socket(host: str, port: int) -> socket.socket:
    """The admin port's socket, bound and not listening."""
    return _bound("admin port", "admin.bind", host, port, share=False)


def _bound(port_name: str, key: str, host: str, port: int, *, share: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise CannotStart(f"{port_name}: {key} host {host!r} is not an address of this machine ({error})") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise CannotStart(
            f"{port_name}: cannot bind {host}:{port} ({error.strerror}); stop the process that has it or change {key}"
        ) from None
    return sock


@contextlib.contextmanager
def claim_run_dir(chosen: Path | None) -> Iterator[RunDir]:
    """The run directory, locked while the context lasts: `chosen`, made if missing, or a private temporary one.

    Files of a previous run are removed. At the end a temporary directory is removed, and another one is emptied of this gateway's files.
    """
    path = Path(tempfile.mkdtemp(prefix="tidegate-")) if chosen is None else chosen.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.stat()
        if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o022:
            raise CannotStart(f"run directory {path}: others may write to it; run `chmod 700 {path}` as its owner or choose another")
        worker_socket(path, 999, 2**22)  # 2**22: the largest pid of Linux
    except (OSError, ValueError) as error:
        raise CannotStart(str(error)) from None
    lock = os.open(path / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        # A record lock, which children do not inherit: a draining child must not keep a successor out.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise CannotStart(f"run directory {path}: another gateway uses it; stop that one or choose another --run-dir") from None
    _remove_files(path)
    with keep_run_dir(path, lock, temporary=chosen is None) as held:
        yield held


@contextlib.contextmanager
def keep_run_dir(path: Path, lock: int, *, temporary: bool) -> Iterator[RunDir]:
    """Hold a run directory that this process has locked already. `lock` must have been open all the time."""
    try:
        yield RunDir(path, lock, temporary)
    finally:
        if temporary:
            shutil.rmtree(path, ignore_errors=True)
        else:
            _remove_files(path)
        os.close(lock)


def _remove_files(path: Path) -> None:
    named = [path / name for name in ("ready.json", "supervisor.json", "drains.json", "counters.sock")]
    for file in (*path.glob("worker-*.sock"), *path.glob("bus-*.sock"), *path.glob("kept-*.json"), *path.glob(".kept-*.partial"), *named):
        file.unlink(missing_ok=True)


log = logging.getLogger("tidegate.supervisor")


class ProcessPlan(msgspec.Struct, frozen=True, kw_only=True):
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

    def supervised(self) -> SupervisedPlan:
        """The plan, for comparison with settings that were read later."""
        binds = (shown_address(self.data_host, self.data_port), shown_address(self.admin_host, self.admin_port))
        return SupervisedPlan(*binds, self.workers, self.accept_s, self.grace_s)


class StartState(NamedTuple):
    """The start state of a supervisor."""

    run_dir: RunDir
    slots: list[Slot]
    """The slots of the admin process, the workers and the store, in this order."""
    children: list[tuple[Child, Slot]]
    """The children that run already, draining ones included, with their slots."""
    plan: ProcessPlan
    """The plan; in a hot restart with the old values of everything that only a new start can change."""


@contextlib.contextmanager
def claimed(plan: ProcessPlan, entries: Entries, run_dir_path: Path | None) -> Iterator[StartState]:
    """A newly claimed state without children. Raises CannotStart."""
    with claim_run_dir(run_dir_path) as run_dir:
        sockets = claim_data_sockets(plan.data_host, plan.data_port, plan.workers)
        slots = slots_for(claim_admin_socket(plan.admin_host, plan.admin_port), sockets, entries)
        with _closing_sockets(slots):
            yield StartState(run_dir, slots, [], plan)


@contextlib.contextmanager
def taken_over(handed: Handed, plan: ProcessPlan, entries: Entries) -> Iterator[StartState]:
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
    new = slots_for(before[ADMIN_SLOT].sock, [*(before[index].sock for index in range(count)), *more_sockets], entries)
    slots = [before.get(slot.index, slot) for slot in new]
    with keep_run_dir(Path(handed.home), handed.lock, temporary=handed.temporary) as run_dir:
        with _closing_sockets([*before.values(), *new]):
            yield StartState(run_dir, slots, [(child, before[child.index]) for child in children.values()], adapted)


def _slot_of(handed: HandedSlot, entries: Entries, children: dict[int, Child]) -> Slot:
    current = children.get(handed.current) if handed.current is not None else None
    ends = deque(handed.ends, maxlen=KEPT_ENDS)
    entry = entries.of(handed.index) or entries.worker  # the fallback is for a store that is no longer configured; it is never run again
    sock = socket.socket(fileno=handed.sock)
    return Slot(
        handed.name,
        handed.index,
        sock,
        entry,
        current,
        ends=ends,
        restarts=handed.restarts,
        streak=handed.streak,
        last_end=handed.last_end,
        refused_replacements=handed.refused_replacements,
        last_refusal=handed.last_refusal,
    )


@contextlib.contextmanager
def _closing_sockets(slots: list[Slot]) -> Iterator[None]:
    try:
        yield
    finally:
        for slot in slots:
            slot.sock.close()


class ReadyFile(msgspec.Struct, frozen=True):
    """The content of `ready.json`, which is written when every child is ready for the first time."""

    data_port: int
    admin_port: int
    pid: int


def tell_ready(plan: ProcessPlan, ports: tuple[int, int], home: Path, out: TextIO) -> None:
    """Write `ready.json` and one line to `out`. `ports` are the data port and the admin port."""
    data, admin = ports
    publish(home, "ready.json", ReadyFile(data, admin, os.getpid()))
    addresses = {"data": f"{plan.data_scheme}://{_host(plan.data_host)}:{data}", "admin": f"http://{_host(plan.admin_host)}:{admin}"}
    if for_people():
        line = f"tidegate ready: data {addresses['data']} admin {addresses['admin']} workers {plan.workers} pid {os.getpid()}"
    else:
        fields = {**addresses, "workers": plan.workers, "pid": os.getpid(), "role": "supervisor", "level": "info"}
        line = msgspec.json.encode({"event": "ready", **fields, "timestamp": datetime.now(UTC)}).decode()
    with contextlib.suppress(OSError):  # nobody reads it
        print(line, file=out, flush=True)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def shown_address(host: str, port: int) -> str:
    """`host:port`, or `[v6]:port`."""
    return f"{_host(host)}:{port}"
