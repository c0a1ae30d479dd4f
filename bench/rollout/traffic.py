"""Traffic of a canary and a baseline as a rollout sees it: sums per interval.

Nothing here is friendly to the test: single requests have heavy tails, load of the day moves both arms, each arm has noise of its own
that lasts minutes (one engine, one conversation), and errors come in bursts.

Sums of many requests' logarithms are differences of prefix sums over shuffled pools of single requests, so that an interval costs as
much for a hundred requests as for one.
"""

from itertools import accumulate
from math import exp, log, pi, sin, sqrt
from random import Random

import msgspec

from policies.rollout.samples import ArmSums, Interval, Tally

POOL = 200_000
DAY = 8640  # intervals


class Version(msgspec.Struct, frozen=True):
    """What a canary's values are times the baseline's."""

    name: str
    times: dict[str, float] = {}
    """Of ratios."""
    shares: dict[str, float] = {}
    """Added to shares."""
    strays: float = 1.0
    """Times the noise that one arm has alone, of both arms."""
    lasts: float = 1.0
    """Times as long as it otherwise does."""


class Noise(msgspec.Struct, frozen=True):
    """One ratio: logarithms of single requests, and of what lasts."""

    typical: float
    single: float
    """Standard deviation from request to request, tails of Student's t with 3 degrees of freedom."""
    shared: float
    """Of what moves both arms, over minutes."""
    own: float
    """Of what moves one arm, over minutes."""


RATIOS = {
    "ttft": Noise(0.0004, 0.8, 0.4, 0.15),
    "itl": Noise(0.020, 0.35, 0.2, 0.06),
    "output_tokens": Noise(200, 1.0, 0.05, 0.10),
    "token_cost": Noise(600, 0.3, 0.05, 0.03),
}
SHARES = {"errors": 0.01, "broken_streams": 0.003, "refusals": 0.03}
OWN_S, SHARED_S = 60.0, 300.0  # how long noise lasts
OWN_OF_SHARES = 0.25  # as `Noise.own`, of errors
BURSTS = 0.5  # variance of the factor that an arm's chance of an error has in one interval


def pools(rng: Random) -> dict[str, list[float]]:
    """Prefix sums of single requests' logarithms, by metric."""
    made = {}
    for name, noise in RATIOS.items():
        # Student's t with 3 degrees has variance 3
        singles = [noise.single / sqrt(3) * rng.gauss(0, 1) / sqrt(rng.gammavariate(1.5, 2) / 3) for _ in range(POOL)]
        mean = sum(singles) / POOL
        made[name] = list(accumulate((value - mean for value in singles), initial=0.0))
    return made


class Traffic:
    """One rollout's.

    Args:
        per_s: requests per second, both arms together, on average over the day.
        engines: of the baseline, whose own noise averages out; the canary has one.
    """

    def __init__(
        self, rng: Random, pool: dict[str, list[float]], version: Version, per_s: float = 20.0, interval_s: float = 10.0, engines: int = 4
    ) -> None:
        self.rng, self.pool, self.version = rng, pool, version
        self.mean = per_s * interval_s
        self.engines = engines
        self.keep_own, self.keep_shared = exp(-interval_s / OWN_S / version.lasts), exp(-interval_s / SHARED_S)
        self.start = rng.randrange(DAY)
        self.shared = {name: rng.gauss(0, 1) for name in RATIOS}
        self.own = [{name: rng.gauss(0, 1) for name in (*RATIOS, *SHARES)} for _ in range(2)]
        self.levels = [{name: log(noise.typical * times.get(name, 1.0)) for name, noise in RATIOS.items()} for times in (version.times, {})]

    def interval(self, index: int, share: float) -> Interval:
        rng = self.rng
        day = sin(2 * pi * (self.start + index) / DAY)
        both = self.mean * (1 + 0.6 * day)
        lasting, fresh = self.keep_shared, sqrt(1 - self.keep_shared**2)
        for name in RATIOS:
            self.shared[name] = lasting * self.shared[name] + fresh * rng.gauss(0, 1)
        busy = exp(0.5 * day)  # errors and latencies with the load of the day
        canary = self._arm(0, poisson(rng, both * share), busy, day, 1)
        return Interval(index, canary, self._arm(1, poisson(rng, both * (1 - share)), busy, day, self.engines))

    def _arm(self, arm: int, n: int, busy: float, day: float, engines: int) -> ArmSums:
        rng, own = self.rng, self.own[arm]
        tallies, strays = {}, self.version.strays / sqrt(engines)
        lasting, fresh = self.keep_own, sqrt(1 - self.keep_own**2)
        burst = rng.gammavariate(1 / BURSTS, BURSTS)
        for name, chance in SHARES.items():
            added = 0.0 if arm else self.version.shares.get(name, 0.0)
            # refusals come neither in bursts nor with the load
            own[name] = lasting * own[name] + fresh * rng.gauss(0, 1)
            sick = exp(OWN_OF_SHARES * strays * own[name])
            rate = chance + added if name == "refusals" else (chance * busy * sick + added) * burst
            tallies[name] = Tally(n, min(n, poisson(rng, n * rate)))
        answered = n - int(tallies["errors"].total)
        for name, noise in RATIOS.items():
            own[name] = lasting * own[name] + fresh * rng.gauss(0, 1)
            if answered:
                at = rng.randrange(POOL - answered)
                load = self.shared[name] + (day if name in ("ttft", "itl") else 0.0)
                level = noise.own * strays * own[name] + noise.shared * load
                prefix = self.pool[name]
                tallies[name] = Tally(answered, prefix[at + answered] - prefix[at] + answered * (level + self.levels[arm][name]))
        return ArmSums(n, tallies)


def poisson(rng: Random, mean: float) -> int:
    """A count; by the normal law where that is as good."""
    if mean > 50:
        return max(0, round(rng.gauss(mean, sqrt(mean))))
    left, count = exp(-mean), 0
    product = rng.random()
    while product > left:
        count += 1
        product *= rng.random()
    return count
