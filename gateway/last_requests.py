"""The end of a worker's last requests.

A request that was answered still has to be settled and recorded, which takes a round trip to the counter store. The ledger's writer
may close only after that, or the ledger counts the request as lost.
"""

import asyncio
import contextlib
from typing import Final

from backends.attempt import RetryBudget
from gateway.http.edge.door import Connections

CONNECTIONS_S: Final = 2.0
"""Longest wait for callers to read their replies; then their connections are aborted."""
RECORDS_S: Final = 2.0
"""Longest wait for the Records after that: a settlement waits 50 ms for the store in each of at most four groups."""
POLL_S: Final = 0.02


async def end_requests(connections: Connections, budget: RetryBudget) -> None:
    """Wait until no caller is connected and every request has its Record, each wait within its bound."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(connections.wait_until_empty(), CONNECTIONS_S)
    for connection in list(connections.open):
        connection.abort()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RECORDS_S):
            while budget.active:
                await asyncio.sleep(POLL_S)
