"""How much longer than predicted a wait may turn out to be, learned from those that are over. Pure.

A prediction counts what is there and what comes into higher ranks. Within a rank others overtake as well, who have more of their prompt in
a cache or a tenant that was served less, and paces change. So what is asked of a prediction is no mean but a bound that all but a certain
share of the waits keep: half the share of its rank's requests that are served at all. Where one in ten is served, one in twenty of
those let wait may come too late: there are enough who surely do not. Where nearly all are, it would be a waste to refuse who might
well be served.

The factor from prediction to bound is a quantile of real by predicted wait, followed online in logarithms: a step up for a wait that was
longer than its bound, one down for one that was not, in the proportion that is level at the wanted quantile (Robbins and Monro 1951;
Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021). Ranks are told apart, and in a rank how long a
prefix of theirs is cached, because the longest goes first.
"""

from math import exp, log
from typing import Final

MISSED: Final = 0.5
"""Of those let wait, the share that may wait longer than they were told, where all of their rank are served."""
LEAST_MISSED: Final = 0.02
"""The same where hardly anybody is."""
STEP: Final = 0.4
"""Of the logarithm, up and down together: one that was too late makes the others of its kind be told up to half as much again."""
LAG: Final = 8
"""Steps down are smaller the more times this many wait in the rank. Each of those was let wait by an older bound, and what became of the
last of them is known after all the others: with whole steps the bound would be at its least by then. A step up needs no such care, as
waits that the bound forbids by now count no more."""
MEMORY: Final = 64
"""Requests of a rank after which the share that is served counts for a third."""
LEAST, MOST = log(0.75), log(64.0)
FADE_S: Final = 300.0
"""Seconds in which what was learned counts for a third, where nobody waits of whom to learn: else who is refused because others were late
would be for ever."""


class Caution:
    """Factors by rank and length of the held prefix; bounded by how many kinds there are."""

    __slots__ = ("_kinds", "_served")

    def __init__(self, ranks: int) -> None:
        self._served = [1.0] * ranks
        """Share of each rank's requests."""
        self._kinds: dict[tuple[int, int], tuple[float, float]] = {}
        """Logarithm of the factor, and as of when."""

    def bound_s(self, rank: int, held: int | None, predicted_s: float, grain_s: float, now: float) -> float:
        """What most such waits stay below.

        Args:
            held: tokens of its prompt that are in a cache; None where nobody has looked, for the bound of those of its rank that is least.
            grain_s: what waits differ by in any case, like the time between two that are let through; as much is added to all before
                they are compared.
        """
        if held is not None:
            factor = self._now(_kind(rank, held), now)
        else:
            factor = min([self._now(kind, now) for kind in self._kinds if kind[0] == rank], default=0.0)
        return max(0.0, exp(factor) * (predicted_s + grain_s) - grain_s)

    def refused(self, rank: int) -> None:
        """One was refused because its wait would be too long."""
        self._served[rank] -= self._served[rank] / MEMORY

    def served(self, rank: int) -> None:
        """One was let through."""
        self._served[rank] += (1.0 - self._served[rank]) / MEMORY

    def waited(
        self, rank: int, held: int, predicted_s: float, real_s: float, grain_s: float, others: int, *, served: bool, now: float
    ) -> None:
        """A wait is over.

        Args:
            predicted_s: what was predicted for it, without the factor.
            real_s: where it was not served, what it waited until then: it would have been longer.
            grain_s: as in `bound_s`, above 0.
            others: how many wait in its rank.
        """
        kind, missed = _kind(rank, held), max(LEAST_MISSED, MISSED * self._served[rank])
        (self.served if served else self.refused)(rank)
        at = self._now(kind, now)
        if log((real_s + grain_s) / (predicted_s + grain_s)) > at:
            at += STEP * (1.0 - missed)
        elif served:
            at -= STEP * missed / (1.0 + others / LAG)
        self._kinds[kind] = (min(max(at, LEAST), MOST), now)

    def _now(self, kind: tuple[int, int], now: float) -> float:
        found = self._kinds.get(kind)
        if found is None:
            return 0.0
        return found[0] * exp((found[1] - now) / FADE_S)


def _kind(rank: int, held: int) -> tuple[int, int]:
    return rank, (held.bit_length() + 2) // 3
