"""Approximate LRU contents of one backend's prefix cache, from the prompts that were sent there; for engines without KV events.

Recency is kept in generations. Each generation is a slot of its own in `BlockHolders`: a touched prompt gets the youngest generation's
bit on all its blocks, and forgetting the oldest generation means closing its slot. So recency costs no memory per block. Every
generation holds whole beginnings of prompts, hence the longest run in one of them is the backend's match.
"""

from collections.abc import Callable, Sequence
from typing import Final

from routing.block_holders import BlockHolders

GENERATIONS: Final = 8
"""A generation is full at an eighth of the capacity: that much of what a true LRU would hold may be forgotten too early."""
MAX_GENERATIONS: Final = 3 * GENERATIONS
"""Generations at most. A generation that shrank because its blocks were used again stays until this bound is reached."""


class _Generation:
    __slots__ = ("bit", "newest", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.newest = 0
        """Blocks that are in no younger generation."""


class RecentUse:
    """The cache contents assumed of one backend. `capacity` is in blocks; 0: nothing is assumed."""

    __slots__ = ("_generations", "capacity")

    def __init__(self) -> None:
        self.capacity = 0
        self._generations: list[_Generation] = []

    @property
    def blocks(self) -> int:
        """Distinct blocks that the backend is assumed to hold; never more than `capacity`."""
        return sum(generation.newest for generation in self._generations)

    def resize(self, capacity: int, close: Callable[[int], None]) -> None:
        """Set the capacity in blocks, and forget the oldest generations where it is exceeded."""
        self.capacity = capacity
        self._shrink(close)

    def touch(self, holders: BlockHolders, chain: Sequence[int], open_slot: Callable[[], int], close: Callable[[int], None]) -> None:
        """Record that the prompt with this chain was sent to the backend just now."""
        chain = chain[: self.capacity]
        if not chain:
            return
        generations = self._generations
        counts = self._by_generation(holders, chain)
        if generations and counts.get(generations[-1]) == len(chain):
            return
        if not generations or generations[-1].newest * GENERATIONS >= self.capacity:
            generations.append(_Generation(open_slot()))
        youngest = generations[-1]
        holders.add(youngest.bit, chain)
        for generation, blocks in counts.items():
            if generation is not None:
                generation.newest -= blocks
            youngest.newest += blocks
        # a generation whose blocks are all in younger ones matches nothing that those do not
        if len(counts) > 1 or None not in counts:
            for generation in [candidate for candidate in generations if candidate.newest <= 0]:
                generations.remove(generation)
                close(generation.slot)
        self._shrink(close)

    def _by_generation(self, holders: BlockHolders, chain: Sequence[int]) -> dict[_Generation | None, int]:
        """How many of these blocks are in each generation, counting a block for the youngest that holds it; None: blocks in none."""
        counts: dict[_Generation | None, int] = {}
        shards = holders.shards
        mask = holders.mask
        bits_by_block = [shards[block & mask].get(block, 0) for block in chain]
        at = 0
        end = len(bits_by_block)
        while at < end:  # blocks of one prompt mostly have the same holders
            bits = bits_by_block[at]
            begin = at
            while at < end and bits_by_block[at] is bits:
                at += 1
            youngest = None
            if bits:
                for generation in reversed(self._generations):
                    if bits & generation.bit:
                        youngest = generation
                        break
            counts[youngest] = counts.get(youngest, 0) + at - begin
        return counts

    def _shrink(self, close: Callable[[int], None]) -> None:
        while self._generations and (self.blocks > self.capacity or len(self._generations) > MAX_GENERATIONS):
            close(self._generations.pop(0).slot)
