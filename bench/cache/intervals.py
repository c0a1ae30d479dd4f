"""Intervals of a share."""

from math import sqrt
from statistics import NormalDist


def wilson(hits: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """The two-sided Wilson score interval of `hits / of`, 0 to 1 (E. B. Wilson, "Probable inference, the law of succession, and statistical
    inference", 1927); 0 and 1 where nothing was counted."""
    if of == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, square = hits / of, z * z / of
    middle, spread = share + square / 2, z * sqrt(share * (1 - share) / of + square / (4 * of))
    return max(0.0, (middle - spread) / (1 + square)), min(1.0, (middle + spread) / (1 + square))
