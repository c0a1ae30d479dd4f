"""What workers tell each other of the service that tenants got from their queues, so that turns are fair over all of them.

Connections are spread over workers by chance. Where one tenant waits in one worker and another in two, each worker by itself would serve
both alike, and the second would get twice as much. So each worker adds to a tenant's service what the others' queues served it, while
anybody waits in its own (`FairQueue.served_elsewhere`). The bounds of `routing.fair_queue` then hold over all workers, and by what is
served in the time that news takes more.

Told are sums since the last message, with the corrections of requests that have ended. A message that is lost shifts nobody's turn by more
than it said.

    message = [[pool, rank, tenant, tokens], ...]
"""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from gateway.process.sibling_bus import Sibling, TopicNumber
from gateway.queue.pool_queue import PoolQueues
from routing.fair_queue import RANKS

MAX_BYTES_PER_S: Final = 256 * 1024
"""Bytes a second that a worker tells each sibling: some 6,000 tenants' service. What is beyond it is told later."""
MAX_SUMS: Final = 10_000
"""Sums that wait to be told; the service of further tenants is not told."""
_SUM_BYTES: Final = 20
"""Bytes of a sum beside its names, at most."""


class _Served(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pool: str
    rank: Annotated[int, msgspec.Meta(ge=0, lt=RANKS)]
    tenant: str
    tokens: Annotated[int, msgspec.Meta(ge=-(2**40), le=2**40)]


class SharedService:
    """Tells what this worker's queues served, and takes what those of its siblings did."""

    kind = TopicNumber.SERVICE
    between_hosts = True
    max_bytes_per_s = MAX_BYTES_PER_S

    def __init__(self, queues: PoolQueues) -> None:
        self.tell_soon: Callable[[], None] = lambda: None
        """Asks the bus to call `batch` soon; set by the worker that has a bus."""
        self._queues = queues
        self._there: set[Sibling] = set()
        self._sums: dict[tuple[str, int, str], int] = {}

    def batch(self, max_bytes: int) -> bytes:
        """The next message, for `SiblingBus`; what does not fit is told with the next one."""
        told: list[_Served] = []
        for (pool, rank, tenant), tokens in list(self._sums.items()):
            max_bytes -= len(pool) + len(tenant.encode()) + _SUM_BYTES
            if max_bytes < 0:
                self.tell_soon()
                break
            del self._sums[pool, rank, tenant]
            if tokens:
                told.append(_Served(pool, rank, tenant, tokens))
        return msgspec.msgpack.encode(told) if told else b""

    def received(self, sibling: Sibling, payload: bytes) -> None:
        """Take a sibling's message. Raises ValueError when it is none."""
        try:
            told = msgspec.msgpack.decode(payload, type=list[_Served])
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        for served in told:
            queue = self._queues.get(served.pool)
            if queue is not None:
                queue.served_elsewhere(served.rank, served.tenant, served.tokens)

    def joined(self, sibling: Sibling) -> None:
        """From now on there is somebody to tell."""
        self._there.add(sibling)
        self._linked()

    def left(self, sibling: Sibling) -> None:
        """What it served stays served."""
        self._there.discard(sibling)
        self._linked()

    def _linked(self) -> None:
        for name, queue in self._queues.items():
            queue.tell_served(self._serves(name) if self._there else None)

    def _serves(self, pool: str) -> Callable[[int, str, int], None]:
        def served(rank: int, tenant: str, tokens: int) -> None:
            sums, key = self._sums, (pool, rank, tenant)
            if key in sums or len(sums) < MAX_SUMS:
                sums[key] = sums.get(key, 0) + tokens
                self.tell_soon()

        return served
