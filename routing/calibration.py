"""Learns the speed of one backend from the latencies of requests on it: recursive least squares with forgetting, from a prior.

    seconds to the first token less i = a + b * (u + queued) + c * (u * ctx + queued ctx)
                                                       u uncached tokens of the prompt, ctx their mean context,
                                                       i the decode steps it waits for and runs in (`LoadTable.interference_s`)
    seconds of a decode step   = d + e * sequences + f * tokens in their contexts

Source: routers research, 4. Each sample is weighted by one over its predicted seconds, because long requests err by more seconds; its
error is clipped at `CUT` times the usual error, so that a stalled connection teaches nothing; each rate stays within `BOUND` times its
prior in either direction, so it is always positive. Each sample makes older ones count `FORGET` times as much; the covariance is bounded,
so that a rate on which no sample depends does not become uncertain without end. Constant time and memory per sample.
"""

from math import isfinite
from typing import Final, NamedTuple

from routing.load import LoadTable
from routing.rates import UNKNOWN_RATES, Rates

FORGET: Final = 0.99
"""Weight of older samples after one more: the last 69 samples make half of the estimate."""
CUT: Final = 3.0
"""Times the usual error at which a sample's error is clipped."""
BOUND: Final = 50.0
"""Factor by which a rate may differ from its prior."""
DOUBT: Final = 25.0
"""Initial variance of a rate's multiple of its prior, over the variance of a sample's relative error: the prior may be wrong by 100 %,
a sample by 20 %."""
LEAST_S: Final = 0.005
"""Predicted seconds below which a sample gains no more weight: below that, timers and sockets dominate."""
FIRST_SAMPLES: Final = 20
"""Samples that are learned from whatever else took their time; later ones only where most of the time is the request's own."""
MOST_INTERFERENCE: Final = 0.5
"""Share of a sample's time at most that other work may have taken."""
USUAL: Final = 0.1
"""Weight of a sample in the usual error, and the step by which the 90th percentile moves."""


class DecodeBatch(NamedTuple):
    """What one backend decodes at a moment, and the prompts of this process that it has computed until then."""

    decoding: float
    """Sequences that are generating."""
    ctx: float
    """Tokens in their contexts."""
    prefilled_tokens: int
    """Uncached prompt tokens computed there so far."""
    prefilled_ctx: int
    """The sum of the contexts that those attended to."""


NO_BATCH: Final = DecodeBatch(0.0, 0.0, 0, 0)


def batch_on(load_table: LoadTable, row: int) -> DecodeBatch:
    """The batch of the backend in this row now."""
    load = load_table.loads[row]
    return DecodeBatch(load_table.decoding[row], load_table.decoding_ctx[row], load.prefilled_tokens, load.prefilled_ctx)


def decode_sample(
    load_table: LoadTable, row: int, at_first: DecodeBatch, steps: float, seconds: float
) -> tuple[float, float, float, float]:
    """What an answer of so many decode steps says of a step when it ends, for `Calibration.step`: sequences, tokens in their contexts,
    seconds, and those of them that went into prompts of this process.

    Args:
        at_first: the backend's batch at the first token.
    """
    at_last = batch_on(load_table, row)
    tokens, ctx = at_last.prefilled_tokens - at_first.prefilled_tokens, at_last.prefilled_ctx - at_first.prefilled_ctx
    prompts_s = load_table.prefill_s_token[row] * tokens + load_table.prefill_s_token_ctx[row] * ctx
    return (at_first.decoding + at_last.decoding) / 2, (at_first.ctx + at_last.ctx) / 2, seconds / steps, prompts_s / steps


