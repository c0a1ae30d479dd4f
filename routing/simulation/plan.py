"""How many engines meet latency objectives for a workload, and what they cost: the search behind `tidegate plan`. Pure.

One kind of engine at a time, all alike. The share of requests that meet both objectives is taken to grow with the number of engines; the
search doubles or halves from a guess and bisects, so the number it finds meets the objectives in every seed, and one engine fewer does not.
A number is simulated once per seed, at most `2 * log2(most) + 2` numbers in all. What no number could meet is found before the first run
(`idle_bound`).

    engines        ceil(least / (1 - headroom)) + standby
    USD            engines * hours * USD of an engine-hour, preemptible ones with their discount
    USD a million  USD / (prompt and answer tokens of answered requests) * 1,000,000
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Final

import msgspec

from routing.policy_instance import PolicyInstance
from routing.simulation.figures import quantile
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import Engines, FleetFile, Objective
from routing.simulation.kv_cache import PAGE_TOKENS, pages
from routing.simulation.outcomes import Outcomes, RequestEnd
from routing.simulation.turns import Dice, TraceRequest, Workload

GUESSED_BATCH: Final = 32
"""Sequences that share a decode step, for the number that the search begins with; the answer does not depend on it."""


class PlannedKind(msgspec.Struct, frozen=True):
    """One kind of engine, and everything around it that stays as it is."""

    name: str
    fleet: FleetFile
    """With one entry in `engines`, whose `count` does not matter."""
    timing: str
    """Where its speed is known from, in words."""
    gpus: int
    """GPUs of one engine."""
    usd_engine_hour: float | None = None
    launch: str = ""
    """The launch configuration, where one was named."""
    measured_tokens: int | None = None
    """The longest prompt that its speed was measured with; None where it was not measured."""

    @property
    def engine(self) -> Engines:
        """The kind itself."""
        return self.fleet.engines[0]

    def of(self, count: int) -> FleetFile:
        """The fleet with so many of them."""
        return self.fleet.model_copy(update={"engines": [self.engine.model_copy(update={"count": count})]})


class PlanTrial(msgspec.Struct, frozen=True):
    """The figures of one simulation. Times in seconds, shares from 0 to 1."""

    attained: float
    """Share of all requests that met both objectives; refused and failed ones did not."""
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    tpot_p95_s: float
    kv_mean: float
    """Share of the KV cache in use by running requests, over time and engines."""
    kv_peak: float
    """The largest share that a reading of any engine had."""
    lasted_s: float
    """From the first arrival to the last end."""
    prompt_tokens: float
    """Prompt tokens of the answered requests."""
    output_tokens: float
    """Output tokens of the answered requests."""


class PlanPoint(msgspec.Struct, frozen=True):
    """A number of engines, simulated with every seed."""

    engines: int
    mean: PlanTrial
    worst: float
    """The least share of requests that met the objectives, of all seeds."""
    best: float


class PlanExtras(msgspec.Struct, frozen=True):
    """What is added to the number that meets the objectives."""

    headroom: float = 0.0
    """Share of the engines that is left free, below 1."""
    standby: int = 0
    """Further engines that run and serve nothing."""
    spot: float = 0.0
    """Share of the serving engines on preemptible machines."""
    spot_discount: float = 0.0
    """What a preemptible machine costs less, as a share."""

    def serving(self, least: int) -> int:
        """Engines that serve."""
        return ceil(least / (1 - self.headroom) - 1e-9)

    def preemptible(self, serving: int) -> int:
        """The number of the serving engines that are on preemptible machines."""
        return int(serving * self.spot + 1e-9)


class PlanCost(msgspec.Struct, frozen=True):
    """What so many engines cost for the workload. Dollars are None where no price is known."""

    engines: int
    """Headroom and standby included."""
    preemptible: int
    gpus: int
    gpu_hours: float
    usd_hour: float | None
    usd_per_million_tokens: float | None
    """Prompt and answer tokens alike."""
    usd_per_million_output_tokens: float | None
    """The same dollars over the answers' tokens alone."""


