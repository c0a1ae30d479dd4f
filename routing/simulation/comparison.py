"""Several policies over the same workload and seeds, and what they came to, ready to be written."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from routing.choosing import Choosing
from routing.simulation.figures import Figures, averaged, balance, curve, figures, intervals, pooled_hit_rate
from routing.simulation.fleet import Fleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.turns import Dice, Workload

SHOWN: Final[Mapping[str, str]] = {
    "ttft_mean_s": "TTFT mean s",
    "ttft_p50_s": "TTFT p50",
    "ttft_p90_s": "TTFT p90",
    "ttft_p99_s": "TTFT p99",
    "tpot_p50_s": "TPOT p50 ms",
    "tpot_p90_s": "TPOT p90",
    "tpot_p99_s": "TPOT p99",
    "e2e_p50_s": "E2E p50 s",
    "e2e_p90_s": "E2E p90",
    "e2e_p99_s": "E2E p99",
    "goodput": "goodput",
    "hit_rate": "hit rate",
    "hit_rate_predicted": "predicted",
    "hotspot": "hotspot",
    "jain": "Jain",
}
"""Columns of tables; all figures are in the JSON."""


class PolicyResult(msgspec.Struct, frozen=True):
    """One policy."""

    policy: str
    mean: dict[str, float]
    """Every figure, averaged over seeds."""
    interval: dict[str, tuple[float, float]]
    """95 % of that by bootstrap over seeds; empty for one seed."""
    runs: list[Figures]
    ttft_curve_s: list[float]
    """Of the first seed: TTFT of the 1st, 2nd, ... 200th part of all requests, refused and failed ones missing at the end."""
    balance: list[float]
    """Of the first seed: each engine's share of prefilled tokens."""


class Result(msgspec.Struct, frozen=True):
    """A comparison. Simulated: no figure of it is a measurement of an engine."""

    workload: str
    notes: list[str]
    requests: int
    prompt_tokens: int
    output_tokens: int
    seeds: int
    fleet: dict[str, Any]
    pooled_hit_rate: float
    """Of the first policy and seed: what one cache as large as all together would have had."""
    policies: list[PolicyResult]
    simulated: bool = True
    made_unix: float = 0.0

    @property
    def made(self) -> str:
        """When, as text."""
        return dt.datetime.fromtimestamp(self.made_unix, dt.UTC).isoformat(timespec="seconds")


Progress = Callable[[str, int, int], None]
"""(policy, seed, requests that are over)"""


def compare(
    make: Callable[[Dice], Workload],
    fleet: FleetFile,
    policies: Mapping[str, Callable[[], Choosing]],
    seeds: Sequence[Dice],
    progress: Progress,
    made_unix: float = 0.0,
) -> Result:
    """Run every policy with every seed; each seed's workload is made once and the same for all policies.

    Args:
        policies: by the names they are shown under; each call makes one with a memory of its own.
    """
    runs: dict[str, list[Figures]] = {policy: [] for policy in policies}
    first: dict[str, tuple[list[float], list[float]]] = {}
    pooled = 0.0
    shown = Workload("", [])
    for number, dice in enumerate(seeds):
        workload = make(dice)
        for policy, choosing in policies.items():
            outcomes = Fleet(fleet, workload, choosing, dice, lambda done, p=policy, n=number: progress(p, n, done)).run()  # type: ignore[misc]  # mypy knows no defaults of lambdas
            runs[policy].append(figures(workload, fleet, outcomes))
            if not number:
                first[policy] = curve(workload, outcomes), balance(fleet, workload, outcomes)
                if len(first) == 1:
                    pooled = pooled_hit_rate(workload, fleet, outcomes)
                    shown = workload
    rng = seeds[0]("bootstrap")
    results = [PolicyResult(policy, averaged(of), dict(intervals(of, rng)), of, *first[policy]) for policy, of in runs.items()]
    return Result(
        workload=shown.name,
        notes=shown.notes,
        requests=len(shown.turns),
        prompt_tokens=sum(turn.prompt_tokens for turn in shown.turns),
        output_tokens=sum(turn.output_tokens for turn in shown.turns),
        seeds=len(seeds),
        fleet=fleet.model_dump(),
        pooled_hit_rate=pooled,
        policies=results,
        made_unix=made_unix,
    )


def shown(name: str, result: PolicyResult) -> str:
    """One cell: the mean, and plus or minus half its interval where it says something."""
    value = result.mean[name]
    scale = 1000.0 if name.startswith("tpot") else 1.0
    share = name in ("goodput", "hit_rate", "hit_rate_predicted")
    text = f"{value:.1%}" if share else f"{value * scale:.3g}"
    between = result.interval.get(name)
    if between is None or between[1] - between[0] < 0.005 * abs(value):
        return text
    half = (between[1] - between[0]) / 2
    return f"{text} ± {half:.1%}" if share else f"{text} ± {half * scale:.2g}"
