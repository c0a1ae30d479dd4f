"""The routing decision: from a routing request, a pool, the load table, the prefix match, the time and random numbers to a Route.

Pure and synchronous. Stage A excludes the backends that cannot serve (`eligible.py`); stage B is the policy, which gives each remaining
backend a cost; stage C (`tie_break.py`) chooses among the backends that cost nearly the same.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import msgspec

from domain.clock import Rng
from domain.explain import Candidate, Explanation
from routing.eligible import eligible
from routing.fleet import Backend, Pool
from routing.load import NO_FACTS, LoadTable
from routing.policy_instance import PolicyInstance
from routing.ports import UNMATCHED, Candidates, Circumstances, Column, RoutingRequest
from routing.registry import POLICIES
from routing.room import FULL, has_no_room
from routing.tie_break import choose
from routing.warmth import share

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
    full: bool = False
    """`ranked` is empty, and would not be if fewer requests were in flight: the request can wait."""

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
    now, match, holder, adapters, _, part, paused = circumstances
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
    backends, rows, matched, out = eligible(request, pool, load_table, circumstances, policy_instance.choice)
    excluded = (*pool.not_up, *out) if out else pool.not_up
    if not rows:
        return Route(policy_instance.name, (), excluded, full=any([backend.reason.startswith(FULL) for backend in out]))
    candidates = Candidates(
        rows,
        matched,
        min(match.common * request.block_tokens, request.prompt_tokens - 1.0) if match is not UNMATCHED else 0.0,
        () if adapters is None else [0.0 if backend.id in adapters.there else adapters.load_s for backend in backends],
        _position(holder, backends) if holder else -1,
        _shares(backends, now) if pool.warming else (),
        now,
    )
    scores = policy_instance.policy.score(request, candidates, load_table, policy_instance.params, policy_instance.memory, rng)
    order, why = choose(request, candidates, load_table, scores, policy_instance, rng)
    if scores.barred:
        barred = scores.barred
        excluded += tuple([msgspec.structs.replace(backends[i], reason=barred[i]) for i in order if i in barred])
        order = [i for i in order if i not in barred]
    # `map` and `zip` run without a frame of their own: with two backends a comprehension costs more than what it computes
    terms = list(zip(*scores.terms, strict=True))
    return Route(
        policy_instance.name,
        tuple(zip(map(backends.__getitem__, order), map(terms.__getitem__, order), strict=True)),
        excluded,
        costs=tuple(map(scores.cost.__getitem__, order)),
        matched=tuple(map(matched.__getitem__, order)),
        waiting=tuple(map(load_table.waiting.__getitem__, map(rows.__getitem__, order))),
        params=policy_instance.params,
        why=why,
    )


def _position(holder: str, backends: tuple[Backend, ...]) -> int:
    for at, backend in enumerate(backends):
        if backend.id == holder:
            return at
    return -1


def _shares(backends: tuple[Backend, ...], now: float) -> Column:
    started = [backend.warming_since for backend in backends]
    if not any([since is not None for since in started]):
        return ()
    return [share(since, now) for since in started]
