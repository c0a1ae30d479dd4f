"""The state of the fleet for the admin process: one view, joined from those of all workers.

Each worker polls, reads and judges backends for itself. `state_of` is one backend as one worker sees it; `fleet_seen`, `sources_seen` and
`clashes_seen` join the views of all workers.
"""

from collections.abc import Iterable
from math import inf
from typing import Final, Literal

from backends.breaker import BreakerState as Breaker
from backends.kv.blocks import least
from domain.membership import SourceState
from gateway.deps import Deps
from gateway.placement.backend_state import BackendState, LimitView
from gateway.process.snapshots import WorkerSnapshot
from gateway.wiring.fleet import FleetParts
from routing.fleet import Availability as BackendIs
from routing.fleet import Backend


def state_of(backend: Backend, deps: Deps, fleet: FleetParts | None) -> BackendState:
    """The state of one backend in this worker, in the form that is sent to the admin process."""
    signals = deps.live.signals.get(backend.id)
    now = deps.clock()
    age_s = None if signals is None else now - signals.read_at
    pool_state = deps.pool_states[backend.pool]
    prefill = deps.live.prefill.get(backend.id)
    in_flight = pool_state.load_table.in_flight(backend.id)
    sent, ended = (0, 0) if signals is None else pool_state.load_table.since(backend.id)
    member = fleet.roster.member(backend.id) if fleet else None
    return BackendState(
        backend.pool,
        backend.id,
        backend.state is BackendIs.UP,
        backend.reason,
        in_flight,
        signals,
        age_s,
        sent,
        ended,
        prefill_tokens_per_s=None if prefill is None else prefill.tokens_per_s,
        kv=deps.live.kv.get(backend.id),
        load_age_s=None if signals is None else now - signals.load_at,
        push=deps.live.pushes.get(backend.id),
        loras=deps.loras.resident(backend.id),
        state=backend.state.value,
        source=member.owner if member else "",
        url=member.url if member else "",
        trust=pool_state.load_table.trust[pool_state.load_table.row_of[backend.id]],
        index_off=deps.pool_states.trusts.of(backend.id).alarm,
        breaker=_worst([breaker.state(now) for _, breaker in deps.live.breakers.of_backend(backend.id)]),
        breaker_opens=deps.live.breakers.opens.get(backend.id, 0),
        residual_s=deps.pool_states.residual_s(backend.id),
        limit=(limit := deps.pool_states.limits.shown(backend.id)),
        processes=None if limit is None else deps.pool_states.limits.share_of(backend.pool).processes,
        usd_per_hour=member.traits.usd_per_hour if member else 0.0,
        revision=deps.live.fleet.pools[backend.pool].revision,
        role=backend.role,
    )


def _worst(states: list[Breaker]) -> Literal["", "half_open", "open"]:
    if Breaker.OPEN in states:
        return "open"
    return "half_open" if Breaker.HALF_OPEN in states else ""


STATE_CAUTION: Final = {"up": 0, "unknown": 1, "down": 2, "ejected": 3, "draining": 4}
"""The rank of backends' states: when workers differ the more cautious state is shown. A state that is not listed is the most
cautious."""

BREAKER_STATES: Final = ("", "half_open", "open")
"""States of a circuit breaker, the worst last."""


def fleet_seen(workers: Iterable[WorkerSnapshot]) -> list[BackendState]:
    """Every backend, joined over all workers: up when every worker may use it, requests added, signals of the freshest reading."""
    joined: dict[tuple[str, str], BackendState] = {}
    for worker in workers:
        for state in worker.fleet:
            earlier = joined.get((state.pool, state.backend))
            joined[state.pool, state.backend] = state if earlier is None else _joined(earlier, state)
    return [joined[key].estimated() for key in sorted(joined)]


def _joined(a: BackendState, b: BackendState) -> BackendState:
    cautious, confident = sorted((a, b), key=_caution, reverse=True)
    fresher = min(a, b, key=_age_s)
    return BackendState(
        a.pool,
        a.backend,
        a.up and b.up,
        cautious.why or confident.why,
        a.in_flight + b.in_flight,
        fresher.signals,
        fresher.signals_age_s,
        a.sent_since + b.sent_since,
        a.ended_since + b.ended_since,
        prefill_tokens_per_s=fresher.prefill_tokens_per_s,
        kv=least(a.kv, b.kv),
        loras=tuple(sorted({*a.loras, *b.loras})),
        state=cautious.state,
        source=a.source or b.source,
        url=a.url or b.url,
        load_age_s=fresher.load_age_s,
        trust=min(a.trust, b.trust),
        index_off=a.index_off or b.index_off,
        breaker=max(a.breaker, b.breaker, key=BREAKER_STATES.index),
        breaker_opens=a.breaker_opens + b.breaker_opens,
        residual_s=max(a.residual_s, b.residual_s),
        limit=_limits(a.limit, b.limit),
        processes=min((state.processes for state in (a, b) if state.processes is not None), default=None),
        push=max((state.push for state in (a, b) if state.push is not None), key=lambda push: push.reason != "", default=None),
        usd_per_hour=max(a.usd_per_hour, b.usd_per_hour),
        revision=a.revision,
        role=a.role,
    )


def _limits(a: LimitView | None, b: LimitView | None) -> LimitView | None:
    """Each worker finds a concurrency limit of its own and none is certain, so the largest stands for the engine; the workers' shares
    add up."""
    if a is None or b is None:
        return a or b
    tokens = [shown.tokens for shown in (a, b) if shown.tokens is not None]
    return LimitView(max(a.requests, b.requests), max(tokens, default=None), a.own + b.own)


def _age_s(seen: BackendState) -> float:
    return inf if seen.reported_age_s is None else seen.reported_age_s


def _caution(seen: BackendState) -> int:
    return STATE_CAUTION.get(seen.state, len(STATE_CAUTION))


def sources_seen(workers: Iterable[WorkerSnapshot]) -> list[SourceState]:
    """Every source of backends, joined over all workers: in trouble when any worker cannot read it, with the oldest answer."""
    joined: dict[tuple[str, str], SourceState] = {}
    for worker in workers:
        for source in worker.sources:
            earlier = joined.get((source.pool, source.name))
            worse = earlier is None or (not earlier.trouble and (source.trouble != "" or (source.age_s or 0.0) > (earlier.age_s or 0.0)))
            joined[source.pool, source.name] = source if earlier is None or worse else earlier
    return [joined[key] for key in sorted(joined)]


def clashes_seen(workers: Iterable[WorkerSnapshot]) -> list[str]:
    """The contradictions between sources that any worker found, in words."""
    return sorted({clash for worker in workers for clash in worker.clashes})