class IdleBound(msgspec.Struct, frozen=True):
    """What an engine could do for each request at best: idle, with every block cached that any other request ever has."""

    attained: float
    """Share of requests that would meet both objectives."""
    ttft_s: float
    """The quantile of times to the first token that has to meet its objective."""
    ttft_tokens: int
    """Prompt tokens of the request with that time."""
    tpot_s: float
    """The same quantile of times per token."""
    impossible: int
    """Requests that no such engine takes: too long for its KV cache or context, or with an adapter where it has no slots."""


class KindPlan(msgspec.Struct, frozen=True):
    """The answer for one kind of engine."""

    kind: str
    launch: str
    timing: str
    gpus_each: int
    usd_engine_hour: float | None
    least: int | None
    """Engines that meet the objectives; None where no number up to the bound does."""
    why_not: str
    """Why there is no number; empty where there is one."""
    tried: list[PlanPoint]
    """Every number that was simulated, ascending."""
    cost: PlanCost | None
    """Of the least number, with what is added."""
    costs: list[PlanCost]
    """Of each number in `tried`, with what would be added to it."""

    def at(self, engines: int) -> PlanPoint | None:
        """The figures with so many engines, where they were simulated."""
        return next((point for point in self.tried if point.engines == engines), None)


class FleetPlan(msgspec.Struct, frozen=True):
    """The answers for every kind. All figures are simulated; none is a measurement of a fleet."""

    workload: str
    notes: list[str]
    requests: int
    prompt_tokens: int
    output_tokens: int
    policy: str
    seeds: int
    slo: dict[str, float]
    attain: float
    """Share of the requests that has to meet both objectives, in every seed."""
    extras: PlanExtras
    kinds: list[KindPlan]
    cheapest: str | None
    """The kind with the least dollars for a token, or without prices with the fewest GPUs."""
    simulated: bool = True


Simulate = Callable[[int], Sequence[PlanTrial]]
"""Runs one number of engines with every seed."""


def simulated(kind: PlannedKind, engines: int, workload: Workload, policy_instance: Callable[[], PolicyInstance], dice: Dice) -> PlanTrial:
    """Run one number of engines with one seed."""
    outcomes = SimulatedFleet(kind.of(engines), workload, policy_instance, dice).run()
    return trial_of(workload, kind.fleet.slo, outcomes)


def trial_of(workload: Workload, slo: Objective, outcomes: Outcomes) -> PlanTrial:
    """The figures of a run."""
    turns = workload.turns
    done = [i for i, state in enumerate(outcomes.state) if state is RequestEnd.DONE]
    ttft = {i: outcomes.first[i] - outcomes.arrived[i] for i in done}
    tpot = {i: (outcomes.ended[i] - outcomes.first[i]) / (turns[i].output_tokens - 1) for i in done if turns[i].output_tokens > 1}
    met = sum(ttft[i] <= slo.ttft_s and tpot.get(i, 0.0) <= slo.tpot_s for i in done)
    firsts = sorted(ttft.values())
    return PlanTrial(
        attained=met / max(1, len(turns)),
        ttft_p50_s=quantile(firsts, 0.5),
        ttft_p95_s=quantile(firsts, 0.95),
        ttft_p99_s=quantile(firsts, 0.99),
        tpot_p95_s=quantile(sorted(tpot.values()), 0.95),
        kv_mean=outcomes.kv_used / max(1, outcomes.kv_readings),
        kv_peak=outcomes.kv_peak,
        lasted_s=outcomes.finished_at - min(outcomes.arrived, default=0.0),
        prompt_tokens=sum(turns[i].prompt_tokens for i in done),
        output_tokens=sum(turns[i].output_tokens for i in done),
    )


