"""The margin on predicted waits: how much longer than predicted a wait may become, learned from waits that have ended. Pure.

A prediction counts the requests in the queue and the arrivals into higher ranks. Within a rank other requests overtake as well (more of
their prompt is cached, or their tenant was served less), and drain rates change. So a prediction has to be not a mean but a bound that
all but a certain share of the waits keep: half the share of its rank's requests that are served at all. Where one in ten is served, one
in twenty of the queued requests may be served too late: enough others are in time. Where nearly all are served, it would be a waste to
refuse a request that may well be served.

The factor from prediction to bound is a quantile of real by predicted wait, tracked online in logarithms: a step up for a wait that was
longer than its bound, a step down for one that was not, in the proportion that is level at the wanted quantile (Robbins and Monro 1951;
Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021). Factors are separate by rank, and within a rank
by the length of the cached prefix, because the longest goes first.
"""

from math import exp, log
from typing import Final

MISSED: Final = 0.5
"""The share of queued requests that may wait longer than their bound, where all requests of their rank are served."""
LEAST_MISSED: Final = 0.02
"""The same share where hardly any request of the rank is served."""
STEP: Final = 0.4
"""Step of the logarithm, up and down together: one wait that was too long raises the bounds of its kind by up to a half."""
LAG: Final = 8
"""Steps down are divided by 1 + queued requests of the rank / `LAG`. Each queued request was admitted under an older bound, and the outcome
of the last one is known after all the others: with whole steps the bound would be at its minimum by then. A step up needs no such care,
because waits that the bound forbids by now count no more."""
MEMORY: Final = 64
"""Requests of a rank after which the share that is served counts for a third."""
LEAST, MOST = log(0.75), log(64.0)
"""Bounds of the factor, as logarithms: from three quarters of the prediction to 64 times the prediction."""
FADE_S: Final = 300.0
"""Seconds in which a learned factor decays to a third while no request waits to learn from: otherwise requests that are refused because
earlier waits were too long would be refused for ever."""


class Caution:
    """The factors, by rank and length of the cached prefix; bounded by the number of these kinds."""

    __slots__ = ("_kinds", "_served")

    def __init__(self, ranks: int) -> None:
        self._served = [1.0] * ranks
        """The share of each rank's requests that are served."""
        self._kinds: dict[tuple[int, int], tuple[float, float]] = {}
        """The logarithm of the factor of each kind, and the time at which it was learned."""

    def bound_s(self, rank: int, held: int | None, predicted_s: float, grain_s: float, now: float) -> float:
        """The bound that most waits of this kind keep, in seconds.

        Args:
            held: tokens of the prompt that are cached on a backend; None when the prompt was not read, for the least bound of the rank.
            grain_s: the resolution of waits, like the time between two dispatches; it is added to all waits before they are compared.
        """
        if held is not None:
            factor = self._now(_kind(rank, held), now)
        else:
            factor = min([self._now(kind, now) for kind in self._kinds if kind[0] == rank], default=0.0)
        return max(0.0, exp(factor) * (predicted_s + grain_s) - grain_s)

    def refused(self, rank: int) -> None:
        """Count a request that was refused because its wait would be too long."""
        self._served[rank] -= self._served[rank] / MEMORY

    def served(self, rank: int) -> None:
        """Count a request that was dispatched."""
        self._served[rank] += (1.0 - self._served[rank]) / MEMORY

    def waited(
        self, rank: int, held: int, predicted_s: float, real_s: float, grain_s: float, queued: int, *, served: bool, now: float
    ) -> None:
        """Learn from a wait that has ended.

        Args:
            predicted_s: its predicted wait, without the factor.
            real_s: its real wait; for a request that was not served a lower bound, the wait until it was given up.
            grain_s: as in `bound_s`, above 0.
            queued: requests that wait in its rank.
        """
        kind = _kind(rank, held)
        missed = max(LEAST_MISSED, MISSED * self._served[rank])
        (self.served if served else self.refused)(rank)
        at = self._now(kind, now)
        if log((real_s + grain_s) / (predicted_s + grain_s)) > at:
            at += STEP * (1.0 - missed)
        elif served:
            at -= STEP * missed / (1.0 + queued / LAG)
        self._kinds[kind] = (min(max(at, LEAST), MOST), now)

    def _now(self, kind: tuple[int, int], now: float) -> float:
        learned = self._kinds.get(kind)
        if learned is None:
            return 0.0
        return learned[0] * exp((learned[1] - now) / FADE_S)


def _kind(rank: int, held: int) -> tuple[int, int]:
    return rank, (held.bit_length() + 2) // 3
