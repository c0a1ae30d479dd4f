"""The prefix index: how much of a prompt each backend holds in its KV cache. One index over all backends, from three sources. Pure.

- exact: the engine's events (`stored`, `removed`, `cleared`), in our hashes (`routing.prefix.engine_blocks`), with copies counted
- predicted: `predict` at dispatch, for 3 s or until `withdraw`; a block is held when either source says so
- approximate: for engines without events, `size` and then `touch` or `confirm`: what an LRU cache of that size would still hold. Beside
  events it serves the prompts that events cannot tell of: those with images

`PrefixIndex` is bounded at every insert; see `routing.prefix.holders` for what goes at the bound.

`Predictions` are the blocks of dispatched prompts that backends will hold soon, kept for a few seconds or until dispatch fails. Without
them, similar requests that come within an engine's event lag are spread over cold backends (routers no. 14). A block's entry is a tuple of
predictions, at most one for each backend, and blocks of one prompt share it, so an entry costs little more than its key.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from routing.prefix.holders import BlockHolders, RecentUse

PREDICTION_TTL_S: Final = 3.0
"""Seconds that a prediction counts. Engines' events come within 0.1 s of a prefill step; llm-d keeps predictions 2 s, Dynamo 5 s."""
MAX_RECENT_PREDICTIONS: Final = 32
"""Predictions remembered for each backend, which can replace a withdrawn one with the same beginning."""
_NEVER: Final = float("-inf")


class BackendLife:
    """One backend in the index, from its first event until it is forgotten or cleared; then `bit` becomes 0, so that predictions which
    still refer to it count for no backend."""

    __slots__ = ("bit", "recent")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.recent: deque[Prediction] = deque(maxlen=MAX_RECENT_PREDICTIONS)


class Prediction(msgspec.Struct, eq=False):
    """One prompt on its way to one backend."""

    holder: BackendLife
    chain: Sequence[int]
    until: float

    def bit_at(self, now: float) -> int:
        """The backend's bit, or 0 when this prediction has expired."""
        return self.holder.bit if self.until > now else 0


PredictionGroup = tuple[Prediction, ...]


