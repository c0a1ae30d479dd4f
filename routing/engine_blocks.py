"""One engine's KV events in our own hashes: engine hash -> where in a chain that block ends, so that engines may hash as they like.

An event carries its blocks' tokens; they are hashed anew into blocks of ours, whatever the engine's size is: of 16, four make one
of 64, which is held once the fourth is. Sizes are read from events, never from configuration. What has no known beginning is
not credited: it waits a while for it, then it is forgotten.

Engines drop a block after those that follow it (vLLM frees a prompt's last blocks first, SGLang's tree its leaves), so one of our
blocks is gone when the engine's block that completed it is.

Tokens and salts are tenants' secrets: they are in no error, log or `repr` here. Pure.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from routing.block_ends import End, Packed, done_by, packed, unpacked
from routing.chain import BLOCK_TOKENS, of_tokens

MAX_BLOCKS: Final = 1_000_000
"""Engine blocks remembered of one backend; beyond it new ones are not credited. Some 250 bytes each at a size of 16."""
MAX_WAITING: Final = 4_096
"""Blocks kept whose beginning has not come; the oldest go first."""


RootOf = Callable[[str | None, str | None], int | None]
"""(adapter as the engine names it, salt as the engine was given it) -> the root that our chains of such prompts begin with, or None
when no prompt of ours has those."""


class StoredBlocks(Protocol):
    """What an engine tells of new blocks; `backends.kv_events.Stored` is one."""

    @property
    def hashes(self) -> list[int]:
        """The engine's own, a chain in order."""
        ...

    @property
    def parent(self) -> int | None:
        """The engine's hash of the block before; None at a prompt's beginning."""
        ...

    @property
    def tokens(self) -> list[int | tuple[int, int]]:
        """All blocks' tokens; pairs of one and the next where the engine hashes pairs."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens to a block."""
        ...

    @property
    def lora(self) -> str | None:
        """The adapter's name."""
        ...

    @property
    def salt(self) -> str | None:
        """Of a prompt's first block."""
        ...

    @property
    def by_tokens(self) -> bool:
        """Whether tokens, adapter and salt alone tell the blocks."""
        ...


class Holds(Protocol):
    """What is told of our blocks; `PrefixIndex` is one."""

    def stored(self, backend_id: str, hashes: Sequence[int]) -> None:
        """These are held now."""
        ...

    def removed(self, backend_id: str, hashes: Sequence[int]) -> None:
        """These are not held any more."""
        ...

    def cleared(self, backend_id: str) -> None:
        """Nothing is held."""
        ...


