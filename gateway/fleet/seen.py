"""The fleet as all workers together see it: each of them polls, reads and judges for itself."""

from collections.abc import Iterable
from math import inf
from typing import Final

from backends.kv_blocks import least
from domain.membership import SourceState
from gateway.placing.limits import Shown
from gateway.worker_state import BackendState, WorkerSnapshot

CAUTION: Final = {"up": 0, "unknown": 1, "down": 2, "ejected": 3, "draining": 4}
"""When workers differ about a backend the more cautious state is shown; one not listed here counts as most cautious."""

BREAKERS: Final = ("", "half_open", "open")
"""States of a breaker, the worst last."""


def fleet_seen(workers: Iterable[WorkerSnapshot]) -> list[BackendState]:
    """Every backend as all workers together see it: up when each may use it, requests added, signals of the freshest reading."""
    found: dict[tuple[str, str], BackendState] = {}
    for worker in workers:
        for seen in worker.fleet:
            known = found.get((seen.pool, seen.backend))
            found[seen.pool, seen.backend] = seen if known is None else _joined(known, seen)
    return [found[key].estimated() for key in sorted(found)]


def _joined(one: BackendState, other: BackendState) -> BackendState:
    cautious, other_one = sorted((one, other), key=_caution, reverse=True)
    fresher = min(one, other, key=_age_s)
    return BackendState(
        one.pool,
        one.backend,
        one.up and other.up,
        cautious.why or other_one.why,
        one.in_flight + other.in_flight,
        fresher.signals,
        fresher.signals_age_s,
        one.sent_since + other.sent_since,
        one.ended_since + other.ended_since,
        prefill_tokens_per_s=fresher.prefill_tokens_per_s,
        kv=least(one.kv, other.kv),
        loras=tuple(sorted({*one.loras, *other.loras})),
        state=cautious.state,
        source=one.source or other.source,
        url=one.url or other.url,
        load_age_s=fresher.load_age_s,
        trust=min(one.trust, other.trust),
        index_off=one.index_off or other.index_off,
        breaker=max(one.breaker, other.breaker, key=BREAKERS.index),
        breaker_opens=one.breaker_opens + other.breaker_opens,
        residual_s=max(one.residual_s, other.residual_s),
        limit=_limits(one.limit, other.limit),
        processes=min((seen.processes for seen in (one, other) if seen.processes is not None), default=None),
        push=max((seen.push for seen in (one, other) if seen.push is not None), key=lambda push: push.reason != "", default=None),
    )


def _limits(one: Shown | None, other: Shown | None) -> Shown | None:
    """Each worker finds its own; none of them is certain, so the largest stands for the engine. What they may have adds up."""
    if one is None or other is None:
        return one or other
    tokens = [shown.tokens for shown in (one, other) if shown.tokens is not None]
    return Shown(max(one.requests, other.requests), max(tokens, default=None), one.own + other.own)


def _age_s(seen: BackendState) -> float:
    return inf if seen.told_age_s is None else seen.told_age_s


def _caution(seen: BackendState) -> int:
    return CAUTION.get(seen.state, len(CAUTION))


def sources_seen(workers: Iterable[WorkerSnapshot]) -> list[SourceState]:
    """Every source as all workers together see it: in trouble when one of them is, with the oldest answer."""
    found: dict[tuple[str, str], SourceState] = {}
    for worker in workers:
        for seen in worker.sources:
            known = found.get((seen.pool, seen.name))
            worse = known is None or (not known.trouble and (seen.trouble != "" or (seen.age_s or 0.0) > (known.age_s or 0.0)))
            found[seen.pool, seen.name] = seen if known is None or worse else known
    return [found[key] for key in sorted(found)]


def clashes_seen(workers: Iterable[WorkerSnapshot]) -> list[str]:
    """What any worker finds contradictory."""
    return sorted({clash for worker in workers for clash in worker.clashes})
