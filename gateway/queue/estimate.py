"""The drain rate of a pool's queue, the wait that follows from it, and the margin on predicted waits. Pure: the time is handed in.

`DrainRate` predicts the wait of a request of a given rank. Ranks are served in order, so a request waits for the work ahead of it now and
for the arrivals into higher ranks meanwhile. Where C is the drain rate and a the arrival rate of higher ranks, both in tokens per second, W
tokens ahead are done after W / (C - a): the wait in a priority queue with fluid work (Kleinrock, "Queueing Systems", vol. 2, 3.4). Where
higher ranks take the whole rate, the request waits for the share that `routing.fair_queue` reserves for lower ranks.

`ForecastMargin` says how much longer than predicted a wait may become, learned from waits that have ended.
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

from routing.fair_queue import RANKS, Ahead

TAU_S: Final = 15.0
"""Seconds after which a measurement counts for a third: several requests long, and short against a change of load."""
MANY: Final = 128
"""Dispatched requests after which a measurement counts for a third as well, so that the rate of a pool that serves many requests a second
is known sooner. The error of a rate from that many is about a tenth."""
ENOUGH: Final = 4
"""Dispatched requests before a rate is given: fewer say more about themselves than about the pool."""
GRAIN: Final = 2
"""The resolution of predictions: no prediction is exact to less than the time of this many dispatches."""
FORGOTTEN_S: Final = 60.0
"""Seconds of pause after which earlier measurements are dropped: the fleet may have changed."""


class DrainRate:
    """Measures dispatched and arriving tokens per second while requests wait and a backend is there; other times do not count, because
    dispatches then say nothing of the pool's capacity.

    Arrivals are counted in the same times, without the request that begins a busy time: arrivals at a rate of their own are no more
    frequent in busy times than in others.
    """

    __slots__ = ("_arrived", "_count", "_dispatched", "_last", "_paused_at", "_seconds", "_since", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        """Tokens of dispatched requests, decayed."""
        self._seconds = 0.0
        """Busy time, decayed."""
        self._arrived = [0.0] * RANKS
        """Tokens that arrived, by rank, decayed."""
        self._dispatched = 0
        """Requests dispatched since the last reset."""
        self._count = 0.0
        """Dispatched requests, decayed."""
        self._since: float | None = None
        """The time up to which the busy time is counted; None while idle."""
        self._paused_at = 0.0
        self._last = 0.0
        """The time of the last dispatch, or of the start of the busy time."""

    def busy(self, now: float) -> None:
        """Start to count: a request waits. No effect while counting already."""
        if self._since is None:
            self._since = self._last = now
            if now - self._paused_at > FORGOTTEN_S:
                self._dispatched = 0
                self._tokens = 0.0
                self._seconds = 0.0
                self._count = 0.0
                self._arrived = [0.0] * RANKS

    def idle(self, now: float) -> None:
        """Stop to count: no request waits, or no backend is up."""
        if self._since is not None:
            self._advance(now)
            self._since = None
            self._paused_at = now

    def joined(self, rank: int, tokens: float, now: float) -> None:
        """Count a request that joined the queue."""
        if self._since is not None:
            self._advance(now)
            self._arrived[rank] += tokens

    def left(self, rank: int, tokens: float) -> None:
        """Take back the arrival of a request that left the queue unserved: no other request has to wait for it."""
        self._arrived[rank] = max(0.0, self._arrived[rank] - tokens)

    def dispatched(self, tokens: float, now: float) -> None:
        """Count a request that left the queue for a backend."""
        self._advance(now)
        self._last = now
        self._fade(1.0 - 1.0 / MANY)
        self._tokens += tokens
        self._dispatched += 1
        self._count += 1.0

    def per_second(self, now: float) -> float:
        """Tokens per second; 0 while unknown, and falling while requests wait and none is dispatched."""
        self._advance(now)
        return self._tokens / self._seconds if self._dispatched >= ENOUGH and self._seconds else 0.0

    def grain_s(self) -> float:
        """The resolution of waits in seconds: the time of `GRAIN` dispatches; 0 while unknown."""
        return GRAIN * self._seconds / self._count if self._dispatched >= ENOUGH and self._count else 0.0

    def wait_s(self, rank: int, ahead: Ahead, now: float, longest_s: float) -> float:
        """Predicted seconds until the work ahead of a request of this rank is done. At least the time since the last dispatch, which is
        all that is known at first: a stall of unknown cause is as likely to last as long again as not.

        Args:
            longest_s: the upper bound of the prediction.
        """
        pace = self.per_second(now)
        wait_s = 0.0
        if pace:
            free = pace - sum(self._arrived[:rank]) / self._seconds
            wait_s = ahead.until / pace
            if free > 0.0:
                wait_s = min(wait_s, (ahead.above + ahead.own + ahead.below) / free)
        stalled = now - self._last if self._since is not None else 0.0
        return min(max(wait_s, stalled), longest_s)

    def _advance(self, now: float) -> None:
        if self._since is None or now <= self._since:
            return
        fade = exp((self._since - now) / TAU_S)
        self._fade(fade)
        self._seconds += TAU_S * (1.0 - fade)
        self._since = now

    def _fade(self, fade: float) -> None:
        self._tokens *= fade
        self._seconds *= fade
        self._count *= fade
        self._arrived = [fade * tokens for tokens in self._arrived]


MISSED: Final = 0.5
"""The share of queued requests that may wait longer than their bound, where all requests of their rank are served."""
LEAST_MISSED: Final = 0.02
"""The share of queued requests that may wait longer than their bound, where hardly any request of the rank is served."""
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


class ForecastMargin:
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
