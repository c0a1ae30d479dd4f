"""How much a policy differs from another one on the same requests, with an interval.

The same request is compared with itself under the other policy, so that what all policies share, such as a burst, cancels out. Requests
that follow each other are not independent: a queue makes them all late. So the interval is bootstrapped over stretches of consecutive
requests and not over single ones (the block bootstrap of Künsch 1989, with blocks that do not overlap), all seeds together.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.clock import Rng
from routing.simulation.outcomes import Outcomes, RequestEnd
from routing.simulation.turns import Workload

STRETCHES: Final = 20
"""Stretches of a run that are drawn as a whole."""
RESAMPLES: Final = 1000
"""Bootstrap resamples."""


class Difference(msgspec.Struct, frozen=True):
    """A policy's figure less that of the other policy."""

    mean: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of it."""

    @property
    def clear(self) -> bool:
        """Whether the interval has the same sign at both ends: the policies differ."""
        return self.low > 0.0 or self.high < 0.0


class Stretch(msgspec.Struct, frozen=True):
    """The sums over some consecutive requests that both policies answered."""

    requests: int
    ttft_s: float
    """Sum of what the times to the first token differ by."""
    prompt_tokens: int
    cached_tokens: int
    """Sum of what the cached tokens differ by."""


def stretches(workload: Workload, other: Outcomes, outcomes: Outcomes) -> list[Stretch]:
    """One run of a policy beside one of the other policy, over the same workload, in order of arrival."""
    both = [at for at in range(len(workload.turns)) if other.state[at] is RequestEnd.DONE and outcomes.state[at] is RequestEnd.DONE]
    both.sort(key=lambda at: (other.arrived[at], at))
    size = max(1, -(-len(both) // STRETCHES))
    found = []
    for start in range(0, len(both), size):
        part = both[start : start + size]
        own = sum([outcomes.first[at] - outcomes.arrived[at] for at in part])
        others = sum([other.first[at] - other.arrived[at] for at in part])
        cached = sum([outcomes.cached[at] - other.cached[at] for at in part])
        found.append(Stretch(len(part), own - others, sum([workload.turns[at].prompt_tokens for at in part]), cached))
    return found


def differences(found: Sequence[Stretch], rng: Rng) -> dict[str, Difference]:
    """The differences of the mean time to the first token (`ttft_mean_s`, seconds) and of the hit rate (`hit_rate`, a share)."""
    if not found:
        return {}
    n = len(found)
    drawn = [[found[rng.randrange(n)] for _ in range(n)] for _ in range(RESAMPLES)]
    return {
        "ttft_mean_s": _between(_ttft_s(found), sorted(map(_ttft_s, drawn))),
        "hit_rate": _between(_hit_rate(found), sorted(map(_hit_rate, drawn))),
    }


def _ttft_s(found: Sequence[Stretch]) -> float:
    return sum([stretch.ttft_s for stretch in found]) / sum([stretch.requests for stretch in found])


def _hit_rate(found: Sequence[Stretch]) -> float:
    return sum([stretch.cached_tokens for stretch in found]) / sum([stretch.prompt_tokens for stretch in found])


def _between(mean: float, ordered: Sequence[float]) -> Difference:
    return Difference(mean, ordered[int(0.025 * len(ordered))], ordered[int(0.975 * len(ordered))])
