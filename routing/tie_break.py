"""Stage C of a routing decision (tie-breaking): which of the backends with nearly the same cost to take.

For a policy in seconds, costs within `max(3 %, the policy's own margin)` of the least are equal, and among them the session's backend
wins, then the best match, then the fewest requests, then a random draw. The session's backend wins also while it costs at most
`min(0.5 s, a quarter of the promised time to the first token)` more: a margin, never a lock; and only if no backend holds more of the
prompt, since then the conversation went on elsewhere, by way of another gateway process. One request in a hundred explores: it goes to
a random backend that costs no more than that margin, so that the speed of backends which are rarely chosen is measured too.
For any other policy the least cost wins and exact ties are drawn at random. Source: routers research, 4.1.
"""

from domain.clock import Rng
from routing.load import LoadTable
from routing.policy_instance import PolicyInstance
from routing.ports import Candidates, Column, RoutingRequest, Scores


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
    choice = policy_instance.choice
    slo = request.ttft_slo_s
    sticky_s = choice.sticky_s if slo is None else min(choice.sticky_s, choice.sticky_slo_share * slo)
    if choice.explore_share and (slo is None or slo > choice.tight_slo_s) and rng.random() < choice.explore_share:
        drawn = rng.randrange(n)
        if cost[drawn] - least <= sticky_s:
            return _led_by(drawn, order), "explored"
    margin = max(choice.tie_share * abs(least), scores.margin)
    holder = candidates.sticky
    if holder >= 0 and cost[holder] - least <= max(sticky_s, margin) and _still_holds(candidates):
        return _led_by(holder, order), "" if holder == best else "session"
    if n == 1 or cost[order[1]] > least + margin:
        return order, ""
    first, why = _among_near(candidates, load_table, cost, least + margin, order, rng)
    return _led_by(first, order), why


def _led_by(first: int, order: list[int]) -> list[int]:
    """The order with this position in front."""
    if order[0] != first:
        order.remove(first)
        order.insert(0, first)
    return order


def _among_near(candidates: Candidates, load_table: LoadTable, cost: Column, bound: float, order: list[int], rng: Rng) -> tuple[int, str]:
    """The first of the candidates that cost at most `bound`, and what decided: the best match, then the fewest requests, then the dice."""
    rows = candidates.rows
    near = []
    for at in order:
        if cost[at] > bound:
            break
        near.append(at)
    matched = candidates.matched
    requests = load_table.requests
    longest = max(map(matched.__getitem__, near))
    if longest > candidates.common:
        near = [at for at in near if matched[at] == longest]
    fewest = min([requests[rows[at]] for at in near])
    near = [at for at in near if requests[rows[at]] == fewest]
    if len(near) > 1:
        return near[rng.randrange(len(near))], "dice"
    return near[0], "" if near[0] == order[0] else "match" if longest > candidates.common else "fewest requests"


def _still_holds(candidates: Candidates) -> bool:
    """Whether the session's backend holds as much of the prompt as any. If not, another gateway process sent the last turn elsewhere."""
    return candidates.matched[candidates.sticky] >= max(candidates.matched)
