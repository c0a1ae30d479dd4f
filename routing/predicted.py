"""Predicted cache contents: blocks of dispatched prompts that backends will hold soon, kept for a few seconds or until dispatch fails.

Without it, similar requests that come within an engine's event lag are spread over cold backends (routers no. 14). A block's entry is a
tuple of predictions, at most one for each backend, and blocks of one prompt share it, so an entry costs little more than its key.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

TTL_S: Final = 3.0
"""Seconds that a prediction counts. Engines' events come within 0.1 s of a prefill step; llm-d keeps predictions 2 s, Dynamo 5 s."""
MAX_RECENT: Final = 32
"""Predictions remembered for each backend, which can replace a withdrawn one with the same beginning."""
_NEVER: Final = float("-inf")


class Holder:
    """One backend in the index, from its first event until it is forgotten or cleared; then `bit` becomes 0, so that predictions which
    still refer to it count for no backend."""

    __slots__ = ("bit", "recent")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.recent: deque[Prediction] = deque(maxlen=MAX_RECENT)


class Prediction(msgspec.Struct, eq=False):
    """One prompt on its way to one backend."""

    holder: Holder
    chain: Sequence[int]
    until: float

    def bit_at(self, now: float) -> int:
        """The backend's bit, or 0 when this prediction has expired."""
        return self.holder.bit if self.until > now else 0


Group = tuple[Prediction, ...]


class Predictions:
    """The predictions by block. At most `max_blocks` distinct blocks; at the bound the oldest predictions are dropped first."""

    __slots__ = ("_max_blocks", "_queue", "_swept", "_ttl_s", "groups")

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        self.groups: dict[int, Group] = {}
        """By block hash; read by `PrefixIndex.match`, written here only."""
        self._queue: deque[Prediction] = deque()
        self._swept = 0
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s

    def add(self, holder: Holder, chain: Sequence[int], now: float) -> Prediction:
        """Record that the prompt with this chain is being sent to this backend."""
        chain = chain[: self._max_blocks]
        self._sweep(2 * len(chain) + 64, now)
        while self._queue and len(self.groups) + len(chain) > self._max_blocks:
            self._queue[0].until = _NEVER
            self._sweep(len(self._queue[0].chain) + 1, now)
        prediction = Prediction(holder, chain, now + self._ttl_s)
        groups = self.groups
        olds = list(map(groups.get, chain))
        at = 0
        end = len(olds)
        while at < end:
            old = olds[at]
            begin = at
            while at < end and olds[at] is old:
                at += 1
            group: Group = (*[earlier for earlier in old or () if earlier.holder is not holder and earlier.bit_at(now)], prediction)
            # in one go: dicts fill ten times as fast from a dict as in a loop
            groups.update(dict.fromkeys(chain[begin:at], group))
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
            different = {id(group): group for group in part_groups if group is not None}
            dead = {key for key, group in different.items() if not any([member.bit_at(now) for member in group])}
            if dead:
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