def plan_kind(kind: PlannedKind, workload: Workload, attain: float, most: int, extras: PlanExtras, simulate: Simulate) -> KindPlan:
    """Find the least number of engines of one kind with which, in every seed, a share `attain` of the requests meets the objectives.

    Args:
        workload: that of the first seed, for the bound and the guess.
        most: largest number that is tried.
    """
    points: dict[int, PlanPoint] = {}

    def meets(engines: int) -> bool:
        points[engines] = _point(engines, simulate(engines))
        return points[engines].worst >= attain

    bound = idle_bound(kind, workload, attain)
    why_not, least = "", None
    if bound.attained < attain:
        why_not = hopeless(kind, bound, attain)
    else:
        least = least_number(meets, guessed(kind, workload), most)
        if least is None:
            best = points[most]
            why_not = (
                f"{most} engines, the most that are tried (--most), do not suffice: {best.worst:.1%} of the requests meet both objectives"
            )
    tried = [points[engines] for engines in sorted(points)]
    costs = [cost_of(kind, point, extras) for point in tried]
    return KindPlan(
        kind=kind.name,
        launch=kind.launch,
        timing=kind.timing,
        gpus_each=kind.gpus,
        usd_engine_hour=kind.usd_engine_hour,
        least=least,
        why_not=why_not,
        tried=tried,
        cost=None if least is None else cost_of(kind, points[least], extras),
        costs=costs,
    )