class Fit:
    """y = sum of rate * x, three rates, each as a multiple of its prior so that all are of one size."""

    __slots__ = ("_doubt", "_error", "_multiples", "_prior", "p90_s", "samples")

    def __init__(self, prior: tuple[float, float, float]) -> None:
        self._prior = prior
        self._multiples = [1.0, 1.0, 1.0]
        self._doubt = [[DOUBT if row == column else 0.0 for column in range(3)] for row in range(3)]
        self._error = 0.5
        self.p90_s = 0.0
        """90th percentile of the recent prediction errors, seconds."""
        self.samples = 0

    @property
    def rates(self) -> tuple[float, float, float]:
        """The current estimates."""
        first, second, third = (rate * multiple for rate, multiple in zip(self._prior, self._multiples, strict=True))
        return first, second, third

    def learn(self, x: tuple[float, float, float], y: float) -> None:
        """Learn from one sample; a sample with a negative or infinite value is ignored."""
        if not all(isfinite(value) and value >= 0.0 for value in (*x, y)):
            return
        z = [rate * value for rate, value in zip(self._prior, x, strict=True)]
        predicted = sum(multiple * value for multiple, value in zip(self._multiples, z, strict=True))
        self._note_error(abs(y - predicted))
        weight = 1.0 / max(predicted, LEAST_S)
        z = [value * weight for value in z]
        error = (y - predicted) * weight
        most = CUT * self._error
        error = max(-most, min(most, error))
        self._error += USUAL * (abs(error) - self._error)
        self._error = max(self._error, 0.02)
        doubt = self._doubt
        doubt_z = [sum(doubt[row][column] * z[column] for column in range(3)) for row in range(3)]
        scale = FORGET + sum(value * spread for value, spread in zip(z, doubt_z, strict=True))
        for row in range(3):
            moved = self._multiples[row] + doubt_z[row] / scale * error
            self._multiples[row] = max(1.0 / BOUND, min(BOUND, moved))
        self._doubt = [[(doubt[row][column] - doubt_z[row] * doubt_z[column] / scale) / FORGET for column in range(3)] for row in range(3)]
        grown = max(self._doubt[row][row] for row in range(3)) / DOUBT
        if grown > 1.0:
            self._doubt = [[entry / grown for entry in row] for row in self._doubt]

    def _note_error(self, error_s: float) -> None:
        self.samples += 1
        if not self.p90_s:
            self.p90_s = error_s
        elif error_s > self.p90_s:
            self.p90_s *= 1.0 + 0.9 * USUAL
        else:
            self.p90_s *= 1.0 - 0.1 * USUAL


class Calibration:
    """The learned rates of one backend."""

    __slots__ = ("_first", "_step")

    def __init__(self, prior: Rates = UNKNOWN_RATES) -> None:
        self._first = Fit(prior[:3])
        self._step = Fit(prior[3:])

    def first_token(
        self, uncached: float, ctx: float, queued: float, ttft_s: float, queued_ctx: float = 0.0, interference_s: float = 0.0
    ) -> None:
        """Learn from a request whose first token came.

        Args:
            uncached: tokens of its prompt that were computed.
            ctx: mean context of the uncached tokens: half of the prompt's tokens and the cached ones together.
            queued: uncached tokens that were queued on the backend when the request was sent.
            ttft_s: seconds from sending the request until its first token.
            queued_ctx: the sum of the queued tokens' contexts (`LoadTable.queue_ctx`).
            interference_s: seconds of `ttft_s` that decode steps took (`LoadTable.interference_s`).
        """
        if self._first.samples >= FIRST_SAMPLES and (queued > uncached or interference_s > MOST_INTERFERENCE * ttft_s):
            return  # what waited there is an estimate: it had begun to be computed, or others' was not seen
        seconds = max(0.0, ttft_s - interference_s) if ttft_s >= 0.0 else ttft_s
        self._first.learn((1.0, uncached + queued, uncached * ctx + queued_ctx), seconds)

    def step(self, sequences: float, ctx_tokens: float, step_s: float, prompts_s: float = 0.0) -> None:
        """Learn from a mean decode step of `step_s` seconds with so many sequences and so many tokens in their contexts.

        Args:
            prompts_s: seconds of it that prompts took which were computed in the same steps.
        """
        if self._step.samples >= FIRST_SAMPLES and prompts_s > MOST_INTERFERENCE * step_s:
            return
        self._step.learn((1.0, sequences, ctx_tokens), max(0.0, step_s - prompts_s) if step_s >= 0.0 else step_s)

    @property
    def rates(self) -> Rates:
        """The current estimates; every rate is positive."""
        return Rates(*self._first.rates, *self._step.rates)

    @property
    def samples(self) -> int:
        """Number of first tokens learned from."""
        return self._first.samples

    @property
    def residual_p90_s(self) -> float:
        """90th percentile of the error of predicted times to the first token, seconds."""
        return self._first.p90_s

    @property
    def residual_s(self) -> float:
        """The 90th percentile of the error as a standard deviation, assuming normal errors: the form that `LoadTable.set_rates` takes."""
        return self._first.p90_s / 1.645
