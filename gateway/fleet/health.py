"""Feeds each backend's Health with evidence, sends the probes that Health asks for, and acts on its conclusions.

`HealthWatch` evaluates every backend; `FleetWatch` polls every backend, one loop per backend, and its answers are evidence, as are the ends
of attempts (`note_outcome`) and the engine's own counters (`note_signals`). `show` is the only writer of backends' states in the Fleet
snapshot. Every worker judges for itself. `backends.health` and `backends.breaker` decide.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Final

import msgspec
import structlog

from backends.breaker import VERDICTS, AttemptVerdict
from backends.contact import LOST, next_pause_s
from backends.health import Health, HealthState, ProbeOutcome, ProbeResult, may_eject
from backends.lora.loader import LoraLoader
from backends.ports import PollResult, Upstream
from backends.signals import Signals
from domain.clock import Clock, Rng
from domain.faults import Fault, Kind
from gateway.deps import Live, Watch
from gateway.fleet.loops import Loops, all_over, closed, ended
from gateway.fleet.shared_polls import SharedPolls
from gateway.placement.pool_state import PoolStates
from gateway.ticks import next_tick
from routing.fleet import Availability, Backend
from routing.warmth import SLOW_START_S

ABOUT_ADAPTERS: Final = frozenset({Kind.WRONG_MODEL, Kind.MODEL_NOT_SERVED})
"""Faults that, where an adapter was asked for, say nothing against the backend: the model itself may be served well."""

log = structlog.get_logger("tidegate.fleet")

Probe = Callable[[], Awaitable[ProbeResult]]
"""Asks one backend for one token."""

EVALUATE_EVERY_S: Final = 0.5
"""How often the evidence is evaluated: short against every time limit in `backends.health`."""

_STATES: Final = {
    HealthState.UNKNOWN: Availability.UNKNOWN,
    HealthState.UP: Availability.UP,
    HealthState.DOWN: Availability.DOWN,
    HealthState.EJECTED: Availability.EJECTED,
}


def show(live: Live, pool_name: str, now: float) -> None:
    """Bring the snapshot of one pool in line with its backends' Health, and log the changes of state."""
    backends = live.fleet.pools[pool_name].backends
    shown = tuple(_shown(backend, live, now) for backend in backends)
    for before, after in zip(backends, shown, strict=True):
        if before.state is not after.state:
            tell = log.info if after.state is Availability.UP else log.warning
            tell(f"backend {after.state.value}", pool=pool_name, backend=after.id, reason=after.reason)
    live.fleet = live.fleet.with_backends(pool_name, shown)


def _shown(backend: Backend, live: Live, now: float) -> Backend:
    health, signals = live.health.get(backend.id), live.signals.get(backend.id)
    if health is None or backend.state is Availability.DRAINING:
        return backend  # only `gateway.fleet.roster` ends a drain, whatever the evidence says meanwhile
    since = [at for at in (health.up_since, live.breakers.of(backend.id).closed_at) if at is not None and now - at < SLOW_START_S]
    warming = max(since, default=None)
    reason = health.reason or breakers_of(live, backend.id) or live.contacts.lost.get(backend.id, "")
    reason = reason or live.unproven.get(backend.id, "")
    if health.standing is HealthState.UP and signals is not None and signals.asleep:
        why = "asleep: its weights are offloaded; wake it to use it"
        return msgspec.structs.replace(backend, state=Availability.DOWN, reason=why, warming_since=None)
    if (suspicion := health.suspicion or health.distrust(now)) and health.standing is HealthState.UP:
        reason = f"suspect: {suspicion}; kept, because its pool cannot spare it"
    return msgspec.structs.replace(backend, state=_STATES[health.standing], reason=reason, warming_since=warming)


def breakers_of(live: Live, backend_id: str) -> str:
    """The reasons of the circuit breakers of a backend that are not closed, in words; empty when all are closed."""
    tripped = [(name, breaker.why) for name, breaker in live.breakers.of_backend(backend_id) if breaker.open_until is not None]
    return "; ".join([f"breaker{f' of {name}' if name else ''} open: {why}" for name, why in sorted(tripped)])


