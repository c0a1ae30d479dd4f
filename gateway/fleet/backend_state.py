"""Everything that one worker knows of one backend, put together for the admin process."""

from typing import Literal

from backends.breaker import BreakerState as Breaker
from gateway.deps import Deps
from gateway.fleet.wiring import FleetParts
from gateway.worker_state import BackendState
from routing.fleet import Availability as BackendIs
from routing.fleet import Backend


def state_of(backend: Backend, deps: Deps, fleet: FleetParts | None) -> BackendState:
    """The state of one backend in this worker, in the form that is sent to the admin process."""
    signals = deps.live.signals.get(backend.id)
    now = deps.clock()
    age_s = None if signals is None else now - signals.read_at
    ground = deps.grounds[backend.pool]
    prefill = deps.live.prefill.get(backend.id)
    in_flight = ground.board.in_flight(backend.id)
    sent, ended = (0, 0) if signals is None else ground.board.since(backend.id)
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
        trust=ground.board.trust[ground.board.row_of[backend.id]],
        index_off=deps.grounds.trusts.of(backend.id).alarm,
        breaker=_worst([breaker.state(now) for _, breaker in deps.live.breakers.seen(backend.id)]),
        breaker_opens=deps.live.breakers.opens.get(backend.id, 0),
        residual_s=deps.grounds.residual_s(backend.id),
        limit=(limit := deps.grounds.limits.shown(backend.id)),
        processes=None if limit is None else deps.grounds.limits.part(backend.pool).processes,
    )


def _worst(states: list[Breaker]) -> Literal["", "half_open", "open"]:
    if Breaker.OPEN in states:
        return "open"
    return "half_open" if Breaker.HALF_OPEN in states else ""
