"""Random draws by the distributions that fit production traces, from a generator of numbers in [0, 1)."""

from collections.abc import Sequence
from math import cos, exp, log, pi, sqrt
from typing import Final

from domain.clock import Rng

QUANTILES: Final = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
"""Quantiles in ServeGen's vectors; mean and maximum follow them."""


def exponential(rng: Rng, mean: float) -> float:
    """An exponential draw: a gap of a Poisson process."""
    return -mean * log(1.0 - rng.random())


def normal(rng: Rng) -> float:
    """A standard normal draw, by Box and Muller."""
    return sqrt(-2.0 * log(1.0 - rng.random())) * cos(2.0 * pi * rng.random())


def lognormal(rng: Rng, median: float, sigma: float) -> float:
    """A lognormal draw, for lengths of prompts and answers."""
    return median * exp(sigma * normal(rng))


def weibull(rng: Rng, shape: float, scale: float) -> float:
    """A Weibull draw, by inversion."""
    return float(scale * (-log(1.0 - rng.random())) ** (1.0 / shape))


def gamma_draw(rng: Rng, shape: float, scale: float) -> float:
    """A gamma draw by Marsaglia and Tsang (2000), with their boost below shape 1."""
    if shape < 1.0:
        return float(gamma_draw(rng, shape + 1.0, scale) * (1.0 - rng.random()) ** (1.0 / shape))
    d = shape - 1.0 / 3.0
    c = 1.0 / sqrt(9.0 * d)
    while True:
        x = normal(rng)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and log(1.0 - rng.random()) < 0.5 * x * x + d - d * v + d * log(v):
            return d * v * scale


def from_quantiles(rng: Rng, vector: Sequence[float]) -> float:
    """A draw by linear interpolation between the quantiles; the last element of `vector` is the maximum."""
    u = rng.random()
    low = vector[0]
    low_at = 0.0
    for at, value in zip(QUANTILES, vector, strict=False):
        if u <= at:
            return low + (value - low) * ((u - low_at) / (at - low_at))
        low = value
        low_at = at
    return low + (vector[-1] - low) * ((u - low_at) / (1.0 - low_at))


def zipf(rng: Rng, cumulated: Sequence[float]) -> int:
    """A rank from cumulated weights (see `zipf_weights`)."""
    u = rng.random() * cumulated[-1]
    low = 0
    high = len(cumulated) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cumulated[middle] > u else (middle + 1, high)
    return low


def zipf_weights(count: int, exponent: float = 1.0) -> list[float]:
    """Cumulated weights 1/rank^exponent."""
    total = 0.0
    out = []
    for rank in range(1, count + 1):
        total += rank**-exponent
        out.append(total)
    return out
