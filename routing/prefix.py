"""Which backend holds how much of a prompt: one index over all backends, from three sources, the best that each has.

- exact: the engine's events (`stored`, `removed`, `cleared`), in our hashes (`routing.engine_blocks`), with copies counted
- predicted: `predict` at dispatch, for 3 s or until `withdraw`; a block is held when either source says so
- approximate: for engines without events, `size` and then `touch` or `confirm`: what a cache of that size would still hold

Pure: the time is handed in. Bounded at every insert; see `routing.block_holders` for what goes at the bound.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from routing.block_holders import BlockHolders
from routing.predicted import TTL_S, Holder, Prediction, Predictions
from routing.recent_use import RecentUse


class Match(msgspec.Struct, frozen=True, gc=False):
    """How far each backend holds one prompt, in whole blocks."""

    blocks: Mapping[str, int]
    """By backend id; those that hold nothing are not in it."""
    common: int = 0
    """Blocks that nearly all hold: a match no longer than that says nothing."""

    def held(self, backend_id: str) -> int:
        """Blocks that this backend holds of the prompt's beginning."""
        return self.blocks.get(backend_id, 0)


NO_MATCH: Final = Match({})


class _Backend(Holder):
    """A life of one backend in the index."""

    __slots__ = ("copies", "slot", "used")

    def __init__(self, slot: int) -> None:
        super().__init__(1 << slot)
        self.slot = slot
        self.copies: dict[int, int] = {}
        """Copies beyond the first, where there are any."""
        self.used = RecentUse()