class EngineBlocks:
    """Of one backend; takes events in the engine's order, as `backends.kv_blocks.KvConsumer` does, and tells the index.

    Args:
        index: told of blocks of ours.
        root_of: which of our chains a prompt with this adapter and salt is in.
        block_tokens: tokens to a block of ours, whatever the engine's blocks are: prompts are cut before anybody knows who gets them.
        max_blocks: engine blocks remembered.
    """

    __slots__ = (
        *("_copies", "_ends", "_gone", "_id", "_index", "_max_blocks", "_root_of", "_waiting", "_waits"),
        *("block_tokens", "counts", "overflow"),
    )

    def __init__(
        self, index: Holds, backend_id: str, root_of: RootOf, block_tokens: int = BLOCK_TOKENS, max_blocks: int = MAX_BLOCKS
    ) -> None:
        self._index = index
        self._id = backend_id
        self._root_of = root_of
        self.block_tokens = block_tokens
        self._max_blocks = max_blocks
        self._ends: dict[int, Packed] = {}
        self._copies: dict[int, int] = {}
        self._waiting: dict[int, list[StoredBlocks]] = {}
        self._waits = 0
        self._gone: set[int] = set()
        """Removed while something waits: perhaps out of that."""
        self.counts = BlockCounts()
        self.overflow = ""
        """Why it does not hold all it was told of; empty when it does."""

    @property
    def count(self) -> int:
        """Distinct blocks of the engine's that have a place in a chain of ours."""
        return len(self._ends)

    @property
    def waiting(self) -> int:
        """Blocks kept whose beginning has not come."""
        return self._waits

    def stored(self, event: StoredBlocks) -> None:
        """One more copy of each of these."""
        self.counts.stored += len(event.hashes)
        if self._gone and not self._gone.isdisjoint(event.hashes):
            self._drop_waiting()  # which copy is still there could not be told any more
        ready = [event]
        while ready:
            one = ready.pop()
            begin = self._begin(one)
            if begin is None:
                continue
            self._take(one, begin)
            if self._waiting:
                for block in one.hashes:
                    if block in self._ends:
                        ready += self._come(block)
        if not self._waiting and self._gone:
            self._gone.clear()

    def removed(self, hashes: Sequence[int]) -> None:
        """One copy of each is gone."""
        out: list[int] = []
        for block in hashes:
            left = self._copies.pop(block, 0)
            if left > 1:
                self._copies[block] = left - 1
            if left:
                continue
            end = self._ends.pop(block, None)
            if end is not None:
                out += done_by(end)
            elif self._waiting:
                self._gone.add(block)
                if len(self._gone) > MAX_WAITING:
                    self._drop_waiting()
        if out:
            self._index.removed(self._id, out)

    def cleared(self) -> None:
        """It holds nothing, or what it holds is not known."""
        self._ends.clear()
        self._copies.clear()
        self._drop_waiting()
        self.overflow = ""
        self._index.cleared(self._id)

    def _begin(self, event: StoredBlocks) -> End | None:
        """Where the event's first block begins; None when that is not known now."""
        if not event.hashes:
            return None
        if not event.by_tokens or len(event.tokens) != len(event.hashes) * event.block_size:
            self.counts.not_by_tokens += len(event.hashes)
            return None
        if event.parent is None:
            root = self._root_of(event.lora, event.salt)
            if root is None:
                self.counts.no_root += len(event.hashes)
            return None if root is None else End(root)
        before = self._ends.get(event.parent)
        if before is None:
            self._wait(event, event.parent)
            return None
        return unpacked(before)

    def _take(self, event: StoredBlocks, end: End) -> None:
        hashes, ends = event.hashes, self._ends
        first = 0
        while first < len(hashes) and (known := ends.get(hashes[first])) is not None:
            self._copies[hashes[first]] = self._copies.get(hashes[first], 0) + 1
            end = unpacked(known)
            first += 1
        tokens = _plain(event.tokens[first * event.block_size :])
        if tokens is None:
            self.counts.not_by_tokens += len(hashes) - first
            return
        tokens[:0] = array("I", end.rest)
        done = self._place(hashes[first:], event.block_size, tokens, end)
        if done:
            self._index.stored(self._id, done)

    def _place(self, hashes: Sequence[int], size: int, tokens: "array[int]", end: End) -> list[int]:
        """Give each block its end; the blocks of ours that are whole with them. `tokens` begin where `end.last` does."""
        ends, block = self._ends, self.block_tokens
        chain = of_tokens(end.last, tokens, block)
        at, done = len(end.rest), []
        for one in hashes:
            before, at = at // block, at + size
            whole = at // block
            if one in self._gone:
                break  # what follows may be as well
            if one in ends:
                self._copies[one] = self._copies.get(one, 0) + 1
                continue
            if len(ends) >= self._max_blocks:
                self.overflow = f"the engine holds more than {self._max_blocks:,} blocks"
                break
            last = chain[whole - 1] if whole else end.last
            ends[one] = packed(last, tokens[whole * block : at], chain[before:whole])
            done += chain[before:whole]
        return done

    def _wait(self, event: StoredBlocks, parent: int) -> None:
        self.counts.no_parent += len(event.hashes)
        if len(event.hashes) > MAX_WAITING:
            return  # rather than drop all others for it
        self._waiting.setdefault(parent, []).append(event)
        self._waits += len(event.hashes)
        while self._waits > MAX_WAITING:
            self._come(next(iter(self._waiting)))

    def _come(self, parent: int) -> list[StoredBlocks]:
        """What waits for this block, which waits no more."""
        events = self._waiting.pop(parent, [])
        self._waits -= sum(len(one.hashes) for one in events)
        return events

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._waits = 0
        self._gone.clear()


class BlockCounts(msgspec.Struct):
    """Blocks of the engine's, since the beginning."""

    stored: int = 0
    """Told as stored."""
    no_parent: int = 0
    """Came before the block that they follow, or without it."""
    no_root: int = 0
    """Began with an adapter or a salt that no prompt of ours has."""
    not_by_tokens: int = 0
    """Not told by tokens alone: images, an adapter without a name."""


def _plain(tokens: Sequence[int | tuple[int, int]]) -> "array[int] | None":
    """The tokens, the first of each pair; None where one is no token."""
    try:
        return array("I", [one if isinstance(one, int) else one[0] for one in tokens])
    except OverflowError:
        return None
