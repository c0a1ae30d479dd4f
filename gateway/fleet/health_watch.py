"""Brings each backend's Health its evidence, asks for tokens where Health wants to see one, and acts on what it concludes.

The only writer of backends' states in the Fleet snapshot, through `show`. Every worker judges for itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from backends.health import Health, Outcome, Probed, Standing, may_eject
from backends.ports import Upstream
from backends.signals import Signals
from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.deps import Live, Watch
from gateway.fleet.loops import closed, ended
from routing.fleet import Backend, State
from routing.load import Load
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
    up_since = health.up_since
    warming = up_since if up_since is not None and now - up_since < SLOW_START_S else None
    reason = health.reason
    if health.standing is Standing.UP and signals is not None and signals.asleep:
        return Backend(backend.id, backend.pool, State.DOWN, "asleep: its weights are offloaded; wake it to use it")
    if health.suspicion:
        reason = f"suspect: {health.suspicion}; kept, because its pool cannot spare it"
    return Backend(backend.id, backend.pool, _STATES[health.standing], reason, warming)


def note_outcome(live: Live, backend: Backend, fault: Fault | None, now: float) -> None:
    """A request's attempt on this backend ended; None when its answer was whole."""
    health = live.health.get(backend.id)
    if health is None:
        return  # it left while this ran
    if fault is not None and fault.kind is Kind.WRONG_MODEL:
        health.quarantine(f"wrong model: {fault.detail}", now)
        show(live, backend.pool, now)
    else:
        health.ended(fault.kind if fault else None, now, (fault.detail or "") if fault else "")


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

    def __init__(self, live: Live, load: Load, watch: Watch, silence_s: float, clock: Clock) -> None:
        self._live = live
        self._load = load
        self._watch = watch
        self._silence_s = silence_s
        self._clock = clock
        self._probes: dict[str, tuple[Probe, Upstream | None]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def add(self, backend_id: str, probe: Probe, way: Upstream | None = None) -> None:
        """Judge this backend from now on, nothing known of it yet; `way` is closed when it leaves."""
        self._live.health[backend_id] = Health(self._silence_s)
        self._probes[backend_id] = (probe, way)

    def remove(self, backend_id: str) -> Awaitable[None]:
        """Forget this backend, from now on; what is returned ends when its connections are closed."""
        self._live.health.pop(backend_id, None)
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
        signs = self._watch.last_events()
        for backend_id, health in live.health.items():
            if not self._load.in_flight.get(backend_id):
                health.idle(now)
            elif backend_id in signs:
                health.progressed(signs[backend_id])
            if health.wants_probe(now):
                self._start_probe(backend_id, health)
        for pool in live.fleet.pools.values():
            # one that drains takes nothing over, so it is no reason to spare another
            staying = (backend.id for backend in pool.backends if backend.state is not State.DRAINING)
            healths = [live.health[backend_id] for backend_id in staying if backend_id in live.health]
            for health in healths:
                if health.suspicion and health.standing is Standing.UP and may_eject(healths):
                    health.eject(now)
            show(live, pool.name, now)
        for relay in self._watch.relays():
            owing = live.health.get(relay.backend)
            if owing is not None and owing.standing in (Standing.DOWN, Standing.EJECTED):
                relay.let_go(now, at_once=owing.frozen)

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