class Predictions:
    """The predictions by block. At most `max_blocks` distinct blocks; at the bound the oldest predictions are dropped first."""

    __slots__ = ("_max_blocks", "_queue", "_swept", "_ttl_s", "groups")

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        self.groups: dict[int, PredictionGroup] = {}
        """By block hash; read by `PrefixIndex.match`, written here only."""
        self._queue: deque[Prediction] = deque()
        self._swept = 0
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s

    def add(self, holder: BackendLife, chain: Sequence[int], now: float) -> Prediction:
        """Record that the prompt with this chain is being sent to this backend."""
        chain = chain[: self._max_blocks]
        if self._queue and self._queue[0].until <= now:
            self._sweep(2 * len(chain) + 64, now)
        while self._queue and len(self.groups) + len(chain) > self._max_blocks:
            self._queue[0].until = _NEVER
            self._sweep(len(self._queue[0].chain) + 1, now)
        prediction = Prediction(holder, chain, now + self._ttl_s)
        groups = self.groups
        old: PredictionGroup | None = ()  # of no block: the first one begins a run
        group: PredictionGroup = ()
        for block, found in zip(chain, list(map(groups.get, chain)), strict=True):
            if found is not old:
                old = found
                standing: list[Prediction] = []
                for earlier in found or ():
                    if earlier.holder is not holder and earlier.until > now and earlier.holder.bit:
                        standing.append(earlier)
                group = (*standing, prediction)
            groups[block] = group
        self._queue.append(prediction)
        holder.recent.append(prediction)
        return prediction

    def withdraw(self, prediction: Prediction) -> None:
        """Take back a prediction whose dispatch failed; idempotent. An earlier prediction for that backend with the same beginning counts
        again."""
        if prediction.until == _NEVER:
            return
        prediction.until = _NEVER
        chain = prediction.chain
        prediction.chain = ()
        standing = [
            (candidate, _common_length(candidate.chain, chain)) for candidate in prediction.holder.recent if candidate.until != _NEVER
        ]
        standing.sort(key=lambda entry: -entry[0].until)  # of two that share a block, the one that expires last counts
        groups = self.groups
        for at, block in enumerate(chain):
            group = groups.get(block, ())
            if prediction not in group:
                continue
            remaining = tuple(member for member in group if member is not prediction)
            older = next((candidate for candidate, shared in standing if at < shared), None)
            if older is not None:
                remaining = (*remaining, older)
            if remaining:
                groups[block] = remaining
            else:
                del groups[block]

    def _sweep(self, budget: int, now: float) -> None:
        """Remove expired predictions, looking at no more than `budget` blocks: each call of `add` removes about as much as it adds."""
        queue = self._queue
        groups = self.groups
        while queue and budget > 0 and queue[0].until <= now:
            queue[0].until = _NEVER  # from here on it cannot replace a withdrawn one
            chain = queue[0].chain
            part = chain[self._swept : self._swept + budget]
            part_groups = list(map(groups.get, part))
            different = dict(zip(map(id, part_groups), part_groups, strict=True))
            dead = {key for key, group in different.items() if group is not None and not any([member.bit_at(now) for member in group])}
            if len(dead) == len(different):
                deque(map(groups.pop, part), 0)
            elif dead:
                deque(map(groups.pop, [block for block, group in zip(part, part_groups, strict=True) if id(group) in dead]), 0)
            budget -= len(part) + 1
            self._swept += len(part)
            if self._swept >= len(chain):
                queue.popleft()
                self._swept = 0


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of leading blocks that both chains share, by bisection: chains that agree at one block agree in all before it."""
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[middle - 1] == second[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


class IndexMatch(msgspec.Struct, frozen=True, gc=False):
    """How far each backend holds one prompt, in whole blocks."""

    blocks: Mapping[str, int]
    """Leading blocks held, by backend id; without the backends that hold nothing."""
    common: int = 0
    """Leading blocks that nearly all backends hold: a match no longer than that distinguishes none."""

    def held(self, backend_id: str) -> int:
        """Blocks that this backend holds of the prompt's beginning."""
        return self.blocks.get(backend_id, 0)


NO_MATCH: Final = IndexMatch({})


class _IndexedBackend(BackendLife):
    """One backend in the index, until it is forgotten or cleared."""

    __slots__ = ("copies", "exact", "slot", "used")

    def __init__(self, slot: int) -> None:
        super().__init__(1 << slot)
        self.slot = slot
        self.copies: dict[int, int] = {}
        """Copies of a block beyond the first, for blocks that have any."""
        self.used = RecentUse()
        self.exact = False
        """Whether its events tell of all prompts but those confirmed as not `told`."""


