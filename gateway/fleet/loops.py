"""Background loops by key that can be added and dropped while others run (`Loops`): one per backend, for polls and readings.

A loop that fails ends all of them, whether it was there from the start or added later: a worker that serves without polls would
serve blindly. `ZeroMq` is the one ZeroMQ context of a worker, which loops for KV events and load reports share.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backends.ports import Upstream

if TYPE_CHECKING:
    import zmq

K = TypeVar("K", bound=Hashable)

Work = Callable[[], Coroutine[Any, Any, None]]
"""Makes the coroutine of one loop; it runs until it is cancelled."""


class Loops(Generic[K]):
    """At most one loop per key; the caller bounds the number of keys."""

    def __init__(self) -> None:
        self._work: dict[K, Work] = {}
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def add(self, key: K, work: Work) -> None:
        """Run `work` from now on, or from the start of `run`."""
        self._work[key] = work
        if self._group is not None:
            self._tasks[key] = self._group.create_task(work())

    def drop(self, key: K) -> Awaitable[None]:
        """Cancel the loop of `key` at once; the awaitable that is returned ends when the loop has ended."""
        self._work.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        return ended(task)

    async def run(self) -> None:
        """Run every loop until cancelled. Raises what a loop raises."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for key, work in self._work.items():
                    self._tasks[key] = self._group.create_task(work())
                await asyncio.Event().wait()
        finally:
            self._group = None
            self._tasks.clear()


async def closed(loop: Awaitable[None], upstream: Upstream | None) -> None:
    """Wait for a loop's end, then close the connections it used."""
    await loop
    if upstream is not None:
        await upstream.close()


async def all_over(*loops: Awaitable[None]) -> None:
    """Wait for the ends of several loops."""
    for loop in loops:
        await loop


async def ended(task: asyncio.Task[None] | None) -> None:
    """Wait for the end of a task that was cancelled; its exception is dropped."""
    if task is not None:
        await asyncio.gather(task, return_exceptions=True)


class ZeroMq:
    """Makes the context at its first use: ZeroMQ and its thread cost a worker 10 MB."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def context(self) -> "zmq.Context[zmq.Socket[bytes]]":
        """The context; made by the first call."""
        if self._context is None:
            import zmq

            self._context = zmq.Context()
        return self._context

    def close(self) -> None:
        """End the context and every socket still open in it. Idempotent."""
        if self._context is not None:
            self._context.destroy(0)
            self._context = None
