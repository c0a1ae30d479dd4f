"""The routing decision: from a routing request, a pool, the load table, the prefix match, the time and random numbers to a Route.

Pure and synchronous. Stage A excludes the backends that cannot serve (`eligible.py`); stage B is the policy, which gives each remaining
backend a cost, in a large pool each one that may be the best (`short_list.py`); stage C (`tie_break.py`) chooses among the backends that
cost nearly the same.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from domain.clock import Rng
from domain.explain import Candidate, Explanation
from routing.eligible import candidates_of, eligible
from routing.fleet import Backend, Pool
from routing.load import NO_FACTS, LoadTable
from routing.policy_instance import PolicyInstance
from routing.ports import UNMATCHED, Circumstances, Held, RoutingRequest
from routing.registry import POLICIES
from routing.room import FULL, NO_SLOT, has_no_room
from routing.short_list import SCORED_ALL, short_list
from routing.tie_break import choose

HAS_ROOM: Final = "room"
"""`Route.why` when the best backend had enough to do, and the request had no time left to wait for it."""
ALONE: Final = "alone"
"""`Route.why` when only one backend is up in the pool, so that the policy was not asked."""

Ranked = tuple[tuple[Backend, tuple[float, ...]], ...]
"""Backends, best first, each with the terms of its cost."""
_BACKEND: Final[Callable[[tuple[Backend, tuple[float, ...]]], Backend]] = itemgetter(0)


class Route(msgspec.Struct, frozen=True, gc=False):
    """Backends to try, best first, and the values behind the decision."""

    policy: str
    ranked: Ranked
    excluded: tuple[Backend, ...]
    extra: tuple[str, ...] = ()
    """Names of terms that follow the policy's own."""
    costs: tuple[float, ...] = ()
    """Cost of each of `ranked`, in the policy's own unit."""
    matched: tuple[float, ...] = ()
    """Tokens of the prompt that each of `ranked` holds; the rest has to be computed."""
    waiting: tuple[float, ...] = ()
    """Requests that waited at each of `ranked` when the decision was made."""
    params: Any = None
    """The policy's parameters, by which its terms are read."""
    why: str = ""
    """The tie-break between backends that cost nearly the same; empty when the least cost decided."""
    others: int = 0
    """Backends of a large pool that were not compared: by their load, none can be the best (`routing.short_list`)."""
    full: bool = False
    """`ranked` is empty, and would not be if fewer requests were in flight: the request can wait."""

    @property
    def lacks_slot(self) -> bool:
        """Whether it is `full` for want of a slot alone: every backend that could take the request later has room, and no slot for its
        adapter."""
        return self.full and all([backend.reason.startswith(NO_SLOT) for backend in self.excluded if backend.reason.startswith(FULL)])

    @property
    def backends(self) -> list[Backend]:
        """The candidates, best first."""
        return list(map(_BACKEND, self.ranked))

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms; none when there was only one backend."""
        return () if self.why == ALONE else POLICIES[self.policy].terms + self.extra

    @property
    def unit(self) -> str:
        """Unit of the costs, in words; empty where they have none."""
        return POLICIES[self.policy].unit if self.costs else ""

    def first_token_s(self, rank: int) -> float | None:
        """Seconds to the first token that the policy expected of the backend at this rank; None where it estimates none."""
        estimate = POLICIES[self.policy].first_token_s if self.why != ALONE else None
        return estimate(self.params, self.ranked[rank][1]) if estimate is not None and self.params is not None else None

    def explanation(self) -> Explanation:
        """The decision with every term. Built on demand: most requests are never explained."""
        return Explanation(
            policy=self.policy,
            candidates=(
                *(Candidate(b.id, tuple(zip(self.terms, terms, strict=True))) for b, terms in self.ranked),
                *(Candidate(b.id, excluded=b.reason or b.state.value) for b in self.excluded),
            ),
        )


def place(
    request: RoutingRequest,
    pool: Pool,
    load_table: LoadTable,
    policy_instance: PolicyInstance,
    circumstances: Circumstances,
    rng: Rng,
) -> Route:
    """Rank the pool's backends for this request. An empty `ranked` means that no backend can serve it now; `excluded` says why."""
    _, match, _, adapters, _, part, held, paused = circumstances
    if paused:
        held_back = tuple([msgspec.structs.replace(backend, reason=paused) for backend in pool.up])
        return Route(policy_instance.name, (), pool.not_up + held_back, full=bool(held_back))
    if len(pool.up) == 1 and adapters is None and match is UNMATCHED:
        row = load_table.row_of[pool.up[0].id]
        fits = not 0 < load_table.kv_capacity[row] <= request.prompt_tokens
        if (
            fits
            and load_table.facts[row] is NO_FACTS
            and not (load_table.limited and has_no_room(load_table, row, request.prompt_tokens, part))
        ):
            return Route(policy_instance.name, ((pool.up[0], ()),), pool.not_up, (), (0.0,), (0.0,), why=ALONE)
    if load_table.unsettled:
        load_table.settle()
    scored = short_list(request, pool, load_table, policy_instance, circumstances, rng) if len(pool.up) > SCORED_ALL else None
    if scored is None:
        backends, rows, matched, out = eligible(
            request, pool.up, load_table.rows(pool.up), load_table, circumstances, policy_instance.margins
        )
        if not rows:
            return Route(policy_instance.name, (), (*pool.not_up, *out), full=any([backend.reason.startswith(FULL) for backend in out]))
        candidates = candidates_of(request, circumstances, backends, rows, matched)
        scores = policy_instance.policy.score(request, candidates, load_table, policy_instance.weights, policy_instance.memory, rng)
        others = 0
    else:
        backends, out, candidates, scores, others = scored
        rows = candidates.rows
    excluded = (*pool.not_up, *out) if out else pool.not_up
    order, why = choose(request, candidates, load_table, scores, policy_instance, rng)
    if held is not Held.SEND and adapters is None and policy_instance.policy.in_seconds and _has_enough(load_table, rows[order[0]], part):
        free = next((at for at in order if not _has_enough(load_table, rows[at], part)), -1) if held is Held.ELSEWHERE else -1
        if free < 0:
            # the request waits here for its best backend, and is decided anew when something has changed
            full = has_no_room(load_table, rows[order[0]], 0.0, part)
            return Route(policy_instance.name, (), (*excluded, msgspec.structs.replace(backends[order[0]], reason=full)), full=True)
        order.remove(free)
        order.insert(0, free)
        why = HAS_ROOM
    if scores.barred:
        barred = scores.barred
        excluded += tuple([msgspec.structs.replace(backends[i], reason=barred[i]) for i in order if i in barred])
        order = [i for i in order if i not in barred]
    in_order = _in_order(order)
    return Route(
        policy_instance.name,
        tuple(zip(in_order(backends), in_order(scores.terms), strict=True)),
        excluded,
        costs=in_order(scores.cost),
        matched=in_order(candidates.matched),
        waiting=_in_order(in_order(rows))(load_table.waiting),
        params=policy_instance.params,
        why=why,
        others=others,
    )


def _in_order(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that returns these places of a column as a tuple. `itemgetter` does so in one call; of one place it returns no tuple."""
    return itemgetter(*places) if len(places) > 1 else lambda column: tuple([column[at] for at in places])


def _has_enough(load_table: LoadTable, row: int, part: float) -> bool:
    """Whether this gateway has as many unbegun prompts there as may wait in an engine."""
    return load_table.waits_there(row) >= load_table.hold_tokens[row] * part
