"""Local limits while the shared counters are away: the share of every limit that one process may grant alone. Pure.

With R processes that decide (the last number known):

    rate, concurrency    max(1, amount / R), burst likewise
    tokens, requests and units per hour to month, ever     what was left at the store's last answer, / R, rounded down
    money                1 % of the budget, at most what was left / R, and then nothing: it is closed until the store is back

So all processes together grant no more than what was left of a calendar limit or a budget, as far as they knew.

docs/reference/stores.md publishes the overshoot that follows.
"""

from collections import deque
from typing import Final

import msgspec

from tenancy.hold import Refused
from tenancy.limits import Group, LimitLine, Meter, Window

GRACE_DIVISOR: Final = 100
"""The grace for money is a hundredth of the budget, per process (reliability research, 4.6)."""
REMEMBERED_S: Final = 30.0
"""How long a number of processes counts after it was seen: a store that comes back knows no process yet for a moment."""
MAX_KNOWN: Final = 100_000
"""Calendar limits whose remainder is remembered; the oldest entry gives way, and its limit counts as untouched."""


class Replicas:
    """How many processes decide on the same counters: the most that were seen within `REMEMBERED_S`, or the number seen last."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=256)

    def saw(self, count: int, now: float) -> None:
        """Note a number of processes."""
        self._seen.append((now, max(count, 1)))
        while len(self._seen) > 1 and now - self._seen[0][0] > REMEMBERED_S:
            self._seen.popleft()

    @property
    def count(self) -> int:
        """The number of processes, at least 1."""
        return max((count for _, count in self._seen), default=1)


class Left(msgspec.Struct, frozen=True, gc=False):
    """The remainder of a calendar limit at an answer of the store, and the time of the answer."""

    remaining: int
    at: float
    reset_us: int


class LastKnown:
    """The remainder of each calendar limit at the last answer of the shared counters."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[str, Left] = {}

    def note(self, line: LimitLine, remaining: int, reset_us: int, now: float) -> None:
        """Note what a decision of the store reported."""
        left = self._left
        if line.key not in left and len(left) >= MAX_KNOWN:
            del left[next(iter(left))]
        left[line.key] = Left(remaining, now, reset_us)

    def remaining(self, line: LimitLine, now: float) -> int:
        """The remainder of the limit's amount; the whole amount when nothing was reported, or in a new period."""
        known = self._left.get(line.key)
        if known is None or (line.window is not Window.EVER and now >= known.at + known.reset_us / 1e6):
            return line.amount
        return min(known.remaining, line.amount)


def share_of(line: LimitLine, replicas: int, remaining: int) -> LimitLine:
    """The line as one of `replicas` processes may decide on it alone. `remaining` is what is left of a calendar limit."""
    if line.window in (Window.MINUTE, Window.NOW):
        amount = max(line.amount // replicas, 1) if line.amount else 0
        return msgspec.structs.replace(line, amount=amount, burst=max(line.burst // replicas, 1) if line.burst else 0, soft=0)
    if line.meter == Meter.COST_NANOUSD:
        amount = min(max(line.amount // GRACE_DIVISOR, 1) if line.amount else 0, remaining // replicas)
    else:
        amount = remaining // replicas
    return msgspec.structs.replace(line, amount=amount, soft=0)


def shares_of(group: Group, replicas: int, known: LastKnown, now: float) -> Group:
    """A group with the share of each line."""
    return Group(group.tag, tuple(share_of(line, replicas, known.remaining(line, now)) for line in group.lines), label=group.label)


def alone(refused: Refused, line: LimitLine) -> Refused:
    """A refusal by a share, as it is reported to the caller: by the whole `line`.

    It is never final, because a request that is too large for a share may pass when the store is back; and only a rate's share says
    when.
    """
    rate = line.window is Window.MINUTE and not refused.never
    return Refused(line, refused.remaining, refused.wait_us if rate else None, never=line.amount == 0, degraded=True)


def closed_for_money(refused: Refused) -> bool:
    """Whether a budget refuses because its real state cannot be known now, not because it is spent."""
    return refused.degraded and refused.line.meter == Meter.COST_NANOUSD
