"""Brings each backend's Health its evidence, asks for tokens where Health wants to see one, and acts on what it concludes.

The only writer of backends' states in the Fleet snapshot, through `show`. Every worker judges for itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import msgspec
import structlog

from backends.breaker import VERDICTS, Verdict
from backends.health import Health, Outcome, Probed, Standing, may_eject
from backends.ports import Upstream
from backends.signals import Signals
from domain.clock import Clock, Rng
from domain.faults import Fault, Kind
from gateway.adapters import ABOUT_ADAPTERS
from gateway.deps import Live, Watch
from gateway.fleet.loops import closed, ended
from gateway.placing.ground import Grounds
from routing.fleet import Backend, State
from routing.warmth import SLOW_START_S

log = structlog.get_logger("tidegate.fleet")

Probe = Callable[[], Awaitable[Probed]]
"""Asks one backend for one token."""

EVERY_S: Final = 0.5
"""How often the evidence is looked at: short against every time limit in `backends.health`."""

_STATES: Final = {
    Standing.UNKNOWN: State.UNKNOWN,
    Standing.UP: State.UP,
    Standing.DOWN: State.DOWN,
    Standing.EJECTED: State.EJECTED,
}


def show(live: Live, pool_name: str, now: float) -> None:
    """Bring the snapshot of one pool in line with its backends' Health, and log what changed."""
    backends = live.fleet.pools[pool_name].backends
    shown = tuple(_shown(backend, live, now) for backend in backends)
    for before, after in zip(backends, shown, strict=True):
        if before.state is not after.state:
            tell = log.info if after.state is State.UP else log.warning
            tell(f"backend {after.state.value}", pool=pool_name, backend=after.id, reason=after.reason)
    live.fleet = live.fleet.with_backends(pool_name, shown)


def _shown(backend: Backend, live: Live, now: float) -> Backend:
    health, signals = live.health.get(backend.id), live.signals.get(backend.id)
    if health is None or backend.state is State.DRAINING:
        return backend  # a drain is ended by `gateway.fleet.roster` alone, whatever is found meanwhile
    since = [at for at in (health.up_since, live.breakers.of(backend.id).closed_at) if at is not None and now - at < SLOW_START_S]
    warming = max(since, default=None)
    reason = health.reason or breakers_of(live, backend.id)
    if health.standing is Standing.UP and signals is not None and signals.asleep:
        why = "asleep: its weights are offloaded; wake it to use it"
        return msgspec.structs.replace(backend, state=State.DOWN, reason=why, warming_since=None)
    if health.suspicion:
        reason = f"suspect: {health.suspicion}; kept, because its pool cannot spare it"
    return msgspec.structs.replace(backend, state=_STATES[health.standing], reason=reason, warming_since=warming)


def breakers_of(live: Live, backend_id: str) -> str:
    """Why breakers of a backend are not closed, in words; empty when all are."""
    tripped = [(name, one.why) for name, one in live.breakers.seen(backend_id) if one.open_until is not None]
    return "; ".join([f"breaker{f' of {name}' if name else ''} open: {why}" for name, why in sorted(tripped)])


def note_outcome(live: Live, backend: Backend, served: str, fault: Fault | None, who: str, now: float, rng: Rng) -> None:
    """A request's attempt on this backend ended; None when its answer was whole.

    Args:
        served: the adapter that it was asked for, by its name there; empty for the model itself.
        who: the request's own id.
    """
    health = live.health.get(backend.id)
    if health is None:
        return  # it left while this ran
    if fault is None:
        if live.breakers.answered(backend.id, served, who, now, rng):
            breaker_moved(live, backend, now)
        health.ended(None, now)
        return
    verdict = VERDICTS[fault.kind] if not served or fault.kind not in ABOUT_ADAPTERS else Verdict.NEUTRAL
    if fault.alone_s:
        live.breakers.cool(backend.id, served, fault.alone_s, now)
    why = fault.kind.value + (f" ({fault.detail[:120]})" if fault.detail else "")
    if live.breakers.ended(backend.id, served, verdict, who, now, rng, why):
        breaker_moved(live, backend, now)
    if fault.kind is not Kind.WRONG_MODEL:
        health.ended(fault.kind, now)
    elif not served:
        health.quarantine(f"wrong model: {fault.detail}", now)
        show(live, backend.pool, now)


