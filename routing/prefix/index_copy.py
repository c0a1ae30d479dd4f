"""A copy of what a prefix index assumes of engines without KV events, so that a new process need not begin with nothing. Pure.

Only the assumed contents are copied: what events tell is told to every process, and predictions are over in 3 s. Of each backend the blocks
of its generations (`routing.prefix.holders.RecentUse`) are copied, the oldest generation first, so that the copy forgets in the same order.

`IndexCopy.parts` looks at one shard of the index at a time, some thousand blocks, so that its caller can serve requests between them.
"""

from array import array
from collections.abc import Iterator

import msgspec

from routing.prefix.index import PrefixIndex


class CopiedBackend(msgspec.Struct, array_like=True, frozen=True):
    """What is assumed of one backend."""

    id: str
    capacity: int
    """Blocks that its cache holds."""
    generations: list[bytes]
    """The blocks' hashes, eight bytes each in this machine's byte order, of each generation; the oldest first."""


class IndexCopy:
    """A copy of an index that is being made.

    Args:
        max_blocks: blocks in the copy at most; the most recently used ones of all backends are preferred.
    """

    def __init__(self, index: PrefixIndex, max_blocks: int) -> None:
        self._index = index
        self._chosen = _youngest(index, max_blocks)
        self._by_bits: dict[int, array[int]] = {}

    def parts(self) -> Iterator[None]:
        """Copy one shard for each step."""
        wanted = 0
        for chosen in self._chosen.values():
            for bit in chosen:
                wanted |= bit
        by_bits = self._by_bits
        for shard in list(self._index.shards):
            for block, bits in shard.items():
                if held := bits & wanted:
                    group = by_bits.get(held)
                    if group is None:
                        group = by_bits[held] = array("q")
                    group.append(block)
            yield

    def backends(self) -> list[CopiedBackend]:
        """The copy, once all parts are done. What was forgotten meanwhile is not in it."""
        copied = []
        for backend_id, capacity, bits_now in self._index.assumed():
            there = {bit for bit, _ in bits_now}
            still = [bit for bit in self._chosen.get(backend_id, ()) if bit in there]
            generations = {bit: array("q") for bit in still}
            for held, blocks in self._by_bits.items():
                # a block counts for the youngest generation that has it
                youngest = next((bit for bit in reversed(still) if held & bit), 0)
                if youngest:
                    generations[youngest].extend(blocks)
            filled = [generations[bit].tobytes() for bit in still if generations[bit]]
            if filled:
                copied.append(CopiedBackend(backend_id, capacity, filled))
        return copied


def _youngest(index: PrefixIndex, max_blocks: int) -> dict[str, list[int]]:
    """The bits of the generations to copy, by backend, the oldest first: of all backends in turn the youngest, as far as they fit."""
    left = {backend_id: list(bits) for backend_id, _, bits in index.assumed()}
    chosen: dict[str, list[int]] = {backend_id: [] for backend_id in left}
    while any(left.values()):
        for backend_id, bits in left.items():
            if bits:
                bit, blocks = bits.pop()
                max_blocks -= blocks
                if max_blocks < 0:
                    return chosen
                chosen[backend_id].insert(0, bit)
    return chosen


def take_over(index: PrefixIndex, backend: CopiedBackend, now: float) -> int:
    """Assume of a backend what the copy says, as used just now, the oldest generation first.

    Returns:
        The blocks that were taken over.

    Raises:
        ValueError: the bytes are no whole number of blocks.
    """
    blocks = 0
    for generation in backend.generations:
        chain = array("q")
        chain.frombytes(generation)
        index.touch(backend.id, chain, now, whole=False)
        blocks += len(chain)
    return blocks
