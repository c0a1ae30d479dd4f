"""What backends will hold soon: the blocks of prompts on their way, written at dispatch, for a few seconds or until they fail.

Without it, siblings that come within an engine's event lag are spread over cold backends (routers no. 14). A block's entry is a
tuple of predictions, at most one for each backend, and blocks of one prompt share it, so an entry costs little more than its key.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

TTL_S: Final = 3.0
"""Seconds. Engines' events come within 0.1 s of a prefill step; 2 s (llm-d) to 5 s (Dynamo) are what others take."""
KEPT: Final = 32
"""Predictions of one backend that can stand in for a withdrawn one with the same beginning."""
_NEVER: Final = float("-inf")


class Holder:
    """One backend's life as the index sees it. `bit` is 0 once that is over, so that what refers to it means nobody."""

    __slots__ = ("bit", "recent")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.recent: deque[Prediction] = deque(maxlen=KEPT)


class Prediction(msgspec.Struct, eq=False):
    """One prompt on its way to one backend."""

    holder: Holder
    chain: Sequence[int]
    until: float

    def bit_at(self, now: float) -> int:
        """The backend's bit, or 0 when this counts no more."""
        return self.holder.bit if self.until > now else 0


Group = tuple[Prediction, ...]


class Predictions:
    """`max_blocks` distinct blocks at most; at the bound the oldest predictions go first."""

    __slots__ = ("_max_blocks", "_queue", "_swept", "_ttl_s", "groups")

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        self.groups: dict[int, Group] = {}
        """By block hash; read by `PrefixIndex.match`, written here only."""
        self._queue: deque[Prediction] = deque()
        self._swept = 0
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s

    def add(self, holder: Holder, chain: Sequence[int], now: float) -> Prediction:
        """The prompt with this chain goes to that backend."""
        chain = chain[: self._max_blocks]
        self._sweep(2 * len(chain) + 64, now)
        while self._queue and len(self.groups) + len(chain) > self._max_blocks:
            self._queue[0].until = _NEVER
            self._sweep(len(self._queue[0].chain) + 1, now)
        prediction = Prediction(holder, chain, now + self._ttl_s)
        groups = self.groups
        olds = list(map(groups.get, chain))
        at, end = 0, len(olds)
        while at < end:
            old, begin = olds[at], at
            while at < end and olds[at] is old:
                at += 1
            group: Group = (*[one for one in old or () if one.holder is not holder and one.bit_at(now)], prediction)
            # in one go: dicts fill ten times as fast from a dict as in a loop
            groups.update(dict.fromkeys(chain[begin:at], group))
        self._queue.append(prediction)
        holder.recent.append(prediction)
        return prediction

    def withdraw(self, prediction: Prediction) -> None:
        """It did not go there after all. An earlier prediction for that backend with the same beginning stands again."""
        if prediction.until == _NEVER:
            return
        prediction.until = _NEVER
        chain, prediction.chain = prediction.chain, ()
        others = [(one, _shared(one.chain, chain)) for one in prediction.holder.recent if one.until != _NEVER]
        others.sort(key=lambda one: -one[0].until)  # of two that share a block the one stands that stands for longer
        groups = self.groups
        for at, block in enumerate(chain):
            group = groups.get(block, ())
            if prediction not in group:
                continue
            left = tuple(one for one in group if one is not prediction)
            older = next((one for one, shared in others if at < shared), None)
            if older is not None:
                left = (*left, older)
            if left:
                groups[block] = left
            else:
                del groups[block]

    def _sweep(self, budget: int, now: float) -> None:
        """Take out what has expired, looking at no more than `budget` blocks: as much as comes in goes out."""
        queue, groups = self._queue, self.groups
        while queue and budget > 0 and queue[0].until <= now:
            queue[0].until = _NEVER  # from here on it cannot stand in for another
            chain = queue[0].chain
            part = chain[self._swept : self._swept + budget]
            found = list(map(groups.get, part))
            different = {id(group): group for group in found if group is not None}
            dead = {key for key, group in different.items() if not any([one.bit_at(now) for one in group])}
            if dead:
                deque(map(groups.pop, [block for block, group in zip(part, found, strict=True) if id(group) in dead]), 0)
            budget -= len(part) + 1
            self._swept += len(part)
            if self._swept >= len(chain):
                queue.popleft()
                self._swept = 0


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Blocks that both chains begin with: where they agree once, they agree in all before."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
