"""An engine's paged KV cache with prefix reuse, as counts: what the simulated engine's `SimulatedKvCache` does, for coarse blocks.

Memory is counted in pages of 16 tokens; prefixes are reused in blocks of the prompt, `span` pages each. A page is free, private to a
sequence, part of a block in use, or part of an idle block kept only for reuse; the least recently used idle block is evicted first.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

PAGE_TOKENS: Final = 16
"""vLLM's default `--block-size`."""


def pages(tokens: int) -> int:
    """Number of pages for so many tokens."""
    return -(-tokens // PAGE_TOKENS)


class SimulatedKvCache:
    """A KV cache of `total` pages. A block is identified by the hash of the prefix that ends with it."""

    __slots__ = ("_idle", "_users", "free", "removed", "span", "stored", "total")

    def __init__(self, total: int, span: int) -> None:
        self.total = total
        self.span = span
        self.free = total
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.stored: Callable[[Sequence[int]], None] | None = None
        """Called with newly published blocks, in order."""
        self.removed: Callable[[Sequence[int]], None] | None = None
        """Called with evicted blocks."""

    @property
    def room(self) -> int:
        """Pages that a new sequence could get: free pages, and pages of idle blocks."""
        return self.free + len(self._idle) * self.span

    @property
    def used(self) -> int:
        """Pages in use by sequences."""
        return self.total - self.room

    @property
    def blocks(self) -> Collection[int]:
        """The cached blocks, in the order in which they came."""
        return self._users.keys()

    def by_use(self) -> list[int]:
        """The cached blocks, the least recently used one first."""
        return [*self._idle, *(block for block, users in self._users.items() if users)]

    def bring(self, blocks: Sequence[int]) -> list[int]:
        """Take blocks of another cache, the least recently used one first, and the memory for them; returns those that were not cached.
        `stored` is not called."""
        brought = [block for block in blocks if block not in self._users]
        self._users |= dict.fromkeys(brought, 0)
        self._idle |= OrderedDict.fromkeys(brought)
        self.total += len(brought) * self.span
        return brought

    def shrink(self, total: int, due: int = 0) -> list[int]:
        """Give memory back until `total` pages are left, or those in use and `due` ones that sequences are about to take; returns the
        evicted blocks. `removed` is not called."""
        evicted = []
        while self._idle and self.total - self.free > total:
            block, _ = self._idle.popitem(last=False)
            del self._users[block]
            evicted.append(block)
            self.free += self.span
        given = max(0, min(self.free, self.total - total, self.room - due))
        self.free -= given
        self.total -= given
        return evicted

    def matched(self, chain: Sequence[int]) -> int:
        """Number of leading blocks of the chain that are cached."""
        users = self._users
        for i, block in enumerate(chain):
            if block not in users:
                return i
        return len(chain)

    def admit(self, chain: Sequence[int], needed: int) -> int:
        """Hold `needed` pages for a sequence, reusing cached blocks. Returns the number of blocks reused, or -1 when there is no room."""
        reused = self.matched(chain)
        new = needed - reused * self.span
        hit = chain[:reused]
        users = self._users
        idle = self._idle
        if new > self.free and new > self.room - self.span * sum(1 for block in hit if not users[block]):
            return -1
        for block in hit:
            count = users[block]
            if not count:
                del idle[block]
            users[block] = count + 1
        self.take(new)
        return reused

    def take(self, count: int) -> None:
        """Take `count` pages for a sequence, evicting idle blocks if needed; the caller has checked `room`."""
        if self.free < count:
            idle = self._idle
            users = self._users
            evicted = []
            while self.free < count:
                block, _ = idle.popitem(last=False)
                del users[block]
                evicted.append(block)
                self.free += self.span
            if self.removed is not None:
                self.removed(evicted)
        self.free -= count

    def publish(self, chain: Sequence[int], shared: int) -> int:
        """Share the blocks of a computed chain, of which the first `shared` are shared already. Returns how many are shared now: from the
        first block that another sequence has published meanwhile, blocks stay private."""
        users = self._users
        end = shared
        for block in chain[shared:]:
            if block in users:
                break
            users[block] = 1
            end += 1
        if end > shared and self.stored is not None:
            self.stored(chain[shared:end])
        return end

    def release(self, chain: Sequence[int], shared: int, held: int) -> None:
        """Release the `held` pages of a sequence. Its shared blocks stay cached until they are evicted."""
        self.free += held - shared * self.span
        users = self._users
        idle = self._idle
        # the end of a prefix is evicted before its beginning, which others are more likely to share
        for block in reversed(chain[:shared]):
            count = users[block] - 1
            users[block] = count
            if not count:
                idle[block] = None

    def clear(self) -> None:
        """Empty the cache: the engine has restarted."""
        self.free = self.total
        self._users.clear()
        self._idle.clear()
