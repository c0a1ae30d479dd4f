"""The figures of a run: latencies, goodput, hit rates, balance and fairness, one number each.

A request that was refused or failed has no latency; in goodput it counts as not good.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from domain.clock import Rng
from routing.simulation.fleet_file import FleetFile
from routing.simulation.kv_cache import PAGE_TOKENS, SimulatedKvCache
from routing.simulation.outcomes import Outcomes, RequestEnd
from routing.simulation.turns import Workload

RESAMPLES: Final = 1000
"""Bootstrap resamples for an interval."""
CURVE_POINTS: Final = 200
"""Points of a TTFT curve."""


class Figures(msgspec.Struct, frozen=True):
    """The figures of one run. Times in seconds, shares from 0 to 1."""

    requests: int
    refused: int
    failed: int
    retries: int
    preemptions: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    tpot_p99_s: float
    e2e_p50_s: float
    e2e_p90_s: float
    e2e_p99_s: float
    output_tokens_per_s: float
    goodput: float
    """Share of all requests that met both objectives."""
    hit_rate: float
    """Prompt tokens that engines found in their caches, over all prompt tokens of completed requests."""
    hit_rate_predicted: float
    """The hit rate that the prefix index predicted."""
    hotspot: float
    """Engines times the largest share of prefilled tokens: 1 is even, the number of engines is all on one."""
    jain: float
    """Jain's index over tenants of the share of their requests that met the objectives: 1 is equal."""


def figures(workload: Workload, fleet: FleetFile, outcomes: Outcomes) -> Figures:
    """Compute the figures of one run."""
    turns = workload.turns
    state = outcomes.state
    done = [i for i in range(len(turns)) if state[i] is RequestEnd.DONE]
    ttft = sorted(outcomes.first[i] - outcomes.arrived[i] for i in done)
    e2e = sorted(outcomes.ended[i] - outcomes.arrived[i] for i in done)
    tpot = sorted(_tpot(outcomes, i, turns[i].output_tokens) for i in done if turns[i].output_tokens > 1)
    engines = sum(kind.count for kind in fleet.engines)
    work = [0.0] * engines
    for i in done:
        work[outcomes.engine[i]] += turns[i].prompt_tokens - outcomes.cached[i]
    prompt = sum(turns[i].prompt_tokens for i in done) or 1
    met = _met(workload, fleet, outcomes, done)
    lasted = (outcomes.finished_at - min((outcomes.arrived[i] for i in done), default=0.0)) or 1.0
    return Figures(
        requests=len(turns),
        refused=sum(s is RequestEnd.REFUSED for s in state),
        failed=sum(s is RequestEnd.FAILED for s in state),
        retries=outcomes.retries,
        preemptions=outcomes.preemptions,
        ttft_mean_s=_mean(ttft),
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p90_s=quantile(ttft, 0.9),
        ttft_p99_s=quantile(ttft, 0.99),
        tpot_p50_s=quantile(tpot, 0.5),
        tpot_p90_s=quantile(tpot, 0.9),
        tpot_p99_s=quantile(tpot, 0.99),
        e2e_p50_s=quantile(e2e, 0.5),
        e2e_p90_s=quantile(e2e, 0.9),
        e2e_p99_s=quantile(e2e, 0.99),
        output_tokens_per_s=sum(turns[i].output_tokens for i in done) / lasted,
        goodput=sum(met) / max(1, len(turns)),
        hit_rate=sum(outcomes.cached[i] for i in done) / prompt,
        hit_rate_predicted=sum(outcomes.predicted[i] for i in done) / prompt,
        hotspot=engines * max(work) / (sum(work) or 1.0),
        jain=_jain(workload, met),
    )


def _tpot(outcomes: Outcomes, i: int, output: int) -> float:
    return (outcomes.ended[i] - outcomes.first[i]) / (output - 1)


