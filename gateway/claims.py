"""Claims the resources that a gateway must own before its first child starts: listening addresses and the run directory.

Raises `CannotStart` with a sentence for the operator when another process has them. Child processes are left to `forking`.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gateway.worker_link import worker_socket


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
    """The same for a directory that this process has locked already. `lock` must have been open all the time."""
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
    for file in (*path.glob("worker-*.sock"), *path.glob("kept-*.json"), *path.glob(".kept-*.partial"), *named):
        file.unlink(missing_ok=True)
