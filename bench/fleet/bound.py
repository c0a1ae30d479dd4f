"""What no policy can be better than, for the requests of one run: the `bound` column.

Idle: each request alone on the fastest engine, with every prompt that came before it in that engine's cache. It bounds the mean and the
99th percentile. Pooled: all engines' prompt work as one queue of their summed speed, shortest remaining first, which is optimal for the
mean (Schrage 1968); work is only what grows with uncached tokens and the least number of steps for them, so decoding costs nothing. It
bounds the mean only, and the larger of the two is shown.
"""

import heapq
from collections.abc import Sequence

from routing.simulation.figures import pooled_hit_rate, quantile
from routing.simulation.fleet_file import Engines, FleetFile
from routing.simulation.outcomes import Outcomes, RequestEnd
from routing.simulation.turns import Workload


def idle_s(kind: Engines, prompt: int, cached: int) -> float:
    """Seconds to the first token on an idle engine of this kind."""
    timing = kind.timing
    at, total = cached, 0.0
    while at < prompt:
        chunk = min(kind.token_budget, prompt - at)
        total += timing.c0 + timing.c1 * chunk + timing.c1a * chunk * at
        at += chunk
    return total / 1e3


def pooled_mean_s(work: Sequence[tuple[float, float]], servers: float) -> float:
    """Mean seconds from arrival to completion under shortest remaining work first, on one server of this speed.

    Args:
        work: arrival and seconds of work at speed 1.
    """
    left: list[float] = []
    now = total = 0.0
    arrivals = [*sorted(work), (float("inf"), 0.0)]
    for at, size in arrivals:
        while left and now + left[0] / servers <= at:
            now += heapq.heappop(left) / servers
            total += now
        if at == float("inf"):
            break
        if left:
            left[0] -= (at - now) * servers
        now = at
        heapq.heappush(left, size)
    return (total - sum(at for at, _ in work)) / len(work) if work else 0.0


def bound(workload: Workload, fleet: FleetFile, outcomes: Outcomes, chosen: Sequence[int]) -> dict[str, float]:
    """`ttft_mean_s`, `ttft_p99_s` and `hit_rate`: no policy's figures for the chosen requests are better."""
    turns, counted = workload.turns, set(chosen)
    fastest = min(fleet.engines, key=lambda kind: kind.timing.c1)
    servers = sum(kind.count * max(fastest.timing.c1 / kind.timing.c1, fastest.timing.c0 / kind.timing.c0) for kind in fleet.engines)
    seen: set[int] = set()
    alone: list[float] = []
    work: list[tuple[float, float]] = []
    for at in sorted(range(len(turns)), key=lambda i: (outcomes.arrived[i], i)):
        turn = turns[at]
        usable = turn.chain[: (turn.prompt_tokens - 1) // workload.block_tokens]
        cached = next((i for i, block in enumerate(usable) if block not in seen), len(usable)) * workload.block_tokens
        seen.update(turn.chain)
        seen.update(turn.answer)
        if at in counted and outcomes.state[at] is RequestEnd.DONE:
            seconds = idle_s(fastest, turn.prompt_tokens, cached)
            alone.append(seconds)
            steps = -(-(turn.prompt_tokens - cached) // fastest.token_budget)
            shared = (turn.prompt_tokens - cached) / fastest.token_budget
            work.append((outcomes.arrived[at], seconds - (steps - shared) * fastest.timing.c0 / 1e3))
    alone.sort()
    mean = sum(alone) / len(alone) if alone else 0.0
    return {
        "ttft_mean_s": max(mean, pooled_mean_s(work, servers)),
        "ttft_p99_s": quantile(alone, 0.99),
        "hit_rate": pooled_hit_rate(workload, fleet, outcomes, counted),
    }
