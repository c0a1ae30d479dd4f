"""Runs several policies over the same workload and seeds, and collects the results for a report."""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from routing.policy_instance import PolicyInstance
from routing.simulation.differences import Difference, Stretch, differences, stretches
from routing.simulation.figures import Figures, averaged, balance, curve, figures, intervals, pooled_hit_rate
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.outcomes import Outcomes
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
    """The results of one policy."""

    policy: str
    mean: dict[str, float]
    """Every figure, averaged over seeds."""
    interval: dict[str, tuple[float, float]]
    """95 % confidence interval of each mean, by bootstrap over seeds; empty for one seed."""
    runs: list[Figures]
    ttft_curve_s: list[float]
    """TTFT of the fastest 1/200, 2/200, ... of all requests, in the first seed; refused and failed requests are missing at the end."""
    balance: list[float]
    """Each engine's share of prefilled tokens, in the first seed."""
    against_first: dict[str, Difference] = {}
    """What figures differ by from those of the first policy, on the same requests, with 95 % intervals; empty for the first policy."""


class Result(msgspec.Struct, frozen=True):
    """A comparison of policies. All figures are simulated; none is a measurement of an engine."""

    workload: str
    notes: list[str]
    requests: int
    prompt_tokens: int
    output_tokens: int
    seeds: int
    fleet: dict[str, Any]
    pooled_hit_rate: float
    """Hit rate of one cache as large as all together, for the first policy and seed."""
    policies: list[PolicyResult]
    simulated: bool = True
    made_unix: float = 0.0

    @property
    def made(self) -> str:
        """When the comparison was made, as ISO 8601 text."""
        return dt.datetime.fromtimestamp(self.made_unix, dt.UTC).isoformat(timespec="seconds")


Progress = Callable[[str, int, int], None]
"""(policy, number of the seed, requests that have ended)"""

Spread = Callable[[Callable[[int, str], Outcomes], Sequence[tuple[int, str]]], Iterable[Outcomes]]
"""Calls the function with each pair of seed number and policy, and returns the outcomes in their order; perhaps several at a time."""


def one_by_one(run: Callable[[int, str], Outcomes], pairs: Sequence[tuple[int, str]]) -> Iterable[Outcomes]:
    """The `Spread` that runs one at a time, in this process."""
    return (run(number, policy) for number, policy in pairs)


def compare(
    make: Callable[[Dice], Workload],
    fleet: FleetFile,
    policies: Mapping[str, Callable[[], PolicyInstance]],
    seeds: Sequence[Dice],
    progress: Progress,
    spread: Spread = one_by_one,
) -> Result:
    """Run every policy with every seed; each seed's workload is made once, and is the same for all policies.

    Args:
        policies: makers of policy instances by display name; each call makes an instance with its own memory.
        spread: runs several simulations at a time, say.
    """
    workloads = [make(dice) for dice in seeds]

    def run(number: int, policy: str) -> Outcomes:
        return SimulatedFleet(fleet, workloads[number], policies[policy], seeds[number], lambda done: progress(policy, number, done)).run()

    runs: dict[str, list[Figures]] = {policy: [] for policy in policies}
    first: dict[str, tuple[list[float], list[float]]] = {}
    against: dict[str, list[Stretch]] = {policy: [] for policy in policies}
    pooled = 0.0
    base: Outcomes | None = None
    pairs = [(number, policy) for number in range(len(seeds)) for policy in policies]
    for (number, policy), outcomes in zip(pairs, spread(run, pairs), strict=True):
        workload = workloads[number]
        runs[policy].append(figures(workload, fleet, outcomes))
        if not number:
            first[policy] = curve(workload, outcomes), balance(fleet, workload, outcomes)
            if len(first) == 1:
                pooled = pooled_hit_rate(workload, fleet, outcomes)
        if policy == pairs[0][1]:
            base = outcomes
        elif base is not None:
            against[policy] += stretches(workload, base, outcomes)
    shown = workloads[0]
    rng = seeds[0]("bootstrap")
    results = [
        PolicyResult(
            policy,
            averaged(figures_of),
            dict(intervals(figures_of, rng)),
            figures_of,
            *first[policy],
            differences(against[policy], rng),
        )
        for policy, figures_of in runs.items()
    ]
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
    )


def shown(name: str, result: PolicyResult) -> str:
    """The text of one table cell: the mean, and plus or minus half its interval where that is at least 0.25 % of the mean."""
    value = result.mean[name]
    scale = 1000.0 if name.startswith("tpot") else 1.0
    share = name in ("goodput", "hit_rate", "hit_rate_predicted")
    text = f"{value:.1%}" if share else f"{value * scale:.3g}"
    between = result.interval.get(name)
    if between is None or between[1] - between[0] < 0.005 * abs(value):
        return text
    half = (between[1] - between[0]) / 2
    return f"{text} ± {half:.1%}" if share else f"{text} ± {half * scale:.2g}"
