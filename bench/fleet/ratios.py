"""The arithmetic of the report: ratios of the default to another policy over the seeds that both ran, with their confidence interval."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.fleet.cells import Cell, Finished, Line

T_975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's 97.5 % quantile for 1, 2, ... degrees of freedom."""
TOLERATED: Final = 1.03
"""A ratio up to this counts as level."""

Runs = Mapping[str, Mapping[int, Finished]]
"""By policy and seed, of one line."""


class Ratio(NamedTuple):
    """A ratio of the default to another policy, with its 95 % interval over seeds (infinite for one seed)."""

    other: str
    value: float
    low: float
    high: float
    seeds: int

    @property
    def missed(self) -> bool:
        """Whether the default is worse beyond the interval and beyond what is tolerated. One seed has no interval: the ratio decides."""
        return self.value > TOLERATED and (self.low > 1.0 or self.seeds < 2)


def by_line(found: Mapping[Cell, Finished]) -> dict[Line, dict[str, dict[int, Finished]]]:
    """Finished cells by line, policy and seed, lines in order. Raises ValueError where a line has cells of several limits."""
    lines: defaultdict[Line, dict[str, dict[int, Finished]]] = defaultdict(dict)
    limits = {cell.limit for cell in found}
    if len(limits) > 1:
        raise ValueError(f"the results hold cells of --limit {', '.join(map(str, sorted(limits)))}; report one at a time")
    for cell, one in found.items():
        lines[cell.line].setdefault(cell.policy, {})[cell.seed] = one
    return dict(sorted(lines.items()))


def ratio(runs: Runs, default: str, other: str, metric: str) -> Ratio | None:
    """Geometric mean over the common seeds of the default's figure over the other's; None where they have no seed in common.

    The interval is Student's, of the mean of the logarithms.
    """
    seeds = sorted(runs.get(default, {}).keys() & runs.get(other, {}).keys())
    pairs = [(runs[default][seed].figures[metric], runs[other][seed].figures[metric]) for seed in seeds]
    logs = [math.log(own / theirs) for own, theirs in pairs if own > 0 and theirs > 0]
    if not logs:
        return None
    mean = sum(logs) / len(logs)
    half = math.inf
    if len(logs) > 1:
        spread = math.sqrt(sum((one - mean) ** 2 for one in logs) / (len(logs) - 1))
        half = T_975[min(len(logs) - 1, len(T_975)) - 1] * spread / math.sqrt(len(logs))
    return Ratio(other, math.exp(mean), math.exp(mean - half), math.exp(mean + half) if half < 700 else math.inf, len(logs))


def against_best(runs: Runs, default: str, metric: str) -> Ratio | None:
    """The ratio to the policy to which it is largest: the best other on this line. None where no other has run."""
    found = [one for other in runs if other != default and (one := ratio(runs, default, other, metric)) is not None]
    return max(found, key=lambda one: one.value, default=None)


def against_fixed(lines: Mapping[Line, Runs], default: str, metric: str) -> list[tuple[float, str]]:
    """For each other policy that ran on every line the geometric mean of the default's ratio to it, the best policy first."""
    others = set.intersection(*[set(runs) for runs in lines.values()]) - {default} if lines else set()
    found = []
    for other in others:
        ratios = [ratio(runs, default, other, metric) for runs in lines.values()]
        if all(one is not None for one in ratios):
            found.append((geometric([one.value for one in ratios if one is not None]), other))
    return sorted(found, reverse=True)


def geometric(values: Sequence[float]) -> float:
    """Geometric mean; 1 for no values."""
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else 1.0


def mean(runs: Mapping[int, Finished], metric: str, *, of_bound: bool = False) -> float | None:
    """Mean over seeds of a figure, or of its bound; None where no seed has it."""
    values = [(one.bound if of_bound else one.figures).get(metric) for one in runs.values()]
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
