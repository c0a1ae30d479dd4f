"""Stage C of a routing decision (tie-breaking): which of the backends with nearly the same cost to take.

For a policy in seconds, costs within 3 % of the least (at most 20 ms), or within the policy's own margin, are equal, and among them the
session's backend wins, then the best match, then the fewest requests, then the backend that every gateway process would name for the
first block that they do not hold (`rendezvous`); without such a block a random draw. The session's backend wins also while it costs
at most `min(0.05 s, a quarter of the promised time to the first token)` more: a margin, never a lock, because what it has cached is part of
its cost already (docs/explanation/decisions/0047); and only if no backend holds more of the prompt, since then the conversation went on
elsewhere, by way of another gateway process. One request in a hundred explores: it goes to a random backend that costs at most
`min(0.5 s, that quarter)` more, so that the speed of backends which are rarely chosen is measured too.
For any other policy the least cost wins and exact ties are drawn at random. Source: routers research, 4.1.
"""

from collections.abc import Sequence
from typing import Final

from domain.clock import Rng
from routing.load import LoadTable
from routing.policy_instance import Choice, PolicyInstance
from routing.ports import Candidates, RoutingRequest, Scores

EXPLORE_S: Final = 0.5
"""Seconds that the backend of a request which explores may cost more than the best."""
_SPREAD: Final = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
"""Odd numbers of 64 bits with about as many ones as zeros; the first is 2**64 over the golden ratio."""
_MASK: Final = (1 << 64) - 1


def choose(
    request: RoutingRequest, candidates: Candidates, load_table: LoadTable, scores: Scores, policy_instance: PolicyInstance, rng: Rng
) -> tuple[list[int], str]:
    """Positions in `candidates.rows`, best first; and what decided when it was not the least cost, else an empty string."""
    cost = scores.cost
    n = len(cost)
    start = rng.randrange(n)
    order = [*range(start, n), *range(start)] if start else list(range(n))
    order.sort(key=cost.__getitem__)  # stable: equal costs stay in the order of the randomly rotated list
    best = order[0]
    least = cost[best]
    if not policy_instance.policy.in_seconds:
        bound = least + scores.margin
        if n == 1 or cost[order[1]] > bound:
            return order, ""
        ties = [at for at in order if cost[at] <= bound]
        return _led_by(ties[rng.randrange(len(ties))], order), ""
    choice: Choice = policy_instance.margins
    slo = request.ttft_slo_s
    sticky_s = choice.sticky_s
    if slo is not None and choice.sticky_slo_share * slo < sticky_s:
        sticky_s = choice.sticky_slo_share * slo
    drawn = candidates.drawn
    if drawn is None:
        drawn = rng.randrange(n) if explores(request, choice, rng) else -1
    if drawn >= 0 and cost[drawn] - least <= (EXPLORE_S if slo is None else min(EXPLORE_S, choice.sticky_slo_share * slo)):
        return _led_by(drawn, order), "explored"
    margin = margin_of(least, choice) - candidates.slack
    if margin < scores.margin:
        margin = scores.margin
    holder = candidates.sticky
    if holder >= 0 and cost[holder] - least <= max(sticky_s, margin) and _still_holds(candidates):
        return _led_by(holder, order), "" if holder == best else "session"
    if n == 1 or cost[order[1]] > least + margin:
        return order, ""
    near = [at for at in order if cost[at] <= least + margin]
    first, why = _among_near(request, candidates, load_table, near, rng)
    return _led_by(first, order), why


def explores(request: RoutingRequest, choice: Choice, rng: Rng) -> bool:
    """Whether this request goes to a random backend that costs little more, to measure it."""
    slo = request.ttft_slo_s
    return choice.explore_share > 0.0 and (slo is None or slo > choice.tight_slo_s) and rng.random() < choice.explore_share


def margin_of(least: float, choice: Choice) -> float:
    """By how many seconds costs may differ from the least that count as equal."""
    share_s = choice.tie_share * abs(least)
    return share_s if share_s < choice.tie_s else choice.tie_s


def _led_by(first: int, order: list[int]) -> list[int]:
    """The order with this position in front."""
    if order[0] != first:
        order.remove(first)
        order.insert(0, first)
    return order


def rendezvous(block: int, positions: Sequence[int], names: Sequence[int]) -> int:
    """The position with the highest hash of its name and this block: every process names the same backend, and when one leaves, only its
    blocks go to others (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998).

    Args:
        names: an int for each position that is the same in every process.
    """
    # multiplications spread evenly; the hash of the tuple (block, name) names one of four backends for 64 % of the blocks
    return max(zip(positions, names, strict=True), key=lambda one: (block ^ one[1] * _SPREAD[0]) * _SPREAD[1] & _MASK)[0]


def _among_near(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, near: list[int], rng: Rng) -> tuple[int, str]:
    """The first of these positions, and what decided: the best match, then the fewest requests, then the rendezvous of the first block
    that none of them holds, or the dice where the prompt has no further block."""
    cheapest, rows = near[0], candidates.rows
    matched = candidates.matched
    requests = load_table.requests
    longest = max(map(matched.__getitem__, near))
    if longest > candidates.common:
        near = [at for at in near if matched[at] == longest]
    fewest = min([requests[rows[at]] for at in near])
    near = [at for at in near if requests[rows[at]] == fewest]
    if len(near) > 1:
        next_block = int(longest / request.block_tokens + 0.5)
        if next_block < len(request.chain):
            return rendezvous(request.chain[next_block], near, [load_table.names[rows[at]] for at in near]), "rendezvous"
        return near[rng.randrange(len(near))], "dice"
    return near[0], "" if near[0] == cheapest else "match" if longest > candidates.common else "fewest requests"


def _still_holds(candidates: Candidates) -> bool:
    """Whether the session's backend holds as much of the prompt as any. If not, another gateway process sent the last turn elsewhere."""
    return candidates.matched[candidates.sticky] >= max(candidates.matched)
