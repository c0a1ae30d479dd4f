"""Small requests of the gateway's own to the engines of a pool: vectors of questions, comparisons of answers, questions to guard models.

They are sent over the `Upstream` port, as callers' requests are, and are too short to place: each goes to the next engine that is up. They
take no place in queues and are no part of any tenant's load.
"""

from typing import Final

from backends.fetch import FetchError, fetch
from gateway.deps import Deps

MAX_REPLY_BYTES: Final = 16 * 1024**2
"""Vectors of a batch of questions take megabytes in JSON."""


class PoolCalls:
    """Small calls to the engines of one pool, in turn: they are too short to place.

    Args:
        path: the route that is asked.
        timeout_s: how long a call may take.
    """

    def __init__(self, deps: Deps, pool: str, path: str, timeout_s: float) -> None:
        self._deps = deps
        self._pool = pool
        self._path = path
        self._timeout_s = timeout_s
        self._next = 0

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """The status and body of the reply. Raises OSError where no backend can be asked, or none answers in time."""
        deps, up = self._deps, self._deps.live.fleet.pools[self._pool].up
        if not up:
            raise OSError(f"no backend of pool {self._pool} is up")
        self._next += 1
        upstream = deps.upstreams.get(up[self._next % len(up)].id)
        if upstream is None:
            raise OSError(f"a backend of pool {self._pool} has just left")
        own_id, most = deps.new_id(), MAX_REPLY_BYTES
        try:
            reply = await fetch(upstream, self._path, timeout_s=self._timeout_s, max_bytes=most, body=body, request_id=own_id)
        except FetchError as error:
            raise OSError(str(error)) from None
        return reply.status, reply.body
