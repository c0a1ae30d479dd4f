"""A paged KV cache with prefix reuse: pure bookkeeping of blocks.

Every block is in exactly one of four states: free, private to a sequence, shared (full, found by its hash, in use), or
evictable (full, found by its hash, not in use; the least recently used is evicted first). Hashes chain, so a hit is always a whole prefix.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence


def block_hashes(tokens: Sequence[int], block_size: int, *salts: str) -> list[bytes]:
    """One hash per full block; each covers all tokens before it, and the salts (model, adapter, cache salt)."""
    parent = hashlib.blake2b("\0".join(salts).encode(), digest_size=16).digest()
    hashes = []
    for end in range(block_size, len(tokens) + 1, block_size):
        block = b"".join(token.to_bytes(4, "little") for token in tokens[end - block_size : end])
        parent = hashlib.blake2b(parent + block, digest_size=16).digest()
        hashes.append(parent)
    return hashes


class Holding:
    """The blocks of one sequence."""

    __slots__ = ("private", "shared")

    def __init__(self) -> None:
        self.shared: list[bytes] = []
        self.private = 0

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.shared) + self.private


class KvCache:
    """A cache of `blocks` blocks. Methods that fail change nothing."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free = blocks
        self.private = 0
        self._users: dict[bytes, int] = {}
        self._evictable: OrderedDict[bytes, None] = OrderedDict()
        self.evicted: Callable[[bytes], None] | None = None
        """Called with each block that is evicted."""

    @property
    def used(self) -> int:
        """Blocks in use by sequences."""
        return self.private + len(self._users)

    @property
    def evictable(self) -> int:
        """Blocks kept only for reuse."""
        return len(self._evictable)

    def matched(self, hashes: Sequence[bytes]) -> int:
        """The number of leading blocks that are in the cache."""
        for i, block in enumerate(hashes):
            if block not in self._users and block not in self._evictable:
                return i
        return len(hashes)

    def admit(self, hashes: Sequence[bytes], blocks: int) -> tuple[Holding, int] | None:
        """Hold `blocks` blocks for a new sequence, reusing the matching ones; None when not enough are free or evictable.

        Returns:
            The holding, and the number of leading blocks that were reused.
        """
        reused = self.matched(hashes)
        from_evictable = sum(1 for block in hashes[:reused] if block in self._evictable)
        if blocks - reused > self.free + len(self._evictable) - from_evictable:
            return None
        holding = Holding()
        for block in hashes[:reused]:
            self._evictable.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        holding.shared = list(hashes[:reused])
        self._take(holding, blocks - reused)
        return holding, reused

    def grow(self, holding: Holding, blocks: int) -> bool:
        """Add private blocks; False when not enough are free or evictable."""
        if blocks > self.free + len(self._evictable):
            return False
        self._take(holding, blocks)
        return True

    def _take(self, holding: Holding, blocks: int) -> None:
        while self.free < blocks:
            block, _ = self._evictable.popitem(last=False)
            self.free += 1
            if self.evicted is not None:
                self.evicted(block)
        self.free -= blocks
        self.private += blocks
        holding.private += blocks

    def publish(self, holding: Holding, hashes: Sequence[bytes]) -> None:
        """Share the full blocks of a computed prompt, so that they can be found from now on. Blocks that another sequence has published
        meanwhile stay private."""
        for block in hashes[len(holding.shared) :]:
            if block in self._users or block in self._evictable:
                return
            holding.private -= 1
            self.private -= 1
            self._users[block] = 1
            holding.shared.append(block)

    def release(self, holding: Holding) -> None:
        """Give all blocks back; shared blocks can be found until they are evicted."""
        self.free += holding.private
        self.private -= holding.private
        holding.private = 0
        # the end of a prefix is evicted before its beginning, which other prompts are more likely to share
        for block in reversed(holding.shared):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._evictable[block] = None
        holding.shared = []

    def clear(self) -> None:
        """Drop all blocks that are not in use."""
        self.free += len(self._evictable)
        self._evictable.clear()