def note_outcome(live: Live, backend: Backend, served: str, fault: Fault | None, request_id: str, now: float, rng: Rng) -> None:
    """Record the end of a request's attempt on this backend, for its circuit breaker and its Health.

    Args:
        served: the adapter that was asked for, by its name at the engine; empty for the model itself.
        fault: why the attempt failed; None when its answer was complete.
        request_id: the gateway's own id of the request.
    """
    health = live.health.get(backend.id)
    if health is None:
        return  # the backend left during the attempt
    if fault is None:
        live.contacts.answered(backend.id)
        if live.breakers.answered(backend.id, served, request_id, now, rng):
            breaker_moved(live, backend, now)
        health.ended(None, now)
        return
    verdict = VERDICTS[fault.kind] if not served or fault.kind not in ABOUT_ADAPTERS else AttemptVerdict.NEUTRAL
    if fault.alone_s:
        live.breakers.cool(backend.id, served, fault.alone_s, now)
    why = fault.kind.value + (f" ({fault.detail[:120]})" if fault.detail else "")
    if live.breakers.ended(backend.id, served, verdict, request_id, now, rng, why):
        breaker_moved(live, backend, now)
    if fault.kind in LOST and health.standing is HealthState.UP:
        live.contacts.failed(backend.id, fault.kind)
    if fault.kind is not Kind.WRONG_MODEL:
        health.ended(fault.kind, now)
    elif not served:
        health.quarantine(f"wrong model: {fault.detail}", now)
        show(live, backend.pool, now)


def breaker_moved(live: Live, backend: Backend, now: float) -> None:
    """Log that a circuit breaker of this backend opened or closed, and show it at once: a recovered backend needs its slow start
    from the next request on."""
    why = breakers_of(live, backend.id)
    (log.warning if why else log.info)(f"breaker {'open' if why else 'closed'}", pool=backend.pool, backend=backend.id, reason=why)
    show(live, backend.pool, now)


def note_signals(live: Live, backend_id: str, signals: Signals, now: float, *, restarted: bool) -> None:
    """Hand a reading of the engine's own counters to the backend's Health."""
    health = live.health.get(backend_id)
    if health is None:
        return
    counters = (signals.prefill_tokens, signals.generated_tokens, signals.kv_usage)
    if counters != (None, None, None):
        health.counted(counters, signals.read_at)
    if restarted:
        health.restarted(now)


