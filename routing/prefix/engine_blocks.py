"""Translates one engine's KV events into blocks of our own hashes, so that engines may use any hash function and block size. Pure.

`EngineBlocks` keeps for each engine hash where in a chain of ours that block ends (`End`, packed small: one is kept for each block that an
engine holds).

An event carries its blocks' tokens; they are hashed anew into our blocks, whatever the engine's block size: four blocks of 16 tokens make
one of 64, which is held once the fourth is. Block sizes are read from events, never from configuration. A block whose parent is not
known is not credited: it waits for its parent for a while, then it is forgotten.

Engines drop a block after the blocks that follow it (vLLM frees a prompt's last blocks first, SGLang's tree its leaves), so one of our
blocks is gone when the engine's block that completed it is gone.

Tokens and salts are tenants' secrets: they are in no error, log or `repr` here.
"""

from array import array
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, Protocol

import msgspec

from routing.prefix.chain import BLOCK_TOKENS, of_tokens

_HEAD: Final = Struct("=?q")
_NOTHING: Final = array("I")


class End(msgspec.Struct, frozen=True, gc=False):
    """The end of an engine's block, unpacked."""

    last: int
    """Hash of the last whole block of ours up to the end, or the root."""
    rest: "array[int]" = _NOTHING
    """Tokens after that block."""
    done: tuple[int, ...] = ()
    """Blocks of ours that the engine's block completed; filled only when there are more than one."""


Packed = int | bytes | End
"""An int where the engine's block completed one of ours and nothing is left over, bytes where it completed one at most."""


def packed(last: int, rest: "array[int]", done: Sequence[int]) -> Packed:
    """The end in its smallest form."""
    if len(done) > 1:
        return End(last, rest, tuple(done))
    if done and not rest:
        return last
    return _HEAD.pack(bool(done), last) + rest.tobytes()


def unpacked(end: Packed) -> End:
    """The end unpacked; `done` is filled only when there are more than one."""
    if isinstance(end, int):
        return End(end)
    if isinstance(end, bytes):
        rest = array("I")
        rest.frombytes(end[_HEAD.size :])
        return End(_HEAD.unpack_from(end)[1], rest)
    return end


def done_by(end: Packed) -> Sequence[int]:
    """Blocks of ours that the engine's block completed."""
    if isinstance(end, int):
        return (end,)
    if isinstance(end, bytes):
        done, last = _HEAD.unpack_from(end)
        return (last,) if done else ()
    return end.done


MAX_BLOCKS: Final = 1_000_000
"""Engine blocks remembered per backend; beyond it new blocks are not credited. Some 250 bytes each at a block size of 16."""
MAX_WAITING: Final = 4_096
"""Blocks kept while their parent is not known; the oldest are dropped first."""


RootOf = Callable[[str | None, str | None], int | None]
"""(adapter as the engine names it, salt as the engine was given it) -> the root of our chains of such prompts, or None when no prompt of
ours has that adapter and salt."""


class StoredBlocks(Protocol):
    """An engine's event that new blocks are stored; `backends.kv.events.Stored` implements it."""

    @property
    def hashes(self) -> list[int]:
        """The engine's own hashes of the blocks, a chain in order."""
        ...

    @property
    def parent(self) -> int | None:
        """The engine's hash of the block before the first; None at a prompt's beginning."""
        ...

    @property
    def tokens(self) -> list[int | tuple[int, int]]:
        """All blocks' tokens; pairs of a token and the next one where the engine hashes pairs."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        ...

    @property
    def lora(self) -> str | None:
        """The adapter's name; None for the base model."""
        ...

    @property
    def salt(self) -> str | None:
        """The cache salt of a prompt's first block; None for no salt."""
        ...

    @property
    def by_tokens(self) -> bool:
        """Whether tokens, adapter and salt alone identify the blocks; not so for images, for example."""
        ...


class Holds(Protocol):
    """Receives what a backend holds, in our blocks; `PrefixIndex` implements it."""

    def stored(self, backend_id: str, hashes: Sequence[int]) -> None:
        """The backend holds one more copy of each of these blocks."""
        ...

    def removed(self, backend_id: str, hashes: Sequence[int]) -> None:
        """The backend has dropped one copy of each of these blocks."""
        ...

    def cleared(self, backend_id: str) -> None:
        """The backend holds nothing."""
        ...

    def took_in(self, backend_id: str, blocks: int) -> None:
        """The backend has stored so many blocks, of any prompts: credited or not."""
        ...