class PrefixIndex:
    """An index over the backends of a process, or of one pool. Backends need not be registered: the first call for one adds it.

    Args:
        max_blocks: distinct blocks at most, over all backends; some 100 bytes each.
        predicted_ttl_s: how long a prediction counts.
    """

    __slots__ = ("_backends", "_holders", "_max_copies", "_owners", "_predictions")

    def __init__(self, max_blocks: int, predicted_ttl_s: float = PREDICTION_TTL_S) -> None:
        self._holders = BlockHolders(max_blocks)
        self._predictions = Predictions(max(1, max_blocks // 8), predicted_ttl_s)
        self._backends: dict[str, _IndexedBackend] = {}
        self._owners: dict[int, str] = {}
        self._max_copies = max(1, max_blocks // 8)

    @property
    def blocks(self) -> int:
        """Distinct blocks in the index, including blocks of forgotten backends that are not swept yet."""
        return self._holders.blocks

    @property
    def backends(self) -> int:
        """Backends in the index."""
        return len(self._backends)

    @property
    def evicted(self) -> int:
        """Blocks dropped at the bound since the beginning; anything above 0 asks for a larger `max_blocks`."""
        return self._holders.evicted

    @property
    def predicted(self) -> int:
        """Distinct blocks with a prediction, including expired ones that are not swept yet."""
        return len(self._predictions.groups)

    @property
    def shards(self) -> Sequence[Mapping[int, int]]:
        """The holders of each block, as bits, in parts; for copies (`routing.prefix.index_copy`)."""
        return self._holders.shards

    def assumed(self) -> list[tuple[str, int, list[tuple[int, int]]]]:
        """Of each backend without events: its id, its capacity in blocks, and bit and blocks of each generation, the oldest first."""
        return [
            (backend_id, backend.used.capacity, backend.used.generations())
            for backend_id, backend in self._backends.items()
            if not backend.exact
        ]

    def match(self, chain: Sequence[int], now: float, among: Collection[str] | None = None) -> IndexMatch:
        """How far each backend holds the prompt, in one walk.

        Args:
            among: the backends over which `common` is computed, usually the pool's; None: all in the index.
        """
        holders = self._holders
        shards = holders.shards
        mask = holders.mask
        reach = holders.alive
        groups = self._predictions.groups
        bits_before = None
        group_before = None
        guessed = 0
        depth = 0
        ends: list[tuple[int, int]] = []
        for block in chain:
            bits = shards[block & mask].get(block, 0)
            group = groups.get(block)
            if bits is bits_before and group is group_before:  # most blocks of a prompt are held as the block before
                depth += 1
                continue
            bits_before = bits
            if group is not group_before:
                group_before = group
                guessed = 0
                for prediction in group or ():
                    if prediction.until > now:
                        guessed |= prediction.holder.bit
            still_matching = reach & (bits | guessed)
            if still_matching != reach:
                if depth:
                    ends.append((reach ^ still_matching, depth))
                reach = still_matching
                if not still_matching:
                    break
            depth += 1
        if reach and depth:
            ends.append((reach, depth))
        if not ends:
            return NO_MATCH
        held: dict[str, int] = {}
        owners = self._owners
        for bits, depth in ends:  # the shortest first, so a backend's longest stands
            while bits:
                low = bits & -bits
                held[owners[low.bit_length() - 1]] = depth
                bits ^= low
        return IndexMatch(held, common(held, self._backends if among is None else among) if len(held) > 1 else 0)

    def stored(self, backend_id: str, hashes: Sequence[int]) -> None:
        """The engine holds one more copy of each of these, a prompt's blocks in order."""
        backend = self._backend(backend_id)
        copies = backend.copies
        again = self._holders.add(backend.bit, hashes)
        if copies and self._holders.evicted:
            for block in set(hashes).difference(again):
                copies.pop(block, None)  # left from before the block was dropped at the bound
        for block in again:
            if block in copies:
                copies[block] += 1
            elif len(copies) < self._max_copies:
                copies[block] = 1

    def took_in(self, backend_id: str, blocks: int) -> None:
        """The events of an engine with an `exact` size have reported so many blocks as stored, whatever they hold: they push out what it is
        assumed to hold."""
        backend = self._backends.get(backend_id)
        if backend is not None and backend.exact:
            backend.used.others(blocks, self._close)

    def removed(self, backend_id: str, hashes: Iterable[int]) -> None:
        """The engine has dropped one copy of each of these blocks; unknown blocks are ignored."""
        backend = self._backends.get(backend_id)
        if backend is None:
            return
        if backend.copies:
            hashes = [block for block in hashes if not _one_less(backend.copies, block)]
        self._holders.discard(backend.bit, hashes)

    def stored_by_events(self, backend_id: str, block: int) -> bool:
        """Whether the backend's events say that it holds this block; predictions do not count."""
        backend = self._backends.get(backend_id)
        holders = self._holders
        return backend is not None and bool(holders.shards[block & holders.mask].get(block, 0) & backend.bit)

    def cleared(self, backend_id: str) -> None:
        """The engine holds nothing, or it is not known what it holds. O(1); the size given by `size` stays."""
        backend = self._backends.get(backend_id)
        if backend is not None:
            capacity = backend.used.capacity
            self.forget(backend_id)
            self.size(backend_id, capacity, exact=backend.exact)

    def forget(self, backend_id: str) -> None:
        """Forget a backend that has left: it matches nothing from now on, predictions included. O(1). A backend that comes back under the
        same id begins empty."""
        backend = self._backends.pop(backend_id, None)
        if backend is not None:
            backend.bit = 0
            self._close(backend.slot)
            backend.used.resize(0, self._close)

    def predict(self, backend_id: str, chain: Sequence[int], now: float) -> Prediction:
        """Record that the prompt is being sent to the backend, which will hold it. Pass the result to `withdraw` or `confirm`."""
        if self._holders.crowded:
            self._holders.refresh(chain)
        return self._predictions.add(self._backends.get(backend_id) or self._open(backend_id), chain, now)

    def withdraw(self, prediction: Prediction) -> None:
        """Take back the prediction of a dispatch that failed. Idempotent."""
        self._predictions.withdraw(prediction)

    def confirm(self, prediction: Prediction, now: float, *, told: bool = True) -> None:
        """Record that the backend has begun to answer: it is assumed to hold the prompt from now on, unless its events tell of the prompt.

        Args:
            told: whether events tell of such prompts where the backend has any; not so for prompts with images.
        """
        backend = prediction.holder
        if isinstance(backend, _IndexedBackend) and backend.bit and backend.used.capacity and not (told and backend.exact):
            self._touch(backend, self._owners[backend.slot], prediction.chain)

    def size(self, backend_id: str, blocks: int, *, exact: bool = False) -> None:
        """Set the cache size of a backend in blocks; 0: nothing is to be assumed of it.

        Args:
            exact: whether the backend's events tell of all prompts but those confirmed as not `told`. It is assumed to hold those until
                it `took_in` as many blocks.
        """
        if blocks < 0:
            raise ValueError(f"a cache of {blocks} blocks")
        backend = self._backend(backend_id)
        if backend.exact is not exact:
            backend.exact = exact
            backend.used.resize(0, self._close)
        backend.used.resize(blocks, self._close)

    def touch(self, backend_id: str, chain: Sequence[int], now: float, *, whole: bool = True) -> None:
        """Record that a backend without events used this prompt's blocks just now. Does nothing when it has no `size`.

        Args:
            whole: whether `chain` is the beginning of one prompt (`RecentUse.touch`).
        """
        backend = self._backends.get(backend_id)
        if backend is not None and backend.used.capacity and not backend.exact:
            self._touch(backend, backend_id, chain, whole=whole)

    def _touch(self, backend: _IndexedBackend, backend_id: str, chain: Sequence[int], *, whole: bool = True) -> None:
        backend.used.touch(self._holders, chain, lambda: self._slot(backend_id), self._close, whole=whole)

    def _backend(self, backend_id: str) -> _IndexedBackend:
        return self._backends.get(backend_id) or self._open(backend_id)

    def _open(self, backend_id: str) -> _IndexedBackend:
        backend = self._backends[backend_id] = _IndexedBackend(self._slot(backend_id))
        return backend

    def _slot(self, backend_id: str) -> int:
        slot = self._holders.open()
        self._owners[slot] = backend_id
        return slot

    def _close(self, slot: int) -> None:
        self._holders.close(slot)
        del self._owners[slot]


def common(held: Mapping[str, int], among: Collection[str]) -> int:
    """The number of leading blocks that at least 90 % of these backends hold, and at least two of them: a prefix that nearly all hold does
    not distinguish them."""
    need = max(2, (len(among) * 9 + 9) // 10)
    if len(held) < need:
        return 0
    depths = sorted((held.get(backend_id, 0) for backend_id in among), reverse=True)
    return depths[need - 1] if len(depths) >= need else 0


def _one_less(copies: dict[int, int], block: int) -> bool:
    """Remove one copy beyond the first; returns whether there was one."""
    extra = copies.get(block)
    if extra is None:
        return False
    if extra == 1:
        del copies[block]
    else:
        copies[block] = extra - 1
    return True
