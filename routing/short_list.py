"""The backends of a large pool that a decision scores: those for which something special speaks, and the front of the load order.

Scoring everybody costs as much as the pool is large. The cost of a backend that nothing special is known of rises with its load, so a
decision scores the holders of the longest beginnings of its prompt, those that have its adapter, its session's backend, and a few with the
least load; `Policy.beyond` bounds what all others cost. When none of them can be the best by more than the tie margin, the decision stands
(docs/explanation/decisions/0015); otherwise more are scored, and in the end everybody.

Gateways that share engines see the same loads, so the few are drawn among those whose load is nearly the least.
"""

from bisect import bisect_right
from collections.abc import Mapping
from heapq import nlargest
from math import inf
from operator import itemgetter
from typing import Final, NamedTuple

from domain.clock import Rng
from routing.eligible import candidates_of, eligible
from routing.fleet import Backend, Pool
from routing.load import LoadTable
from routing.load_order import LoadOrder, order_of
from routing.policy_instance import PolicyInstance
from routing.ports import UNMATCHED, Candidates, Circumstances, Held, RoutingRequest, Scores
from routing.tie_break import explores, margin_of, rendezvous

SCORED_ALL: Final = 8
"""Backends of a pool up to which everybody is scored: leaving some out costs as much as scoring them."""
FEW: Final = 4
"""Backends scored for their load, and the least that a decision has for a second try."""
MOST_HOLDERS: Final = 8
"""Backends scored because they hold more of the prompt than the others."""
MOST_THERE: Final = 32
"""Backends scored because they have the adapter; where more have it, everybody is scored."""
MORE: Final = 4
"""How many times as many are scored when the first ones do not settle it."""


class Scored(NamedTuple):
    """Eligible backends with their scores, all of a pool or its short list."""

    backends: tuple[Backend, ...]
    out: list[Backend]
    """Excluded ones, each with the reason."""
    candidates: Candidates
    scores: Scores
    others: int = 0
    """Backends that were left out."""


def short_list(
    request: RoutingRequest,
    pool: Pool,
    load_table: LoadTable,
    policy_instance: PolicyInstance,
    circumstances: Circumstances,
    rng: Rng,
) -> Scored | None:
    """The backends among which the best one is, scored; None where everybody has to be scored: for a policy that knows no
    bound, for pools with roles or with backends in slow start, and where the loads leave it open.

    The load table is settled.
    """
    _, match, holder, adapters, _, _, held, _ = circumstances
    beyond = policy_instance.policy.beyond
    up = pool.up
    if beyond is None or pool.has_roles or pool.warming or held is Held.ELSEWHERE or request.prompt_tokens < 1:
        return None
    order = order_of(load_table, up)
    fill = order.mean_fill
    if fill is None or (adapters is not None and len(adapters.there) > MOST_THERE):
        return None
    choice = policy_instance.margins
    drawn = load_table.rows(up)[rng.randrange(len(up))] if explores(request, choice, rng) else -1
    ids, most_blocks = _holders(match.blocks) if match is not UNMATCHED else ((), 0.0)
    there = adapters.there if adapters is not None else ()
    special = [load_table.row_of.get(one, -1) for one in (*ids, holder, *there)]
    first, window = _front(order, policy_instance, rng)
    if not ids and int(most_blocks) < len(request.chain):
        # the one that every process names for a prefix that nobody holds, while it has little to do
        near = [row for _, row in order.entries[:window]]
        special.append(rendezvous(request.chain[int(most_blocks)], near, list(map(load_table.names.__getitem__, near))))
    most_tokens = min(most_blocks * request.block_tokens, request.prompt_tokens - 1.0)
    absent_s = adapters.load_s if adapters is not None else 0.0
    entries, count = order.entries, FEW
    while count * 2 <= len(up):
        walk = [entries[(first + at) % window if at < window else at][1] for at in range(count)]
        # an index knows backends of other pools, too
        rows = [row for row in dict.fromkeys([*special, *walk, drawn]) if row in order.backend_of]
        some = tuple(map(order.backend_of.__getitem__, rows))
        backends, fit, matched, out = eligible(request, some, rows, load_table, circumstances, choice, whole=False)
        if len(fit) >= FEW:
            explored = fit.index(drawn) if drawn in fit else -1
            candidates = candidates_of(request, circumstances, backends, fit, matched)._replace(
                fill=fill, busy=order.busy_share, drawn=explored
            )
            scores = policy_instance.policy.score(request, candidates, load_table, policy_instance.weights, policy_instance.memory, rng)
            weight, seconds = beyond(request, candidates, load_table, order, policy_instance.weights, (most_tokens, absent_s))
            least = min(scores.cost)
            slack = least - weight * entries[0 if count < window else count][0] - seconds
            if slack <= margin_of(least, choice):
                return Scored(backends, out, candidates._replace(slack=max(0.0, slack)), scores, len(up) - len(some))
        count *= MORE
    return None


def _holders(held: Mapping[str, float]) -> tuple[list[str], float]:
    """Ids of the few that hold more of the prompt than all others, and the blocks that the others hold at most."""
    if len(held) <= MOST_HOLDERS:
        return list(held), 0.0
    longest = nlargest(MOST_HOLDERS + 1, held.items(), key=itemgetter(1))
    rest = longest[-1][1]
    return [backend_id for backend_id, blocks in longest if blocks > rest], rest


def _front(order: LoadOrder, policy_instance: PolicyInstance, rng: Rng) -> tuple[int, int]:
    """How many at the front of the order have nearly the same load, and which of them to begin with."""
    choice, least = policy_instance.margins, order.entries[0][0]
    window = bisect_right(order.entries, (least + 0.5 * min(choice.tie_share * least, choice.tie_s), inf))
    return rng.randrange(window) if window > 1 else 0, window
