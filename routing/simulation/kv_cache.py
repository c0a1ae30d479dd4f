"""An engine's paged KV cache with prefix reuse, as bookkeeping of counts: what the simulated engine's `KvCache` does, for coarse blocks.

Memory is counted in pages of 16 tokens; what can be found again are the prompt's blocks, `span` pages each. A page is free,
private to a sequence, part of a block in use, or part of one that is kept only for reuse; of those the least recently used goes first.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

PAGE_TOKENS: Final = 16
"""vLLM's default `--block-size`."""


def pages(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE_TOKENS)


class KvCache:
    """`total` pages, bounded by construction. Blocks are known by the hash of the prefix that ends with them."""

    __slots__ = ("_idle", "_users", "free", "removed", "span", "stored", "total")

    def __init__(self, total: int, span: int) -> None:
        self.total = total
        self.span = span
        self.free = total
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.stored: Callable[[Sequence[int]], None] | None = None
        """Told of blocks that can be found from now on, in order."""
        self.removed: Callable[[Sequence[int]], None] | None = None
        """Told of blocks that were thrown out."""

    @property
    def room(self) -> int:
        """Pages that a sequence could have now."""
        return self.free + len(self._idle) * self.span

    @property
    def used(self) -> int:
        """Pages in use by sequences."""
        return self.total - self.room

    def matched(self, chain: Sequence[int]) -> int:
        """How many leading blocks are here."""
        users = self._users
        for i, block in enumerate(chain):
            if block not in users:
                return i
        return len(chain)

    def admit(self, chain: Sequence[int], needed: int) -> int:
        """Hold `needed` pages for a sequence, reusing what matches. Returns the blocks reused, or -1 when there is no room."""
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
        """Make pages private; the caller has looked at `room`."""
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
        """The sequence has computed its chain, of which it shares the first blocks. Returns how many it shares now: what
        another has published meanwhile stays private."""
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
        """A sequence gives back what it holds. Its shared blocks stay findable until they are thrown out."""
        self.free += held - shared * self.span
        users = self._users
        idle = self._idle
        # the end of a prefix goes before its beginning, which others are more likely to share
        for block in reversed(chain[:shared]):
            count = users[block] - 1
            users[block] = count
            if not count:
                idle[block] = None

    def clear(self) -> None:
        """The engine has started anew: nothing is held and nothing found."""
        self.free = self.total
        self._users.clear()
        self._idle.clear()
