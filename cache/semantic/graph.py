"""An approximate index over the vectors of one large partition: usearch's HNSW graph, with all its work in one thread.

usearch lets readers run beside a writer but not beside a removal or a growth, so everything that touches a graph goes through the thread
one after another. Changes wait here and go there a few at a time, so that a search waits for a few of them at most. What has not arrived
yet is known by number, and the partition compares it itself: nothing is missed meanwhile.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index

CHANGES_AT_ONCE: Final = 4
"""About 2 ms of insertions, which a search may have to wait for."""
CONNECTIVITY: Final = 16
EXPANSION_ADD: Final = 128
EXPANSION_SEARCH: Final = 64
"""usearch's defaults, written down so that another release does not change what was measured (`python -m bench.cache.embed`)."""


class VectorGraph:
    """The graph of one partition. Every method but `search` returns at once; all are called on the event loop.

    Args:
        dimensions: members of a vector.
        thread: a pool of one thread, which may serve several graphs.
    """

    def __init__(self, dimensions: int, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._waiting: dict[int, NDArray[np.float32] | None] = {}
        """Changes in their order, by number: the vector to add, or None to remove."""
        self._at_work: dict[int, NDArray[np.float32] | None] = {}
        self._working: asyncio.Future[None] | None = None
        self._closed = False
        self.failure: BaseException | None = None
        """Why the graph has stopped, after which it lacks vectors."""
        # half precision halves the memory; the partition compares the nearest ones again in full precision
        self._index = Index(
            ndim=dimensions,
            metric="ip",
            dtype="f16",
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            expansion_search=EXPANSION_SEARCH,
        )

    @property
    def behind(self) -> int:
        """Changes that have not arrived in the graph; beyond any bound where it has stopped."""
        return sys.maxsize if self.failure is not None else len(self._waiting) + len(self._at_work)

    @property
    def removing(self) -> int:
        """Removals that have not arrived: a search may name so many vectors that are gone, in place of others."""
        return sum(vector is None for changes in (self._at_work, self._waiting) for vector in changes.values())

    def unfinished(self) -> list[int]:
        """Numbers of vectors that a search may not find yet."""
        return [number for changes in (self._at_work, self._waiting) for number, vector in changes.items() if vector is not None]

    def add(self, number: int, vector: NDArray[np.float32]) -> None:
        """Add a vector under a number that was never used before."""
        self._waiting[number] = vector.copy()
        self._go_on()

    def remove(self, number: int) -> None:
        """Take a vector out; a search may still name it for a moment."""
        if self._waiting.pop(number, None) is None:
            self._waiting[number] = None
        self._go_on()

    async def search(self, vector: NDArray[np.float32], most: int) -> list[int]:
        """Numbers of about the nearest vectors, in no promised order. May name some that are removed."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._searched, vector, most)
        except (RuntimeError, ValueError) as error:  # usearch's kinds of errors
            self.failure = error
            self.drop()
            return []

    async def close(self) -> None:
        """Drop all changes that wait, and wait for those at work."""
        self.drop()
        if self._working is not None:
            await asyncio.wait([self._working])

    def drop(self) -> None:
        """Drop all changes that wait: the graph is not needed any more."""
        self._closed = True
        self._waiting.clear()

    def _go_on(self) -> None:
        if self._working is not None or not self._waiting or self._closed:
            return
        numbers = list(islice(self._waiting, CHANGES_AT_ONCE))
        self._at_work = {number: self._waiting.pop(number) for number in numbers}
        self._working = asyncio.get_running_loop().run_in_executor(self._thread, self._changed, self._at_work)
        self._working.add_done_callback(self._over)

    def _over(self, done: "asyncio.Future[None]") -> None:
        self._working = None
        self._at_work = {}
        if not done.cancelled() and (failure := done.exception()) is not None:
            self.failure = failure
            self.drop()
        self._go_on()

    def _changed(self, changes: dict[int, NDArray[np.float32] | None]) -> None:
        """In the thread."""
        for number, vector in changes.items():
            if vector is None:
                self._index.remove(number)
            else:
                self._index.add(number, vector, threads=1)

    def _searched(self, vector: NDArray[np.float32], most: int) -> list[int]:
        """In the thread."""
        if not len(self._index):
            return []
        return [int(number) for number in self._index.search(vector, most, threads=1).keys]
