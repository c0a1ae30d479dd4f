"""Tells the service manager how the gateway stands: the datagrams of sd_notify(3), for units with `Type=notify`.

Without `NOTIFY_SOCKET` in the environment nothing is sent. Only the supervisor tells: the unit's main process, whose pid stays through hot
restarts. It also sends the watchdog's sign of life, so that a supervisor that hangs is noticed; workers are its own to watch.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
"""Environment variable with the path of the manager's socket; a name that begins with @ is in the abstract namespace."""
WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
"""Environment variable with the time after which a silent service counts as hanging, in microseconds."""
WATCHDOG_PID_VARIABLE: Final = "WATCHDOG_PID"
"""Environment variable with the process that has to give signs of life; absent for any."""
SIGNS_PER_TIMEOUT: Final = 2
"""Signs of life in each watchdog time-out; sd_watchdog_enabled(3) asks for one in half of it."""

log = logging.getLogger("tidegate.supervisor")


class ServiceManager:
    """The socket of the service manager, and when the next sign of life is due.

    Args:
        environment: the process's variables.
        pid: the supervisor's process.
    """

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        self._address = _address(environment.get(SOCKET_VARIABLE, ""))
        self._every_s = None if self._address is None else _sign_every_s(environment, pid)
        self._reloading = False
        self.sign_at: float | None = None
        """When the next sign of life is due, on the supervisor's clock; None where nobody waits for one."""

    def ready(self, workers: int, now: float) -> None:
        """Every process serves."""
        self._reloading = False
        self._tell("READY=1", f"STATUS=serving with {workers} worker{'s' * (workers > 1)}")
        self.alive(now)

    def reloading(self, now: float) -> None:
        """A rolling restart begins."""
        self._reloading = True
        self._tell("RELOADING=1", f"MONOTONIC_USEC={int(now * 1e6)}", "STATUS=restarting every process, one at a time")

    def reloaded(self, workers: int, now: float) -> None:
        """No rolling restart is in progress: tell so where one was, whether it replaced everything or gave up."""
        if self._reloading:
            self.ready(workers, now)

    def stopping(self, within_s: float) -> None:
        """The drain begins.

        Args:
            within_s: the longest that it takes. The manager waits so long before it kills, whatever `TimeoutStopSec` says.
        """
        self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}", "STATUS=draining")

    def alive(self, now: float) -> None:
        """Give the sign of life where it is due. To be called in every turn of the supervisor's loop."""
        if self._every_s is not None and (self.sign_at is None or self.sign_at <= now):
            self._tell("WATCHDOG=1")
            self.sign_at = now + self._every_s

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            try:
                sock.sendto("\n".join(lines).encode(), self._address)
            except OSError as error:
                log.warning("the service manager cannot be told %s: %s", lines[0], error)


def _address(written: str) -> str | None:
    """The address of the manager's socket; None for none, and for kinds of sockets that are not known."""
    if written.startswith("@"):
        return "\0" + written[1:]
    return written if written.startswith("/") else None


def _sign_every_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Seconds between signs of life; None where none are asked of this process."""
    if environment.get(WATCHDOG_PID_VARIABLE, str(pid)) != str(pid):
        return None
    with contextlib.suppress(ValueError):
        timeout_us = int(environment.get(WATCHDOG_VARIABLE, ""))
        if timeout_us > 0:
            return timeout_us / 1e6 / SIGNS_PER_TIMEOUT
    return None


def service_manager() -> ServiceManager:
    """The manager that started this process."""
    return ServiceManager(os.environ, os.getpid())