def least_number(meets: Callable[[int], bool], start: int, most: int) -> int | None:
    """The least number from 1 to `most` that meets, where all greater ones meet, too; None where `most` does not. Tries no number twice."""
    low, high = 0, min(max(1, start), most)
    if meets(high):
        while high - low > 1:
            middle = max(1, high // 2)
            if not meets(middle):
                low = middle
                break
            high = middle
    else:
        low = high
        while True:
            if low >= most:
                return None
            high = min(most, low * 2)
            if meets(high):
                break
            low = high
    while high - low > 1:
        middle = (low + high) // 2
        if meets(middle):
            high = middle
        else:
            low = middle
    return high


def cost_of(kind: PlannedKind, point: PlanPoint, extras: PlanExtras) -> PlanCost:
    """What a number of engines costs for the time that the workload lasts, with headroom, standby and preemptible machines."""
    serving = extras.serving(point.engines)
    preemptible = extras.preemptible(serving)
    engines = serving + extras.standby
    hours = point.mean.lasted_s / 3600
    price = kind.usd_engine_hour
    usd_hour = None if price is None else price * (engines - preemptible * extras.spot_discount)
    tokens = point.mean.prompt_tokens + point.mean.output_tokens
    return PlanCost(
        engines=engines,
        preemptible=preemptible,
        gpus=engines * kind.gpus,
        gpu_hours=engines * kind.gpus * hours,
        usd_hour=usd_hour,
        usd_per_million_tokens=None if usd_hour is None or not tokens else usd_hour * hours / tokens * 1e6,
        usd_per_million_output_tokens=(
            None if usd_hour is None or not point.mean.output_tokens else usd_hour * hours / point.mean.output_tokens * 1e6
        ),
    )


def cheapest(plans: Sequence[KindPlan]) -> KindPlan | None:
    """The kind that costs the least; without prices, the one with the fewest GPUs. None where no kind meets the objectives."""
    found = [(plan, plan.cost) for plan in plans if plan.cost is not None]
    priced = all(cost.usd_per_million_tokens is not None for _, cost in found)
    ordered = sorted(found, key=lambda one: (one[1].usd_per_million_tokens or 0.0) if priced else one[1].gpus)
    return ordered[0][0] if ordered else None


def idle_bound(kind: PlannedKind, workload: Workload, attain: float) -> IdleBound:
    """The bound on what any number of engines can attain."""
    engine, slo = kind.engine, kind.fleet.slo
    seen = Counter(block for turn in workload.turns for block in {*turn.chain, *turn.answer})
    firsts: list[tuple[float, int]] = []
    steps: list[float] = []
    met = impossible = 0
    for turn in workload.turns:
        ttft = idle_ttft_s(engine, turn.prompt_tokens, _ever_cached(turn, workload.block_tokens, seen))
        tpot = idle_tpot_s(engine, turn) if turn.output_tokens > 1 else 0.0
        firsts.append((ttft, turn.prompt_tokens))
        steps.append(tpot)
        if not _takes(engine, turn):
            impossible += 1
        elif ttft <= slo.ttft_s and tpot <= slo.tpot_s:
            met += 1
    place = min(len(firsts) - 1, max(0, ceil(attain * len(firsts)) - 1))
    ttft_s, tokens = sorted(firsts)[place]
    return IdleBound(met / len(firsts), ttft_s, tokens, sorted(steps)[place], impossible)


def hopeless(kind: PlannedKind, bound: IdleBound, attain: float) -> str:
    """Why no number of engines helps."""
    slo = kind.fleet.slo
    reasons = []
    if bound.ttft_s > slo.ttft_s:
        prompt = f"to the first token of the {attain:.0%} quantile's prompt, {bound.ttft_tokens:,} tokens"
        reasons.append(f"an idle engine takes {bound.ttft_s:.3g} s {prompt}")
    if bound.tpot_s > slo.tpot_s:
        reasons.append(f"an idle engine takes {bound.tpot_s * 1e3:.3g} ms for each token of the {attain:.0%} quantile's answer")
    if bound.impossible:
        reasons.append(f"{bound.impossible:,} requests exceed an engine's KV cache or context, or need an adapter and it has no slots")
    told = "; ".join(reasons) or "the requests that are too slow to begin are others than those that are too slow to go on"
    at_best = f"With everything cached that ever can be, {bound.attained:.1%} of the requests meet both objectives"
    return f"no number of engines helps: {told}. {at_best}"


def idle_ttft_s(engine: Engines, prompt: int, cached: int) -> float:
    """Seconds to the first token of a prompt alone on the engine, chunk by chunk."""
    timing, budget = engine.timing, engine.token_budget
    rest = max(1, prompt - cached)
    whole = (rest - 1) // budget
    last = rest - whole * budget
    attention = budget * cached * whole + budget * budget * (whole * (whole - 1) // 2) + last * (cached + whole * budget)
    return ((whole + 1) * timing.c0 + timing.c1 * rest + timing.c1a * attention) / 1e3


def idle_tpot_s(engine: Engines, turn: TraceRequest) -> float:
    """Mean seconds per token after the first of an answer alone on the engine."""
    timing = engine.timing
    return (timing.c0 + timing.c2 + timing.c3 * (turn.prompt_tokens + turn.output_tokens / 2)) / 1e3


def guessed(kind: PlannedKind, workload: Workload) -> int:
    """A number of engines to begin the search with: computing time over the time in which requests arrive."""
    starts = workload.starts()
    span = max(1.0, max(starts) - min(starts))
    timing = kind.engine.timing
    busy = sum(timing.c1 * turn.prompt_tokens + timing.c0 / GUESSED_BATCH * turn.output_tokens for turn in workload.turns) / 1e3
    return max(1, round(busy / span))


def _point(engines: int, trials: Sequence[PlanTrial]) -> PlanPoint:
    shares = [trial.attained for trial in trials]
    mean = PlanTrial(*(sum(getattr(trial, name) for trial in trials) / len(trials) for name in PlanTrial.__struct_fields__))
    return PlanPoint(engines, mean, min(shares), max(shares))


def _takes(engine: Engines, turn: TraceRequest) -> bool:
    held = pages(turn.prompt_tokens + turn.output_tokens + 1) <= max(1, engine.timing.kv_tokens // PAGE_TOKENS)
    return held and turn.prompt_tokens < engine.context_tokens and (not turn.lora or engine.lora_slots > 0)


def _ever_cached(turn: TraceRequest, block_tokens: int, seen: Mapping[int, int]) -> int:
    """Tokens at the prompt's beginning that another request has, too."""
    usable = turn.chain[: (turn.prompt_tokens - 1) // block_tokens]
    for place, block in enumerate(usable):
        if seen[block] < 2:
            return place * block_tokens
    return len(usable) * block_tokens
