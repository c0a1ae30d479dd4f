"""The drain of one worker after SIGTERM (R21): no new connections, then no new requests, then an error for the requests that are left.

Responses in the background are requests without a caller: they have the grace, too, and those that are left end as failed.

The worker says that it is unready before it calls `drain`. `end_requests` waits for the last requests: a request that was answered still
has to be settled and recorded, which takes a round trip to the counter store. The ledger's writer may close only after that, or the ledger
counts the request as lost. The supervisor passes SIGTERM on to its workers (`gateway/process/supervisor.py`); the drain of a backend, which
has nothing to do with SIGTERM, is `gateway/fleet/roster.py`.
"""

import asyncio
import contextlib
from typing import Final, Protocol

import structlog

from backends.attempt import RetryBudget
from gateway.background.runs import BackgroundRuns
from gateway.config.settings import DrainSettings
from gateway.deps import Deps
from gateway.http.edge.connections import IDLE_WAIT_S, Connections
from gateway.queue.refusals import stopping
from gateway.rollouts.shadow import end_shadows

log = structlog.get_logger("tidegate.worker")

CONNECTIONS_S: Final = 2.0
"""Longest wait for callers to read their replies; then their connections are aborted."""
RECORDS_S: Final = 2.0
"""Longest wait for the Records after that: a settlement waits 50 ms for the store in each of at most four groups."""
POLL_S: Final = 0.02


class Closes(Protocol):
    """A listener."""

    def close(self) -> object:
        """Accept no further connections; those that are open stay."""
        ...


async def drain(server: Closes, connections: Connections, deps: Deps, limits: DrainSettings, worker: int) -> None:
    """Accept connections for `accept_s` more, give requests `grace_s` to finish, then end the remaining ones with an error.

    Load balancers take `accept_s` to notice that the worker is unready. Queued requests are still dispatched during the grace.

    Args:
        worker: index of the worker, for the log.
    """
    connections.draining = True
    log.info("draining", worker=worker, in_flight=deps.budget.active, accept_s=limits.accept_s, grace_s=limits.grace_s)
    await asyncio.sleep(limits.accept_s)
    server.close()
    for queue in deps.queues.values():
        queue.stop_holding()  # an engine that has still to start would come too late
    give_up_at = deps.clock() + limits.grace_s
    await connections.wait_for_idle(min(give_up_at, deps.clock() + IDLE_WAIT_S))
    connections.start_draining()
    background = deps.background
    while (connections.open or (background is not None and background.running)) and deps.clock() < give_up_at:
        await asyncio.sleep(POLL_S)
    if deps.budget.active:
        log.warning("the grace is over; cutting what still runs", worker=worker, in_flight=deps.budget.active)
    deps.queues.stop()
    end_shadows(deps)
    for relay in deps.watch.relays():
        relay.end_with(stopping())
    await end_requests(connections, deps.budget, background)


async def end_requests(connections: Connections, budget: RetryBudget, background: BackgroundRuns | None = None) -> None:
    """Wait until no caller is connected, every request has its Record, and every Response in the background its end, each wait within its
    bound."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(connections.wait_until_empty(), CONNECTIONS_S)
    for connection in list(connections.open):
        connection.abort()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RECORDS_S):
            while budget.active or (background is not None and background.running):
                await asyncio.sleep(POLL_S)
