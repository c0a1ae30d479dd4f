"""Learns how fast one backend is from what requests took on it: recursive least squares with forgetting, from a prior.

    seconds to the first token = a + b * (u + queued) + c * (u * ctx + queued ctx)    u uncached tokens of the prompt, ctx their mean
    seconds of a decode step   = d + e * sequences + f * tokens in their contexts

Source: routers research, 4. Each sample weighs by what it was predicted to take, because long requests err by more seconds; its
error is cut at `CUT` times the usual one, so that a stalled connection teaches nothing; each rate stays within `BOUND` times its prior
in either direction, so never at zero or below. Old samples fade by `FORGET` each; what is not excited does not grow uncertain without
end. Constant in time and memory per sample.
"""

from math import isfinite
from typing import Final

from routing.rates import UNKNOWN, Rates

FORGET: Final = 0.99
"""Half of what is known is of the last 69 samples."""
CUT: Final = 3.0
BOUND: Final = 50.0
DOUBT: Final = 25.0
"""Variance of a rate's multiple of its prior, over that of a sample's relative error: a prior that is wrong by its own size against
samples that are wrong by a fifth."""
LEAST_S: Final = 0.005
"""Samples weigh no more than one that takes this long; below are timers and sockets."""
USUAL: Final = 0.1
"""Weight of a sample in the usual error, and the step of the 90th percentile."""


class Fit:
    """y = sum of rate * x, three rates, each as a multiple of its prior so that all are of one size."""

    __slots__ = ("_doubt", "_error", "_multiples", "_prior", "p90_s", "samples")

    def __init__(self, prior: tuple[float, float, float]) -> None:
        self._prior = prior
        self._multiples = [1.0, 1.0, 1.0]
        self._doubt = [[DOUBT if row == column else 0.0 for column in range(3)] for row in range(3)]
        self._error = 0.5
        self.p90_s = 0.0
        """What 9 of 10 samples lately were wrong by at most, in seconds."""
        self.samples = 0

    @property
    def rates(self) -> tuple[float, float, float]:
        """What is believed now."""
        one, two, three = (rate * multiple for rate, multiple in zip(self._prior, self._multiples, strict=True))
        return one, two, three

    def learn(self, x: tuple[float, float, float], y: float) -> None:
        """Take one sample; one that cannot be is passed over."""
        if not all(isfinite(one) and one >= 0.0 for one in (*x, y)):
            return
        z = [rate * one for rate, one in zip(self._prior, x, strict=True)]
        predicted = sum(multiple * one for multiple, one in zip(self._multiples, z, strict=True))
        self._note_error(abs(y - predicted))
        weight = 1.0 / max(predicted, LEAST_S)
        z = [one * weight for one in z]
        error = (y - predicted) * weight
        most = CUT * self._error
        error = max(-most, min(most, error))
        self._error += USUAL * (abs(error) - self._error)
        self._error = max(self._error, 0.02)
        doubt = self._doubt
        seen = [sum(doubt[row][column] * z[column] for column in range(3)) for row in range(3)]
        scale = FORGET + sum(one * other for one, other in zip(z, seen, strict=True))
        for row in range(3):
            moved = self._multiples[row] + seen[row] / scale * error
            self._multiples[row] = max(1.0 / BOUND, min(BOUND, moved))
        self._doubt = [[(doubt[row][column] - seen[row] * seen[column] / scale) / FORGET for column in range(3)] for row in range(3)]
        grown = max(self._doubt[row][row] for row in range(3)) / DOUBT
        if grown > 1.0:
            self._doubt = [[one / grown for one in row] for row in self._doubt]

    def _note_error(self, error_s: float) -> None:
        self.samples += 1
        if not self.p90_s:
            self.p90_s = error_s
        elif error_s > self.p90_s:
            self.p90_s *= 1.0 + 0.9 * USUAL
        else:
            self.p90_s *= 1.0 - 0.1 * USUAL


class Calibration:
    """One backend's rates as they are learned."""

    __slots__ = ("_first", "_step")

    def __init__(self, prior: Rates = UNKNOWN) -> None:
        self._first = Fit(prior[:3])
        self._step = Fit(prior[3:])

    def first_token(self, uncached: float, ctx: float, queued: float, ttft_s: float, queued_ctx: float = 0.0) -> None:
        """A request's first token came.

        Args:
            uncached: tokens of its prompt that were computed.
            ctx: their mean context: half of the prompt's tokens and the cached ones together.
            queued: uncached tokens that were before it when it was sent.
            ttft_s: seconds from sending it until the token.
            queued_ctx: the sum over the queued ones of their contexts (`Board.queue_ctx`).
        """
        self._first.learn((1.0, uncached + queued, uncached * ctx + queued_ctx), ttft_s)

    def step(self, sequences: float, ctx_tokens: float, step_s: float) -> None:
        """Tokens came, one each `step_s` seconds, while so many sequences with so many tokens of context were decoded."""
        self._step.learn((1.0, sequences, ctx_tokens), step_s)

    @property
    def rates(self) -> Rates:
        """What is believed now; every rate is positive."""
        return Rates(*self._first.rates, *self._step.rates)

    @property
    def samples(self) -> int:
        """First tokens learned from."""
        return self._first.samples

    @property
    def residual_p90_s(self) -> float:
        """Seconds by which 9 of 10 predicted first tokens were wrong at most."""
        return self._first.p90_s

    @property
    def residual_s(self) -> float:
        """The same as a standard deviation, were errors normal: what `Board.set_rates` takes."""
        return self._first.p90_s / 1.645
