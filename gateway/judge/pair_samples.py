"""Turns compared pairs into samples of a rollout: one pair says whether the canary lost, the next whether the baseline did. Pure.

A pair in which the canary lost is one that the baseline won, so samples of both arms from one pair would not be independent, and the
verdict of a rollout, which takes them for that, would be wrong more often than its alpha says. With each pair counted for one arm alone
they are. The verdict compares both arms within an interval of seconds, and a judge compares a few pairs a minute, so two pairs wait for
each other and are counted together.
"""

from typing import Final

import msgspec

from gateway.judge.questions import PairOutcome
from policies.rollout.samples import JUDGED, ArmSums, Interval, Tally

MOST_WAITING: Final = 256
"""Rollouts with a pair that waits for its second one; there are at most 50 open at a time."""


class LostPair(msgspec.Struct, frozen=True):
    """Two compared pairs: whether the canary lost the first, and the baseline the second."""

    canary_lost: bool
    baseline_lost: bool

    def interval(self, index: int) -> Interval:
        """The samples, as those of one interval. They are no requests."""
        arms = [ArmSums(0, {JUDGED: Tally(1, float(lost))}) for lost in (self.canary_lost, self.baseline_lost)]
        return Interval(index, *arms)


class PairSamples:
    """The pairs of each rollout that wait for a second one."""

    def __init__(self) -> None:
        self._waiting: dict[str, bool] = {}

    def add(self, rollout: str, outcome: PairOutcome) -> LostPair | None:
        """Count a compared pair; the samples of two pairs, where it is the second one."""
        canary_lost = self._waiting.pop(rollout, None)
        if canary_lost is not None:
            return LostPair(canary_lost, outcome == "canary")
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.clear()
        self._waiting[rollout] = outcome == "baseline"
        return None
