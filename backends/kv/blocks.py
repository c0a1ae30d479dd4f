"""The contents of one engine's KV cache, kept from its events: block hashes with their copies, bounded. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from backends.kv.events import Cleared, Event, Removed, Stored

MAX_BLOCKS: Final = 1_000_000
"""Blocks remembered of one backend: 16 million tokens in blocks of 16, some ten GPUs' worth; about 100 MB per worker at the
bound. Beyond it new blocks are not remembered, and the state is no longer exact until the cache is cleared."""


class KvConsumer(Protocol):
    """Consumer of an engine's events in the engine's order, none missing: a gap ends in `cleared`."""

    @property
    def count(self) -> int:
        """Distinct blocks held."""
        ...

    @property
    def overflow(self) -> str:
        """Why the record does not hold all stored blocks, in words; empty when it does."""
        ...

    def stored(self, event: Stored) -> None:
        """The engine holds one more copy of each of these blocks."""
        ...

    def removed(self, hashes: Sequence[int]) -> None:
        """The engine has dropped one copy of each of these blocks."""
        ...

    def cleared(self) -> None:
        """The engine holds nothing, or its contents are unknown."""
        ...


class HeldBlocks:
    """The blocks one engine holds, with their copies. Copies are counted because vLLM stores them: two requests that compute one block at
    once both store it, and it can be found until both copies are removed."""

    __slots__ = ("_copies", "_max_blocks", "overflow")

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._copies: dict[int, int] = {}
        self._max_blocks = max_blocks
        self.overflow = ""

    @property
    def count(self) -> int:
        """Distinct blocks held."""
        return len(self._copies)

    def __contains__(self, block: int) -> bool:
        return block in self._copies

    def snapshot(self) -> frozenset[int]:
        """The hashes of all blocks held."""
        return frozenset(self._copies)

    def stored(self, event: Stored) -> None:
        """Count one more copy of each; beyond `max_blocks` new blocks are ignored and `overflow` says so."""
        copies = self._copies
        for block in event.hashes:
            if block in copies:
                copies[block] += 1
            elif len(copies) < self._max_blocks:
                copies[block] = 1
            else:
                self.overflow = f"the engine holds more than {self._max_blocks:,} blocks"

    def removed(self, hashes: Sequence[int]) -> None:
        """Count one copy fewer of each; unknown blocks are ignored."""
        copies = self._copies
        for block in hashes:
            left = copies.get(block, 0) - 1
            if left > 0:
                copies[block] = left
            elif left == 0:
                del copies[block]

    def cleared(self) -> None:
        """Forget everything."""
        self._copies.clear()
        self.overflow = ""


class KvCounts(msgspec.Struct):
    """Sums since this process began to listen."""

    batches: int = 0
    """Batches received or replayed."""
    gaps: int = 0
    """Gaps in the sequence numbers."""
    missed: int = 0
    """Batches missing in those gaps."""
    replays: int = 0
    """Replays requested."""
    repeated: int = 0
    """Batches that came twice or too late."""
    refused: int = 0
    """Batches that could not be read."""
    stored: int = 0
    """Blocks."""
    removed: int = 0
    """Blocks."""
    cleared: int = 0
    """Events that say that the engine holds nothing."""


def hand_over(events: Iterable[Event], consumer: KvConsumer, counts: KvCounts, look: Callable[[Stored], None]) -> bool:
    """Pass events to the consumer in their order, and count them; returns whether one of them says that the engine holds nothing.

    Args:
        look: called with each stored event, after the consumer.
    """
    emptied = False
    for event in events:
        if isinstance(event, Stored):
            consumer.stored(event)
            counts.stored += len(event.hashes)
            look(event)
        elif isinstance(event, Removed):
            consumer.removed(event.hashes)
            counts.removed += len(event.hashes)
        elif isinstance(event, Cleared):
            consumer.cleared()
            counts.cleared += 1
            emptied = True
    return emptied


class KvState(msgspec.Struct, frozen=True):
    """This worker's knowledge of one engine's KV cache at one moment."""

    blocks: int
    """Blocks that the engine certainly holds; all of its blocks when `trusted`."""
    trusted: bool
    reason: str = ""
    """Why the state is not trusted, in words; empty when it is."""
    epoch: int = 0
    """Number of restarts of the engine's process that this worker saw."""
    hashing: str = ""
    """How the engine hashes blocks, recognised from one of them: `vllm-sha256`, `vllm-sha256_cbor`, `sglang`; empty when it is
    not known."""
    counts: KvCounts = msgspec.field(default_factory=KvCounts)


def least(first: KvState | None, second: KvState | None) -> KvState | None:
    """The state of the worker that knows less of an engine: all workers together can rely on no more than that."""
    if first is None or second is None:
        return first or second
    return min(first, second, key=lambda state: (state.trusted, state.blocks))