def _met(workload: Workload, fleet: FleetFile, outcomes: Outcomes, done: Sequence[int]) -> list[bool]:
    met = [False] * len(workload.turns)
    slo = fleet.slo
    for i in done:
        output = workload.turns[i].output_tokens
        soon = outcomes.first[i] - outcomes.arrived[i] <= slo.ttft_s
        met[i] = soon and (output < 2 or _tpot(outcomes, i, output) <= slo.tpot_s)
    return met


def _jain(workload: Workload, met: Sequence[bool]) -> float:
    by_tenant: dict[str, list[bool]] = defaultdict(list)
    for turn, good in zip(workload.turns, met, strict=True):
        by_tenant[turn.tenant].append(good)
    shares = [sum(goods) / len(goods) for goods in by_tenant.values()]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of sorted values: one of the values, without interpolation. 0 for an empty sequence."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def interval(values: Sequence[float], rng: Rng) -> tuple[float, float] | None:
    """95 % confidence interval of the mean, by bootstrap over the values of all seeds; None for a single value."""
    if len(values) < 2:
        return None
    n = len(values)
    means = sorted(sum(values[rng.randrange(n)] for _ in range(n)) / n for _ in range(RESAMPLES))
    return quantile(means, 0.025), quantile(means, 0.975)


def pooled_hit_rate(workload: Workload, fleet: FleetFile, outcomes: Outcomes, counted: Collection[int] | None = None) -> float:
    """Hit rate of one cache as large as all engines' together, with every prompt cached on arrival: an upper bound for routing.

    Args:
        counted: positions of the turns that are counted; the others only fill the cache. None counts all.
    """
    turns = workload.turns
    order = sorted((i for i in range(len(turns)) if outcomes.state[i] is RequestEnd.DONE), key=lambda i: (outcomes.arrived[i], i))
    total = sum(kind.count * kind.timing.kv_tokens for kind in fleet.engines)
    cache = SimulatedKvCache(total // PAGE_TOKENS, workload.block_tokens // PAGE_TOKENS)
    hit = 0
    for i in order:
        turn = turns[i]
        usable = turn.chain[: (turn.prompt_tokens - 1) // workload.block_tokens]
        # an answer is there before the prompt that contains it
        whole = [*turn.chain, *turn.answer] if turn.answer else usable
        needed = len(whole) * cache.span
        reused = cache.admit(usable, needed)
        if reused >= 0:
            if counted is None or i in counted:
                hit += reused * workload.block_tokens
            cache.release(whole, cache.publish(whole, reused), needed)
    return hit / (sum(turns[i].prompt_tokens for i in order if counted is None or i in counted) or 1)


def curve(workload: Workload, outcomes: Outcomes) -> list[float]:
    """TTFT in seconds of the fastest 1/200, 2/200, ... of all requests, for a plot; requests without one are missing at the end."""
    ttft = sorted(outcomes.first[i] - outcomes.arrived[i] for i, s in enumerate(outcomes.state) if s is RequestEnd.DONE)
    places = [at * len(workload.turns) // CURVE_POINTS for at in range(CURVE_POINTS)]
    return [ttft[place] for place in places if place < len(ttft)]


def balance(fleet: FleetFile, workload: Workload, outcomes: Outcomes) -> list[float]:
    """Each engine's share of the tokens that were prefilled."""
    engines = sum(kind.count for kind in fleet.engines)
    work = [0.0] * engines
    for i, s in enumerate(outcomes.state):
        if s is RequestEnd.DONE:
            work[outcomes.engine[i]] += workload.turns[i].prompt_tokens - outcomes.cached[i]
    return [tokens / (sum(work) or 1.0) for tokens in work]


def averaged(runs: Sequence[Figures]) -> dict[str, float]:
    """Mean of every figure over the runs, by name."""
    return {name: _mean([getattr(run, name) for run in runs]) for name in Figures.__struct_fields__}


def intervals(runs: Sequence[Figures], rng: Rng) -> Mapping[str, tuple[float, float]]:
    """Interval of every figure over the runs, by name; empty for a single run."""
    by_name = {name: interval([getattr(run, name) for run in runs], rng) for name in Figures.__struct_fields__}
    return {name: bounds for name, bounds in by_name.items() if bounds is not None}
