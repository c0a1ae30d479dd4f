"""What a cache of a known size would still hold, of what was sent there: least recently used goes first. For engines without events.

Recency is kept in generations, each one a slot of its own in `BlockHolders`: a touched prompt gets the youngest one's bit on all its
blocks, and forgetting the oldest generation is closing its slot. So an order costs no memory per block. Every generation holds
whole beginnings of prompts, hence the longest run in one of them is the backend's match.
"""

from collections.abc import Callable, Sequence
from typing import Final

from routing.block_holders import BlockHolders

GENERATIONS: Final = 8
"""A generation is full at an eighth of the capacity: that much of what a true LRU would hold may be forgotten too early."""
MOST: Final = 3 * GENERATIONS
"""Generations kept at most; those that shrank because their blocks were used again stay until then."""


class _Generation:
    __slots__ = ("bit", "newest", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.newest = 0
        """Blocks that are in no younger one."""


class RecentUse:
    """Of one backend. `capacity` 0: nothing is assumed."""

    __slots__ = ("_generations", "capacity")

    def __init__(self) -> None:
        self.capacity = 0
        self._generations: list[_Generation] = []

    @property
    def blocks(self) -> int:
        """Distinct blocks that it is taken to hold; never more than `capacity`."""
        return sum(one.newest for one in self._generations)

    def resize(self, capacity: int, close: Callable[[int], None]) -> None:
        """From now on it holds so many blocks."""
        self.capacity = capacity
        self._shrink(close)

    def touch(self, holders: BlockHolders, chain: Sequence[int], open_slot: Callable[[], int], close: Callable[[int], None]) -> None:
        """The prompt with this chain was sent there just now."""
        chain = chain[: self.capacity]
        if not chain:
            return
        generations = self._generations
        found = self._found(holders, chain)
        if generations and found.get(generations[-1]) == len(chain):
            return
        if not generations or generations[-1].newest * GENERATIONS >= self.capacity:
            generations.append(_Generation(open_slot()))
        youngest = generations[-1]
        holders.add(youngest.bit, chain)
        for generation, blocks in found.items():
            if generation is not None:
                generation.newest -= blocks
            youngest.newest += blocks
        # what is in an older one only under younger ones matches nothing that those do not
        if len(found) > 1 or None not in found:
            for generation in [one for one in generations if one.newest <= 0]:
                generations.remove(generation)
                close(generation.slot)
        self._shrink(close)

    def _found(self, holders: BlockHolders, chain: Sequence[int]) -> dict[_Generation | None, int]:
        """How many of these blocks each generation is the youngest to hold."""
        found: dict[_Generation | None, int] = {}
        shards, mask = holders.shards, holders.mask
        held = [shards[block & mask].get(block, 0) for block in chain]
        at, end = 0, len(held)
        while at < end:  # blocks of one prompt mostly have the same holders
            bits, begin = held[at], at
            while at < end and held[at] is bits:
                at += 1
            youngest = None
            if bits:
                for one in reversed(self._generations):
                    if bits & one.bit:
                        youngest = one
                        break
            found[youngest] = found.get(youngest, 0) + at - begin
        return found

    def _shrink(self, close: Callable[[int], None]) -> None:
        while self._generations and (self.blocks > self.capacity or len(self._generations) > MOST):
            close(self._generations.pop(0).slot)