class EngineBlocks:
    """The blocks of one backend; takes events in the engine's order (`backends.kv.blocks.KvConsumer`) and updates the index.

    Args:
        index: receives our blocks.
        root_of: the root of our chains for a prompt's adapter and salt.
        block_tokens: tokens per block of ours, the same for all engines: prompts are hashed before their backend is known.
        max_blocks: engine blocks remembered.
    """

    __slots__ = (
        *("_copies", "_ends", "_gone", "_id", "_index", "_max_blocks", "_root_of", "_took_in", "_waiting", "_waits"),
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
        self._took_in = 0
        """Tokens stored that do not fill a block of ours yet."""
        self._gone: set[int] = set()
        """Engine hashes removed while blocks wait for a parent: they may be among the waiting ones."""
        self.counts = BlockCounts()
        self.overflow = ""
        """Why some stored blocks are not credited, for an operator; empty when all are."""

    @property
    def count(self) -> int:
        """Distinct engine blocks that have a place in a chain of ours."""
        return len(self._ends)

    @property
    def waiting(self) -> int:
        """Engine blocks that wait for their parent."""
        return self._waits

    def stored(self, event: StoredBlocks) -> None:
        """Take an event that the engine holds one more copy of each of its blocks."""
        self.counts.stored += len(event.hashes)
        blocks, self._took_in = divmod(self._took_in + len(event.hashes) * event.block_size, self.block_tokens)
        if blocks:
            self._index.took_in(self._id, blocks)
        if self._gone and not self._gone.isdisjoint(event.hashes):
            self._drop_waiting()  # it is no longer known which copy is still there
        ready = [event]
        while ready:
            next_event = ready.pop()
            begin = self._begin(next_event)
            if begin is None:
                continue
            self._take(next_event, begin)
            if self._waiting:
                for block in next_event.hashes:
                    if block in self._ends:
                        ready += self._released_by(block)
        if not self._waiting and self._gone:
            self._gone.clear()

    def removed(self, hashes: Sequence[int]) -> None:
        """Take an event that the engine has dropped one copy of each of these blocks (engine hashes)."""
        out: list[int] = []
        for block in hashes:
            copies = self._copies.pop(block, 0)
            if copies > 1:
                self._copies[block] = copies - 1
            if copies:
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
        """Forget all blocks: the engine holds nothing, or it is not known what it holds."""
        self._ends.clear()
        self._copies.clear()
        self._drop_waiting()
        self.overflow = ""
        self._index.cleared(self._id)

    def _begin(self, event: StoredBlocks) -> End | None:
        """Where the event's first block begins in a chain of ours; None when that is not known now."""
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
        hashes = event.hashes
        ends = self._ends
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
        """Record where each engine block ends; returns the blocks of ours that they complete. `tokens` begin after `end.last`."""
        ends = self._ends
        block_tokens = self.block_tokens
        chain = of_tokens(end.last, tokens, block_tokens)
        at = len(end.rest)
        done = []
        for engine_hash in hashes:
            before = at // block_tokens
            at = at + size
            whole = at // block_tokens
            if engine_hash in self._gone:
                break  # the blocks after it may be gone as well
            if engine_hash in ends:
                self._copies[engine_hash] = self._copies.get(engine_hash, 0) + 1
                continue
            if len(ends) >= self._max_blocks:
                self.overflow = f"the engine holds more than {self._max_blocks:,} blocks"
                break
            last = chain[whole - 1] if whole else end.last
            ends[engine_hash] = packed(last, tokens[whole * block_tokens : at], chain[before:whole])
            done += chain[before:whole]
        return done

    def _wait(self, event: StoredBlocks, parent: int) -> None:
        self.counts.no_parent += len(event.hashes)
        if len(event.hashes) > MAX_WAITING:
            return  # one huge event must not push out all waiting ones
        self._waiting.setdefault(parent, []).append(event)
        self._waits += len(event.hashes)
        while self._waits > MAX_WAITING:
            self._released_by(next(iter(self._waiting)))

    def _released_by(self, parent: int) -> list[StoredBlocks]:
        """Take out the events that wait for this parent."""
        events = self._waiting.pop(parent, [])
        self._waits -= sum(len(event.hashes) for event in events)
        return events

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._waits = 0
        self._gone.clear()


class BlockCounts(msgspec.Struct):
    """Counters of engine blocks, since the start."""

    stored: int = 0
    """Blocks reported as stored."""
    no_parent: int = 0
    """Blocks that came before their parent, or without it."""
    no_root: int = 0
    """Blocks of a prompt with an adapter or a salt that no prompt of ours has."""
    not_by_tokens: int = 0
    """Blocks that tokens alone do not identify: images, an adapter without a name."""


def _plain(tokens: Sequence[int | tuple[int, int]]) -> "array[int] | None":
    """The token ids, the first of each pair; None when an id does not fit into 32 bits."""
    try:
        return array("I", [token if isinstance(token, int) else token[0] for token in tokens])
    except OverflowError:
        return None