class HealthWatch:
    """Evaluates the Health of every backend, twice a second; one per worker.

    Args:
        watch: the replies that are running, with the time of their last events.
        silence_s: how long a backend may send nothing before Health suspects it.
    """

    def __init__(self, live: Live, pool_states: PoolStates, watch: Watch, silence_s: float, clock: Clock) -> None:
        self._live = live
        self._pool_states = pool_states
        self._watch = watch
        self._silence_s = silence_s
        self._clock = clock
        self._probes: dict[str, tuple[Probe, Upstream | None]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._recovered_at: dict[str, float] = {}
        """When each backend was last seen to come back up."""

    def add(self, backend_id: str, probe: Probe, upstream: Upstream | None = None) -> None:
        """Judge this backend from now on, with no evidence yet; `upstream` is closed when the backend leaves."""
        self._live.health[backend_id] = Health(self._silence_s)
        self._probes[backend_id] = (probe, upstream)

    def remove(self, backend_id: str) -> Awaitable[None]:
        """Forget this backend at once; the awaitable that is returned ends when its connections are closed."""
        self._live.health.pop(backend_id, None)
        self._live.breakers.forget(backend_id)
        self._live.contacts.forget(backend_id)
        self._recovered_at.pop(backend_id, None)
        _, upstream = self._probes.pop(backend_id, (None, None))
        running = self._running.pop(backend_id, None)
        if running is not None:
            running.cancel()
        return closed(ended(running), upstream)

    def names_of(self, backend_id: str) -> frozenset[str]:
        """The models this backend listed last."""
        return self._live.names.get(backend_id, frozenset())

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await next_tick(EVALUATE_EVERY_S)
            self.look()

    def look(self) -> None:
        """Evaluate the evidence once, start the probes that are due, and show the states that follow."""
        now = self._clock()
        live = self._live
        self._pool_states.stale(now)
        signs = self._watch.last_events()
        for backend_id, health in live.health.items():
            if not self._pool_states.in_flight(backend_id):
                health.idle(now)
            elif backend_id in signs:
                health.progressed(signs[backend_id])
            if health.wants_probe(now):
                self._start_probe(backend_id, health)
            if health.up_since is not None and health.up_since != self._recovered_at.get(backend_id):
                self._recovered_at[backend_id] = health.up_since
                live.breakers.reset(backend_id)
                self._pool_states.restarted(backend_id)  # assumed: the backend was away, so its cache may be empty
        live.breakers.tidy(now)
        if live.suspects:
            for tenant, engines in live.suspects.look(self._away_at, now):
                log.error("request refused: engines died of it", tenant=tenant, backends=engines)
        for pool in live.fleet.pools.values():
            # a draining backend takes no traffic over, so it does not allow another one to be ejected
            staying = (backend.id for backend in pool.backends if backend.state is not Availability.DRAINING)
            healths = [live.health[backend_id] for backend_id in staying if backend_id in live.health]
            for health in healths:
                if (health.suspicion or health.distrust(now)) and health.standing is HealthState.UP and may_eject(healths):
                    health.eject(now)
            show(live, pool.name, now)
            self._pool_states[pool.name].recovering(live.fleet.pools[pool.name], now)
        for relay in self._watch.relays():
            health_of_reply = live.health.get(relay.backend)
            if health_of_reply is not None and health_of_reply.standing in (HealthState.DOWN, HealthState.EJECTED):
                relay.abandon_unanswered(now, at_once=health_of_reply.frozen)

    def _away_at(self, backend_id: str) -> float:
        health = self._live.health.get(backend_id)
        return inf if health is None else health.away_at

    def _start_probe(self, backend_id: str, health: Health) -> None:
        health.probing()
        self._running[backend_id] = asyncio.create_task(self._probe(backend_id, health))

    async def _probe(self, backend_id: str, health: Health) -> None:
        probe, _ = self._probes[backend_id]
        try:
            answer = await probe()
        except Exception as error:  # noqa: BLE001 - no answer of an engine may leave its probe running for ever
            answer = ProbeResult(ProbeOutcome.FAILED, f"cannot be read: {type(error).__name__}")
        health.probed(answer, self._clock())
        if answer.reason:
            log.info("probe brought no token", backend=backend_id, found=answer.outcome.value, reason=answer.reason)

    async def close(self) -> None:
        """Forget every backend."""
        for backend_id in list(self._probes):
            await self.remove(backend_id)


Poll = Callable[[], Awaitable[PollResult]]
"""Polls one backend."""

CHECKS: Final = ""
"""Stands in the place of a pool's name in the keys of the loops that check lost backends; no pool has this name."""


REST_TIMES: Final = 3
"""Pauses between two polls of a backend that is well while nobody asks its pool. A failed poll or a request ends that. By default they are
3.75 s together at the longest, so that the connection of the last poll is still open: a new one takes longer than a fourth poll saves."""


class FleetWatch:
    """Polls every backend every `every_s` seconds, jittered so that gateways do not march in step.

    Args:
        at_rest: whether nobody asks a pool at the moment.
    """

    def __init__(
        self,
        live: Live,
        every_s: float,
        clock: Clock,
        rng: Rng,
        loras: LoraLoader | None = None,
        at_rest: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._live = live
        self._loras = loras
        self._every_s = every_s
        self._clock = clock
        self._rng = rng
        self._at_rest = at_rest
        self.shared: SharedPolls | None = None
        """Where several workers of the host poll an engine once."""
        self._polls: dict[tuple[str, str], Poll] = {}
        self._upstreams: dict[tuple[str, str], Upstream] = {}
        self._polled: set[tuple[str, str]] = set()
        self._loops: Loops[tuple[str, str]] = Loops()
        self._checking: set[str] = set()
        """The backends whose check runs: those that could not be reached lately."""
        live.contacts.on_lost = self._lost

    def add(self, pool: str, backend_id: str, poll: Poll, upstream: Upstream | None = None) -> None:
        """Poll one more backend of the fleet, at once when `run` runs. `upstream` is closed when the backend leaves."""
        key = (pool, backend_id)
        self._polls[key] = poll
        if upstream is not None:
            self._upstreams[key] = upstream
        self._loops.add(key, partial(self._poll_on, key))

    def remove(self, pool: str, backend_id: str) -> Awaitable[None]:
        """Stop polling a backend at once; the awaitable that is returned ends when its connections are closed."""
        key = (pool, backend_id)
        self._polls.pop(key, None)
        self._polled.discard(key)
        if self.shared is not None:
            self.shared.forget(backend_id)
        loops = all_over(self._loops.drop(key), self._loops.drop((CHECKS, backend_id)))
        return closed(loops, self._upstreams.pop(key, None))

    async def first_round(self) -> None:
        """Poll every backend once; afterwards every backend is known to be up or down."""
        await asyncio.gather(*(self._poll(key) for key in self._polls))

    async def run(self) -> None:
        """Poll until cancelled."""
        await self._loops.run()

    def _lost(self, backend_id: str) -> None:
        poll = next((poll for (_, polled), poll in self._polls.items() if polled == backend_id), None)
        if poll is not None and backend_id not in self._checking:
            self._checking.add(backend_id)
            self._loops.add((CHECKS, backend_id), partial(self._check, backend_id, poll))

    async def _check(self, backend_id: str, poll: Poll) -> None:
        """Poll a backend that could not be reached, until it answers or its Health takes it out. Only an answer counts: for Health the
        polls of `_poll_on` do, so that a backend goes down no sooner because requests fail there."""
        contacts, health = self._live.contacts, self._live.health.get(backend_id)
        pause_s = contacts.first_pause_s(backend_id)
        try:
            while backend_id in contacts.lost and health is not None and health.standing is HealthState.UP:
                await asyncio.sleep(pause_s)
                if not (await poll()).reason:
                    break
                pause_s = next_pause_s(pause_s)
        finally:
            self._checking.discard(backend_id)
        contacts.found(backend_id)

    async def _poll_on(self, key: tuple[str, str]) -> None:
        well = key in self._polled or await self._poll(key)  # else the backend joined a moment ago
        turns = 0
        while True:
            await asyncio.sleep(self._every_s * (0.75 + 0.5 * self._rng.random()))
            turns += 1
            if self._due(key, well, turns):
                well, turns = await self._poll(key), 0

    def _due(self, key: tuple[str, str], well: bool, turns: int) -> bool:
        """Whether this worker is to poll a backend now, which was well or not `turns` pauses ago. A pool that is asked again is polled at
        the end of the next pause."""
        pool, backend_id = key
        if self.shared is not None and not self._has_adapters(pool) and self.shared.covered_s(backend_id):
            return False  # another worker polls it for this one too
        return not well or turns >= REST_TIMES or not self._at_rest(pool)

    def _has_adapters(self, pool: str) -> bool:
        return self._loras is not None and pool in self._loras.pool_adapters

    async def _poll(self, key: tuple[str, str]) -> bool:
        """Poll a backend, and tell the other workers; returns whether it was well."""
        pool, backend_id = key
        adapters = self._loras.adapters_on(pool, backend_id) if self._loras is not None and self._has_adapters(pool) else None
        changes = adapters.changes if adapters is not None else 0
        polled = await self._polls[key]()
        if key not in self._polls:
            return False  # the backend left meanwhile
        self._polled.add(key)
        if adapters is not None and polled.loras is not None:
            adapters.reported(polled.loras, changes, self._clock())
        self.take(pool, backend_id, polled)
        well = not polled.reason
        if self.shared is not None and adapters is None:
            self.shared.tell(pool, backend_id, 1.25 * self._every_s * (REST_TIMES if well and self._at_rest(pool) else 1), polled)
        return well

    def take(self, pool: str, backend_id: str, polled: PollResult) -> None:
        """Take the result of a poll, of this worker or of another one of the host."""
        if (pool, backend_id) not in self._polls:
            return  # the backend left meanwhile
        if polled.names and not polled.reason:
            self._live.names[backend_id] = polled.names
            if polled.unproven:
                self._live.unproven[backend_id] = polled.unproven
            else:
                self._live.unproven.pop(backend_id, None)
            if polled.context_tokens is not None:
                self._live.contexts[backend_id] = polled.context_tokens
        health = self._live.health[backend_id]
        now = self._clock()
        before = health.standing
        health.polled(polled, now)
        if health.standing is not before:
            show(self._live, pool, now)
