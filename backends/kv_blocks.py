"""What one engine's KV cache holds, from its events: block hashes with their copies, bounded. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from backends.kv_events import Cleared, Event, Removed, Stored

MAX_BLOCKS: Final = 1_000_000
"""Blocks remembered of one backend: 16 million tokens in blocks of 16, some ten GPUs' worth; about 100 MB per worker at the
bound. Beyond it new blocks are not remembered, and the state is no longer exact until the cache is cleared."""


class KvConsumer(Protocol):
    """Takes an engine's events in the engine's order, none missing: a gap ends in `cleared`."""

    @property
    def count(self) -> int:
        """Distinct blocks held."""
        ...

    @property
    def overflow(self) -> str:
        """Why it does not hold all it was told of; empty when it does."""
        ...

    def stored(self, event: Stored) -> None:
        """One more copy of each of these blocks is there."""
        ...

    def removed(self, hashes: Sequence[int]) -> None:
        """One copy of each is gone."""
        ...

    def cleared(self) -> None:
        """Nothing is there, or what is there is not known."""
        ...


class HeldBlocks:
    """Counts copies, because vLLM does: two requests that compute one block at once both store it, and it can be found until
    both copies are removed."""

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
        """One more copy of each."""
        copies = self._copies
        for block in event.hashes:
            if block in copies:
                copies[block] += 1
            elif len(copies) < self._max_blocks:
                copies[block] = 1
            else:
                self.overflow = f"the engine holds more than {self._max_blocks:,} blocks"

    def removed(self, hashes: Sequence[int]) -> None:
        """One copy fewer of each; what is not known is not there anyway."""
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
    """Batches heard or replayed."""
    gaps: int = 0
    """Times that batches were missing."""
    missed: int = 0
    """Batches that were missing then."""
    replays: int = 0
    """Replays asked for."""
    repeated: int = 0
    """Batches that came twice or too late."""
    refused: int = 0
    """Batches that could not be read."""
    stored: int = 0
    """Blocks."""
    removed: int = 0
    """Blocks."""
    cleared: int = 0
    """Times that the engine said it holds nothing."""


def hand_over(events: Iterable[Event], consumer: KvConsumer, counts: KvCounts, look: Callable[[Stored], None]) -> bool:
    """Give events to the consumer in their order, and count them; whether the engine said among them that it holds nothing.

    Args:
        look: shown what was stored, once it is.
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
    """What is known of one engine's KV cache at one moment."""

    blocks: int
    """Blocks that it certainly holds; all of them when `trusted`."""
    trusted: bool
    reason: str = ""
    """Why it is not trusted, in words; empty when it is."""
    epoch: int = 0
    """Counts the engine's processes, as far as this worker saw them."""
    hashing: str = ""
    """How the engine hashes blocks, recognised from one of them: `vllm-sha256`, `vllm-sha256_cbor`, `sglang`; empty when it is
    not known."""
    counts: KvCounts = msgspec.field(default_factory=KvCounts)


def least(one: KvState | None, other: KvState | None) -> KvState | None:
    """The state of the worker that knows least: what all workers know is no more than that."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda state: (state.trusted, state.blocks))
