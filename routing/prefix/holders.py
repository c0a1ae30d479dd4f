"""The backends that hold each block: block hash -> one int of bits, bounded at every insert.

In `BlockHolders` each holder is a slot, a bit position, and forgetting a holder is O(1). Closing a slot clears its bit in `alive`, and
readers mask with `alive`; dead bits are swept out a few at a time as blocks come in, and a slot is used again once every shard was swept
since it closed.

The map is cut into shards of at most some 2,700 blocks, so that growing, sweeping and making room each touch one small dict: a
dict of a million would stop the loop for 20 ms when it grows. At the bound a shard drops dead entries, and if that is not enough
the sixteenth of it that was stored or refreshed longest ago.

`RecentUse` is the approximate LRU contents of one backend's prefix cache, from the prompts that were sent there; for engines without KV
events. Recency is kept in generations. Each generation is a slot of its own in `BlockHolders`: a touched prompt gets the youngest
generation's bit on all its blocks, and forgetting the oldest generation means closing its slot. So recency costs no memory per block. Every
generation holds whole beginnings of prompts, hence the longest run in one of them is the backend's match; but for one that took in a copy,
which may lack some.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

SHARD_BLOCKS: Final = 2_700
"""Blocks per shard at most, about what a dict of 4,096 places holds before it grows: 27 bytes per block instead of 54."""
SWEEP_EVERY: Final = 256
"""Blocks stored between two steps of the sweep. A step looks at as many entries as one shard has at most, some 0.1 ms."""
HURRY: Final = 64
"""Closed slots from which on a step of the sweep looks at a whole shard; with fewer it looks at an eighth. Dead bits cost only some bytes
in ints that many blocks share, and sweeping costs more than storing."""


class BlockHolders:
    """The map from block hash to holders; at most `max_blocks` distinct blocks."""

    __slots__ = ("_dead", "_free", "_owed", "_shard_blocks", "_swept", "_used", "alive", "crowded", "evicted", "mask", "shards")

    def __init__(self, max_blocks: int) -> None:
        if max_blocks < 1:
            raise ValueError(f"an index of {max_blocks} blocks holds nothing")
        count = 1
        while count * SHARD_BLOCKS < max_blocks:
            count *= 2
        self.shards: list[dict[int, int]] = [{} for _ in range(count)]
        """By `hash & mask`; read by `PrefixIndex.match`, written here only."""
        self.mask = count - 1
        self.alive = 0
        """Bits of the open slots."""
        self.evicted = 0
        """Blocks dropped at the bound since the beginning."""
        self._shard_blocks = max_blocks // count
        self.crowded = False
        """Whether any shard was ever so full that its order may matter soon."""
        self._free: list[int] = []
        self._used = 0
        self._dead: deque[tuple[int, int]] = deque()
        self._swept = 0
        self._owed = 0

    @property
    def blocks(self) -> int:
        """Blocks in the map, including blocks that only closed slots held."""
        return sum(map(len, self.shards))

    @property
    def width(self) -> int:
        """The most slots ever in use at one time, including closed slots that are not swept yet."""
        return self._used

    def open(self) -> int:
        """Open a slot that holds nothing; returns its number."""
        if not self._free:
            self._sweep(SHARD_BLOCKS)  # so that slots which come and go fast do not make every int wider
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._used
            self._used += 1
        self.alive |= 1 << slot
        return slot

    def close(self, slot: int) -> None:
        """Close a slot: it holds nothing any more."""
        self.alive &= ~(1 << slot)
        self._dead.append((slot, self._swept))

    def add(self, bit: int, hashes: Sequence[int]) -> list[int]:
        """Record that the slot of this bit holds these blocks, a prompt's blocks in order; returns the blocks that it held already."""
        again: list[int] = []
        end = len(hashes)
        for old, blocks in self.use(bit, hashes):
            if old & bit:
                again += hashes[end - blocks : end][::-1]
            end -= blocks
        return again

    def use(self, bit: int, hashes: Sequence[int], *, beginnings: bool = False) -> list[tuple[int, int]]:
        """Record that the slot of this bit holds these blocks, a prompt's blocks in order; returns the bits of those that held the blocks
        until now, each with the number of blocks in a row that they held, the last blocks first.

        Args:
            beginnings: whether the slot was only ever used for whole beginnings of prompts. As long as no block was dropped at the bound,
                it holds all that comes before a block that it holds, so that the walk ends there and reports the rest as one run.
        """
        shards = self.shards
        mask = self.mask
        full = self._shard_blocks
        alive = self.alive
        near = full * 3 // 4
        runs: list[tuple[int, int]] = []
        # blocks of one prompt mostly have the same holders: they share one int
        old_before = blocks = 0
        new = bit
        for block in reversed(hashes):  # a prompt's beginning is dropped last
            shard = shards[block & mask]
            old = shard.get(block, 0)
            if old is not old_before:
                if blocks:
                    runs.append((old_before, blocks))
                    blocks = 0
                old_before = old
                if old & bit:
                    new = old
                    if beginnings and not self.crowded:
                        blocks = len(hashes)
                        for _, behind in runs:
                            blocks -= behind
                        break
                else:
                    new = old & alive | bit
            blocks += 1
            if new is old:
                continue
            if not old and (size := len(shard)) >= near:
                self.crowded = True
                if size >= full:
                    self._make_room(block & mask)
                    shard = shards[block & mask]
            shard[block] = new
        self._owed += len(hashes)
        if self._owed >= SWEEP_EVERY:
            self._owed = 0
            self._sweep(SHARD_BLOCKS if len(self._dead) >= HURRY else SHARD_BLOCKS // 8)
        if blocks:
            runs.append((old_before, blocks))
        return runs

    def discard(self, bit: int, hashes: Iterable[int]) -> None:
        """Record that the slot of this bit no longer holds these blocks."""
        shards = self.shards
        mask = self.mask
        left_alive = self.alive & ~bit
        for block in hashes:
            shard = shards[block & mask]
            old = shard.get(block, 0)
            if old & bit:
                if new := old & left_alive:
                    shard[block] = new
                else:
                    del shard[block]

    def refresh(self, hashes: Sequence[int]) -> None:
        """Mark these blocks as recently used: at the bound they are dropped after others."""
        if not self.crowded:
            return
        shards = self.shards
        mask = self.mask
        from_here = self._shard_blocks * 3 // 4
        for block in reversed(hashes):
            shard = shards[block & mask]
            if len(shard) > from_here and block in shard:
                shard[block] = shard.pop(block)

    def _make_room(self, at: int) -> None:
        if self._dead:
            self._clean(at)
        shard = self.shards[at]
        if len(shard) >= self._shard_blocks:
            oldest = list(islice(shard, max(1, self._shard_blocks // 16)))
            for block in oldest:
                del shard[block]
            self.evicted += len(oldest)

    def _sweep(self, most: int) -> None:
        looked = 0
        while self._dead and looked < most:
            looked += self._step()

    def _step(self) -> int:
        """Sweep the next shard; returns how many entries it had, plus one."""
        at = self._swept & self.mask
        entries = len(self.shards[at])
        if entries:
            self._clean(at)
        self._swept += 1
        while self._dead and self._dead[0][1] + len(self.shards) <= self._swept:
            self._free.append(self._dead.popleft()[0])
        return entries + 1

    def _clean(self, at: int) -> None:
        """Take closed slots' bits out of one shard."""
        alive = self.alive
        shard = self.shards[at]
        # an int that stays as it is stays the same object, and equal ones become one
        cleaned = {bits: bits if (still := bits & alive) == bits else still for bits in set(shard.values())}
        if any([bits != still for bits, still in cleaned.items()]):
            self.shards[at] = {block: still for block, bits in shard.items() if (still := cleaned[bits])}


GENERATIONS: Final = 8
"""A generation is full at an eighth of the capacity: that much of what a true LRU would hold may be forgotten too early."""
MAX_GENERATIONS: Final = 3 * GENERATIONS
"""Generations at most. A generation that shrank because its blocks were used again stays until this bound is reached."""


class _Generation:
    __slots__ = ("bit", "newest", "others", "slot", "whole")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.newest = 0
        """Blocks that are in no younger generation, and those of other prompts that came while it was the youngest."""
        self.others = False
        """Whether blocks of other prompts are among them."""
        self.whole = True
        """Whether only whole beginnings of prompts were touched while it was the youngest."""


class RecentUse:
    """The cache contents assumed of one backend. `capacity` is in blocks; 0: nothing is assumed."""

    __slots__ = ("_generations", "blocks", "capacity")

    def __init__(self) -> None:
        self.capacity = 0
        self.blocks = 0
        """Distinct blocks that the backend is assumed to hold, and those of `others` since: the sum over the generations. Never more than
        `capacity`."""
        self._generations: list[_Generation] = []

    def generations(self) -> list[tuple[int, int]]:
        """The bit of each generation and the blocks that are in no younger one, the oldest first."""
        return [(generation.bit, generation.newest) for generation in self._generations]

    def resize(self, capacity: int, close: Callable[[int], None]) -> None:
        """Set the capacity in blocks, and forget the oldest generations where it is exceeded."""
        self.capacity = capacity
        self._shrink(close)

    def touch(
        self,
        holders: BlockHolders,
        chain: Sequence[int],
        open_slot: Callable[[], int],
        close: Callable[[int], None],
        *,
        whole: bool = True,
    ) -> None:
        """Record that the prompt with this chain was sent to the backend just now.

        Args:
            whole: whether `chain` is the beginning of one prompt; not so for the blocks of a copy, which are many prompts' in no order.
        """
        chain = chain[: self.capacity]
        if not chain:
            return
        generations = self._generations
        full = not generations or generations[-1].newest * GENERATIONS >= self.capacity
        if full:
            bits = [holders.shards[block & holders.mask].get(block, 0) for block in chain]
            if generations and not generations[-1].others and all([held & generations[-1].bit for held in bits]):
                return  # it would fill another generation with the same blocks
            generations.append(_Generation(open_slot()))
        youngest = generations[-1]
        youngest.whole = youngest.whole and whole
        counts = self._by_generation(holders.use(youngest.bit, chain, beginnings=youngest.whole))
        if counts.get(youngest) == len(chain):
            return
        for generation, blocks in counts.items():
            if generation is not None:
                generation.newest -= blocks
            youngest.newest += blocks
        self.blocks += counts.get(None, 0)
        # a generation whose blocks are all in younger ones matches nothing that those do not
        if len(counts) > 1 or None not in counts:
            for generation in [candidate for candidate in generations if candidate.newest <= 0]:
                generations.remove(generation)
                self.blocks -= generation.newest
                close(generation.slot)
        self._shrink(close)

    def others(self, blocks: int, close: Callable[[int], None]) -> None:
        """Record that the backend's cache took in so many blocks of prompts that are not touched here: they push out what is older."""
        if self._generations:
            self._generations[-1].newest += blocks
            self._generations[-1].others = True
            self.blocks += blocks
            self._shrink(close)

    def _by_generation(self, runs: Sequence[tuple[int, int]]) -> dict[_Generation | None, int]:
        """How many blocks of these runs, each with its holders, are in each generation, counting a block for the youngest that holds it;
        None: blocks in none."""
        counts: dict[_Generation | None, int] = {}
        for bits, blocks in runs:
            youngest = None
            if bits:
                for generation in reversed(self._generations):
                    if bits & generation.bit:
                        youngest = generation
                        break
            counts[youngest] = counts.get(youngest, 0) + blocks
        return counts

    def _shrink(self, close: Callable[[int], None]) -> None:
        while self._generations and (self.blocks > self.capacity or len(self._generations) > MAX_GENERATIONS):
            oldest = self._generations.pop(0)
            self.blocks -= oldest.newest
            close(oldest.slot)