class PrefixIndex:
    """One for a process, or for a pool of one. Backends need not be announced: the first word of one opens it.

    Args:
        max_blocks: distinct blocks kept, over all backends; some 100 bytes each.
        predicted_ttl_s: how long a prediction counts.
    """

    __slots__ = ("_backends", "_holders", "_max_copies", "_owners", "_predictions")

    def __init__(self, max_blocks: int, predicted_ttl_s: float = TTL_S) -> None:
        self._holders = BlockHolders(max_blocks)
        self._predictions = Predictions(max(1, max_blocks // 8), predicted_ttl_s)
        self._backends: dict[str, _Backend] = {}
        self._owners: dict[int, str] = {}
        self._max_copies = max(1, max_blocks // 8)

    @property
    def blocks(self) -> int:
        """Distinct blocks known; some of them may be forgotten backends' and not swept yet."""
        return self._holders.blocks

    @property
    def backends(self) -> int:
        """Backends that it was told of and that are not forgotten."""
        return len(self._backends)

    @property
    def evicted(self) -> int:
        """Blocks dropped at the bound since the beginning; anything above 0 asks for a larger `max_blocks`."""
        return self._holders.evicted

    @property
    def predicted(self) -> int:
        """Distinct blocks with a prediction, expired ones that are not swept yet included."""
        return len(self._predictions.groups)

    def match(self, chain: Sequence[int], now: float, among: Collection[str] | None = None) -> Match:
        """How far each backend holds the prompt, in one walk.

        Args:
            among: the backends that `common` is about, as a rule the pool's; all that the index knows when None.
        """
        holders = self._holders
        shards, mask, reach = holders.shards, holders.mask, holders.alive
        groups = self._predictions.groups
        group_before, guessed, depth = None, 0, 0
        ends: list[tuple[int, int]] = []
        for block in chain:
            bits = shards[block & mask].get(block, 0)
            if groups and (group := groups.get(block)) is not None:
                if group is not group_before:
                    group_before, guessed = group, 0
                    for one in group:
                        guessed |= one.bit_at(now)
                bits |= guessed
            left = reach & bits
            if left != reach:
                if depth:
                    ends.append((reach ^ left, depth))
                reach = left
                if not left:
                    break
            depth += 1
        if reach and depth:
            ends.append((reach, depth))
        return self._folded(ends, among) if ends else NO_MATCH

    def _folded(self, ends: list[tuple[int, int]], among: Collection[str] | None) -> Match:
        held: dict[str, int] = {}
        owners = self._owners
        for bits, depth in ends:  # the shortest first, so a backend's longest stands
            while bits:
                low = bits & -bits
                held[owners[low.bit_length() - 1]] = depth
                bits ^= low
        return Match(held, common(held, self._backends if among is None else among))

    def stored(self, backend_id: str, hashes: Sequence[int]) -> None:
        """The engine holds one more copy of each of these, a prompt's blocks in order."""
        backend = self._backend(backend_id)
        copies = backend.copies
        again = self._holders.add(backend.bit, hashes)
        if copies and self._holders.evicted:
            for block in set(hashes).difference(again):
                copies.pop(block, None)  # of a life before it was dropped at the bound
        for block in again:
            if block in copies:
                copies[block] += 1
            elif len(copies) < self._max_copies:
                copies[block] = 1

    def removed(self, backend_id: str, hashes: Iterable[int]) -> None:
        """One copy of each is gone; what is not known is not there anyway."""
        backend = self._backends.get(backend_id)
        if backend is None:
            return
        if backend.copies:
            hashes = [block for block in hashes if not _one_less(backend.copies, block)]
        self._holders.discard(backend.bit, hashes)

    def told(self, backend_id: str, block: int) -> bool:
        """Whether the backend's events say that it holds this block, whatever else does."""
        backend, holders = self._backends.get(backend_id), self._holders
        return backend is not None and bool(holders.shards[block & holders.mask].get(block, 0) & backend.bit)

    def cleared(self, backend_id: str) -> None:
        """The engine holds nothing, or what it holds is not known. O(1); its approximate size stays."""
        backend = self._backends.get(backend_id)
        if backend is not None:
            capacity = backend.used.capacity
            self.forget(backend_id)
            self._open(backend_id).used.resize(capacity, self._close)

    def forget(self, backend_id: str) -> None:
        """The backend is gone: it matches nothing from now on, predictions included. O(1). One of the same id begins empty."""
        backend = self._backends.pop(backend_id, None)
        if backend is not None:
            backend.bit = 0
            self._close(backend.slot)
            backend.used.resize(0, self._close)

    def predict(self, backend_id: str, chain: Sequence[int], now: float) -> Prediction:
        """The prompt is being sent there: it will hold it. To be handed to `withdraw` or `confirm`."""
        self._holders.refresh(chain)
        return self._predictions.add(self._backend(backend_id), chain, now)

    def withdraw(self, prediction: Prediction) -> None:
        """The dispatch failed. Idempotent."""
        self._predictions.withdraw(prediction)

    def confirm(self, prediction: Prediction, now: float) -> None:
        """The backend has begun to answer. One without events is taken to hold the prompt from now on; events say it themselves."""
        backend = prediction.holder
        if isinstance(backend, _Backend) and backend.bit and backend.used.capacity:
            self._touch(backend, self._owners[backend.slot], prediction.chain)

    def size(self, backend_id: str, blocks: int) -> None:
        """The backend tells no events and has room for so many blocks; 0: it tells them, or nothing is to be assumed of it."""
        if blocks < 0:
            raise ValueError(f"a cache of {blocks} blocks")
        self._backend(backend_id).used.resize(blocks, self._close)

    def touch(self, backend_id: str, chain: Sequence[int], now: float) -> None:
        """A backend without events used this prompt's blocks just now. Does nothing where no `size` was given."""
        backend = self._backends.get(backend_id)
        if backend is not None and backend.used.capacity:
            self._touch(backend, backend_id, chain)

    def _touch(self, backend: _Backend, backend_id: str, chain: Sequence[int]) -> None:
        backend.used.touch(self._holders, chain, lambda: self._slot(backend_id), self._close)

    def _backend(self, backend_id: str) -> _Backend:
        return self._backends.get(backend_id) or self._open(backend_id)

    def _open(self, backend_id: str) -> _Backend:
        backend = self._backends[backend_id] = _Backend(self._slot(backend_id))
        return backend

    def _slot(self, backend_id: str) -> int:
        slot = self._holders.open()
        self._owners[slot] = backend_id
        return slot

    def _close(self, slot: int) -> None:
        self._holders.close(slot)
        del self._owners[slot]


def common(held: Mapping[str, int], among: Collection[str]) -> int:
    """The number of blocks that at least nine of ten of these backends hold, and never fewer than two of them: a beginning that nearly
    all have says nothing about where to go."""
    need = max(2, (len(among) * 9 + 9) // 10)
    if len(held) < need:
        return 0
    depths = sorted((held.get(one, 0) for one in among), reverse=True)
    return depths[need - 1] if len(depths) >= need else 0


def _one_less(copies: dict[int, int], block: int) -> bool:
    """Whether there was a copy beyond the first, which is then gone."""
    left = copies.get(block)
    if left is None:
        return False
    if left == 1:
        del copies[block]
    else:
        copies[block] = left - 1
    return True
