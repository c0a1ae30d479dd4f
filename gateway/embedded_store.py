"""The process that keeps an embedded counter store: starts its server, reports ready, stops it when its lifeline closes.

A process between supervisor and server makes the store a slot like any other: restarted with the same back-off, counted in the
same metric, and never blocking the supervisor.
"""

import contextlib
import os
import selectors
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from gateway.forking import Seat

log = structlog.get_logger("tidegate.store")


class Server(Protocol):
    """The server process that the keeper controls (`tenancy.stores.valkey.embedded`)."""

    def start(self) -> int:
        """Start the server; returns its pid once it answers. Raises an Exception whose message is for the operator."""
        ...

    def ended(self) -> int | None:
        """The server's exit code; None while it runs."""
        ...

    def stop(self) -> None:
        """Stop the server, in order if possible."""
        ...


def store_main(seat: Seat, open_server: Callable[[Path], Server], refusal: type[Exception]) -> None:
    """Keep one server until the lifeline closes.

    Exits with 1 when the server cannot start (`refusal`) or ends by itself: the supervisor then starts another keeper.
    """
    # workers drain for minutes after SIGTERM and need the store to the end; the supervisor closes its lifeline after them
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = open_server(Path(seat.run_dir))
    try:
        pid = server.start()
    except refusal as error:
        log.error("the counter store cannot be started", reason=str(error))
        raise SystemExit(1) from None
    seat.ready()
    log.info("counter store started", pid=pid)
    with contextlib.closing(selectors.DefaultSelector()) as waiting:
        watched = os.pidfd_open(pid)
        waiting.register(seat.lifeline, selectors.EVENT_READ)
        waiting.register(watched, selectors.EVENT_READ)
        waiting.select()
        os.close(watched)
    code = server.ended()
    if code is not None:
        log.error("the counter store ended by itself", exit_code=code)
        raise SystemExit(1)
    server.stop()