def breaker_moved(live: Live, backend: Backend, now: float) -> None:
    """A breaker of this backend opened or closed: show it at once, for what closed has to be spared from the next request on."""
    why = breakers_of(live, backend.id)
    (log.warning if why else log.info)(f"breaker {'open' if why else 'closed'}", pool=backend.pool, backend=backend.id, reason=why)
    show(live, backend.pool, now)


def note_signals(live: Live, backend_id: str, signals: Signals, now: float, *, restarted: bool) -> None:
    """A reading of the engine's own counters came."""
    health = live.health.get(backend_id)
    if health is None:
        return
    counters = (signals.prefill_tokens, signals.generated_tokens, signals.kv_usage)
    if counters != (None, None, None):
        health.counted(counters, signals.read_at)
    if restarted:
        health.restarted(now)


class HealthWatch:
    """See the module; one per worker."""

    def __init__(self, live: Live, grounds: Grounds, watch: Watch, silence_s: float, clock: Clock) -> None:
        self._live = live
        self._grounds = grounds
        self._watch = watch
        self._silence_s = silence_s
        self._clock = clock
        self._probes: dict[str, tuple[Probe, Upstream | None]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._back: dict[str, float] = {}
        """When each came back last, as far as that was seen."""

    def add(self, backend_id: str, probe: Probe, way: Upstream | None = None) -> None:
        """Judge this backend from now on, nothing known of it yet; `way` is closed when it leaves."""
        self._live.health[backend_id] = Health(self._silence_s)
        self._probes[backend_id] = (probe, way)

    def remove(self, backend_id: str) -> Awaitable[None]:
        """Forget this backend, from now on; what is returned ends when its connections are closed."""
        self._live.health.pop(backend_id, None)
        self._live.breakers.forget(backend_id)
        self._back.pop(backend_id, None)
        _, way = self._probes.pop(backend_id, (None, None))
        running = self._running.pop(backend_id, None)
        if running is not None:
            running.cancel()
        return closed(ended(running), way)

    def names_of(self, backend_id: str) -> frozenset[str]:
        """The models this backend listed last."""
        return self._live.names.get(backend_id, frozenset())

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """Weigh the evidence of now."""
        now, live = self._clock(), self._live
        self._grounds.stale(now)
        signs = self._watch.last_events()
        for backend_id, health in live.health.items():
            if not self._grounds.in_flight(backend_id):
                health.idle(now)
            elif backend_id in signs:
                health.progressed(signs[backend_id])
            if health.wants_probe(now):
                self._start_probe(backend_id, health)
            if health.up_since is not None and health.up_since != self._back.get(backend_id):
                self._back[backend_id] = health.up_since
                live.breakers.fresh(backend_id)
                self._grounds.restarted(backend_id)  # as far as is known: it was away, so its cache may be empty
        live.breakers.tidy(now)
        if live.suspects:
            for tenant, engines in live.suspects.look(self._away_at, now):
                log.error("request refused: engines died of it", tenant=tenant, backends=engines)
        for pool in live.fleet.pools.values():
            # one that drains takes nothing over, so it is no reason to spare another
            staying = (backend.id for backend in pool.backends if backend.state is not State.DRAINING)
            healths = [live.health[backend_id] for backend_id in staying if backend_id in live.health]
            for health in healths:
                if health.suspicion and health.standing is Standing.UP and may_eject(healths):
                    health.eject(now)
            show(live, pool.name, now)
            self._grounds[pool.name].recovering(live.fleet.pools[pool.name], now)
        for relay in self._watch.relays():
            owing = live.health.get(relay.backend)
            if owing is not None and owing.standing in (Standing.DOWN, Standing.EJECTED):
                relay.let_go(now, at_once=owing.frozen)

    def _away_at(self, backend_id: str) -> float:
        health = self._live.health.get(backend_id)
        return inf if health is None else health.away_at

    def _start_probe(self, backend_id: str, health: Health) -> None:
        health.probing()
        self._running[backend_id] = asyncio.create_task(self._probe(backend_id, health))

    async def _probe(self, backend_id: str, health: Health) -> None:
        probe, _ = self._probes[backend_id]
        try:
            found = await probe()
        except Exception as error:  # noqa: BLE001 - nothing an engine answers may leave its probe under way for ever
            found = Probed(Outcome.FAILED, f"cannot be read: {type(error).__name__}")
        health.probed(found, self._clock())
        if found.reason:
            log.info("probe brought no token", backend=backend_id, found=found.outcome.value, reason=found.reason)

    async def close(self) -> None:
        """Forget every backend."""
        for backend_id in list(self._probes):
            await self.remove(backend_id)
