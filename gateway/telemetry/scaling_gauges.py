"""What autoscalers need to know of each pool: signals that rise before callers notice, and the number of backends that is recommended.

`PoolScaling` reads them out of the workers' snapshots in the admin process, whenever somebody scrapes or asks `/admin/v1/scaling`; the path
of a request knows nothing of it. Rates and quantiles are over the last `WINDOW_S`; before two looks there are none.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, get_args

import msgspec

from domain.clock import Clock
from domain.membership import Role
from gateway.fleet.view import fleet_seen
from gateway.placement.backend_state import BackendState
from gateway.process.snapshots import WorkerSnapshot
from gateway.telemetry.families import GOODPUT_REQUESTS, TTFT, TTFT_BOUNDS_S
from gateway.telemetry.live import quantiles
from routing.forecast import NO_GROWTH, Growth
from routing.scaling import PoolLoad, ScaleHistory, ScaleSettings, Wanted, missed_by

WINDOW_S: Final = 60.0
"""Time that measured quantiles and shares are of: four scrapes of 15 s."""

LEAST_S: Final = 10.0
"""Shorter spans say nothing of the time for prompts: engines' counters move in steps."""

SCALING_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_pool_backends": ("Backends of the pool that do not drain, those that start or are down counted.", ("pool", "role")),
    "tidegate_pool_queue_tokens_per_backend": (
        "Uncached prompt tokens that wait, in engines and in the gateway, for each usable backend.",
        ("pool", "role"),
    ),
    "tidegate_pool_predicted_ttft_p95_seconds": (
        "The time to the first token that 95 of 100 requests are predicted not to exceed.",
        ("pool", "role"),
    ),
    "tidegate_pool_kv_pressure_ratio": (
        "KV that running and waiting requests take, of that which there is; above 1 some wait.",
        ("pool", "role"),
    ),
    "tidegate_pool_prefill_busy_ratio": ("Share of the last minute that the usable backends computed prompts for.", ("pool", "role")),
    "tidegate_pool_goodput_deficit_ratio": ("Share of the last minute's requests that missed their promise.", ("pool", "role")),
    "tidegate_pool_held_requests": (
        "Requests that wait for a backend of a pool that may have none and has none up; at least 1 for a minute after one was asked for.",
        ("pool", "role"),
    ),
    "tidegate_pool_wanted_backends": ("Backends that are recommended, where the pool has a section scale.", ("pool", "role")),
    "tidegate_pool_load_backends": (
        "Backends that the load of now fills, without headroom, where the pool has a section scale: what forecasts are made of later.",
        ("pool", "role"),
    ),
    "tidegate_pool_forecast_backends": (
        "Backends that the load is expected to need when an engine that is asked for now serves, headroom included; with scale.predict.",
        ("pool", "role"),
    ),
}

ROLES: Final[tuple[Role, ...]] = get_args(Role)
Rows = list[tuple[tuple[str, ...], float]]
Sums = dict[tuple[str, ...], list[float]]
"""Counts by family and labels."""
_TOLD: Final = (TTFT, GOODPUT_REQUESTS)


class PoolScale(msgspec.Struct, frozen=True):
    """One pool, or its engines of one role: their load (`load.role`), and what is recommended where there are bounds."""

    pool: str
    load: PoolLoad
    scale: ScaleSettings | None = None
    wanted: Wanted | None = None
    growth: Growth = NO_GROWTH


class PoolScaling:
    """The load of every pool, and how many backends it should have.

    Args:
        pools: the pools of the settings with their bounds; None where nothing is recommended.
        clock: seconds that only rise.
        by_role: bounds by role, of pools whose engines may have one. Their engines of each role are looked at apart.
        growth: by how much the load of a pool's engines of one role is expected to grow.
    """

    def __init__(
        self,
        pools: Mapping[str, ScaleSettings | None],
        clock: Clock,
        by_role: Mapping[str, Mapping[Role, ScaleSettings]] = MappingProxyType({}),
        growth: Callable[[str, Role], Growth] = lambda _pool, _role: NO_GROWTH,
    ) -> None:
        self._pools = pools
        self._by_role = by_role
        self._growth = growth
        self._clock = clock
        self._histories: dict[tuple[str, Role], ScaleHistory] = {}
        for pool, scale in pools.items():
            bounds: Mapping[Role, ScaleSettings] = by_role.get(pool) or ({} if scale is None else {"both": scale})
            self._histories |= {(pool, role): ScaleHistory(one) for role, one in bounds.items()}
        self._last: dict[tuple[int, float], Sums] = {}
        self._holding: set[str] = set()
        """Pools whose requests waited for the first engine at the last look, or for room on it since then."""
        self._woken: dict[str, float] = {}
        """The last look at each pool that may have seen answers to such requests."""
        self._up_at: dict[str, float] = {}
        """The first look at each woken pool with a backend that is up. No held request waits longer from then on than it may be held."""
        self._window: deque[tuple[float, Sums]] = deque()
        self._computed: dict[str, deque[tuple[float, int]]] = {}
        """The looks at each backend's counter of computed prompt tokens, within the window."""

    def bounds(self, pool: str, role: Role) -> ScaleSettings | None:
        """The bounds of a pool's engines of one role; None where nothing is recommended for them, or there is no such pool."""
        history = self._histories.get((pool, role))
        return None if history is None else history.scale

    def look(self, workers: Sequence[WorkerSnapshot]) -> list[PoolScale]:
        """Every pool now. `workers` are snapshots with their numbers."""
        now = self._clock()
        self._window.append((now, self._change(workers)))
        while self._window[0][0] <= now - WINDOW_S:
            self._window.popleft()
        recent = _sum(sums for _, sums in self._window)
        fleet = fleet_seen(workers)
        self._note_computed(fleet, now)
        found = []
        for pool in self._pools:
            of_pool = [backend for backend in fleet if backend.pool == pool]
            loads = self._loads(pool, of_pool, self._load(pool, of_pool, workers, recent))
            for role, load in loads.items():
                history = self._histories.get((pool, role))
                growth = self._growth(pool, role)
                scale, wanted = (None, None) if history is None else (history.scale, history.note(load, now, growth))
                found.append(PoolScale(pool, load, scale, wanted, growth))
        return found

    def _loads(self, pool: str, backends: Sequence[BackendState], whole: PoolLoad) -> dict[Role, PoolLoad]:
        """The load of the pool, or those of the roles that its engines have or that have bounds."""
        if pool not in self._by_role:
            return {"both": whole}
        bounds = self._by_role[pool]
        there = {backend.role for backend in backends}
        roles: list[Role] = [role for role in ROLES if role in there or role in bounds] or ["both"]
        if roles == ["both"]:
            return {"both": whole}
        loads = {role: self._of_role(role, [backend for backend in backends if backend.role == role], whole) for role in roles}
        lacking = missed_by(loads, bounds)
        if lacking is not None:
            loads[lacking] = msgspec.structs.replace(loads[lacking], deficit=whole.deficit)
        return loads

    def _of_role(self, role: Role, backends: Sequence[BackendState], whole: PoolLoad) -> PoolLoad:
        """The load of the engines of one role. What waits in the gateway waits for each of them; at which of two engines a measured time
        to the first token was spent nobody knows."""
        told = self._told(backends)
        return msgspec.structs.replace(told, role=role, queued=whole.queued, answered=whole.answered, held=whole.held)

    def rows(self, workers: Sequence[WorkerSnapshot]) -> Iterator[tuple[str, Rows]]:
        """Samples by gauge; what is not known has no sample."""
        found = self.look(workers)
        columns: tuple[list[float | None], ...] = (
            [float(one.load.backends) for one in found],
            [one.load.queue_tokens / one.load.up if one.load.up else None for one in found],
            [one.load.predicted_s for one in found],
            [one.load.kv_pressure for one in found],
            [one.load.prefilled for one in found],
            [one.load.deficit for one in found],
            [float(one.load.held) if one.scale is not None and one.scale.to_zero is not None else None for one in found],
            [None if one.wanted is None else float(one.wanted.wanted) for one in found],
            [None if one.wanted is None else one.wanted.need.load for one in found],
            [None if one.wanted is None else one.wanted.need.forecast for one in found],
        )
        for name, column in zip(SCALING_GAUGES, columns, strict=True):
            yield name, [((one.pool, one.load.role), value) for one, value in zip(found, column, strict=True) if value is not None]

    def _change(self, workers: Iterable[WorkerSnapshot]) -> Sums:
        """What the workers counted since the last look; a worker that is new counts from its first look on."""
        now = {(w.pid, w.started_at): _counts(w) for w in workers if w.metrics is not None}
        change: Sums = {}
        for key, sums in now.items():
            if (before := self._last.get(key)) is not None:
                for labels, cell in sums.items():
                    old = before.get(labels, [0.0] * len(cell))
                    into = change.setdefault(labels, [0.0] * len(cell))
                    for at, value in enumerate(cell):
                        into[at] += max(value - old[at], 0.0)
        self._last = now
        return change

    def _load(self, pool: str, backends: Sequence[BackendState], workers: Sequence[WorkerSnapshot], recent: Sums) -> PoolLoad:
        queues = [queue for worker in workers for queue in worker.queues if queue.pool == pool]
        answered = _ttft(pool, recent)
        load = msgspec.structs.replace(
            self._told(backends),
            queued=sum(sum(queue.waiting) for queue in queues),
            answered=sum(answered),
            held=sum(queue.held for queue in queues),
        )
        if self._waking(pool, load):
            return load
        p95_ms = quantiles(TTFT_BOUNDS_S, answered).p95
        return msgspec.structs.replace(load, ttft_p95_s=None if p95_ms is None else p95_ms / 1000, deficit=_deficit(pool, recent))

    def _waking(self, pool: str, load: PoolLoad) -> bool:
        """Whether measured times may be those of held requests: of the engine's start, which one more engine does not shorten."""
        now = self._clock()
        if pool in self._holding:
            self._woken[pool] = now  # what was answered since the last look was held
        since = self._woken.get(pool)
        woken = since is not None and now - since < WINDOW_S
        if load.held and not load.up:
            self._up_at.pop(pool, None)
            self._holding.add(pool)
            return True
        scale = self._pools[pool]
        longest_s = scale.to_zero.wait_s if scale is not None and scale.to_zero is not None else 0.0
        if woken and load.queued and now - self._up_at.setdefault(pool, now) < longest_s:
            self._holding.add(pool)
            return True
        self._holding.discard(pool)
        return woken

    def _told(self, backends: Sequence[BackendState]) -> PoolLoad:
        """What engines tell of their load."""
        usable = [backend for backend in backends if backend.up]
        told = [(backend, signals) for backend in usable if (signals := backend.signals) is not None and signals.running is not None]
        tokens = [signals.waiting_uncached_tokens for _, signals in told if signals.waiting_uncached_tokens is not None]
        kv = [signals.kv_usage for _, signals in told if signals.kv_usage is not None]
        limits = [backend.limit.requests for backend in usable if backend.limit is not None]
        rates = [backend.prefill_tokens_per_s for backend in usable if backend.prefill_tokens_per_s]
        return PoolLoad(
            backends=sum(backend.state != "draining" for backend in backends),
            up=len(usable),
            telling=len(told),
            running=sum(backend.running_now or 0 for backend, _ in told),
            waiting=sum(backend.waiting_now or 0 for backend, _ in told),
            waiting_tokens=sum(tokens) if tokens else None,
            tokens_per_s=sum(rates) / len(rates) * len(usable) if rates else 0.0,
            kv_used=sum(kv),
            kv_telling=len(kv),
            slots=sum(limits) / len(limits) if limits else 0.0,
            error_s=max((backend.residual_s for backend in usable), default=0.0),
            prefilled=self._prefilled(usable),
        )

    def _note_computed(self, fleet: Sequence[BackendState], now: float) -> None:
        counters = {b.backend: b.signals.prefill_tokens for b in fleet if b.signals is not None and b.signals.prefill_tokens is not None}
        self._computed = {backend: self._computed.get(backend, deque()) for backend in counters}
        for backend, tokens in counters.items():
            seen = self._computed[backend]
            if seen and tokens < seen[-1][1]:
                seen.clear()  # the engine was started anew
            seen.append((now, tokens))
            while len(seen) > 1 and seen[1][0] <= now - WINDOW_S:
                seen.popleft()

    def _prefilled(self, usable: Sequence[BackendState]) -> float | None:
        """The mean of the backends whose counter was watched for long enough and whose speed is known."""
        shares = []
        for backend in usable:
            seen = self._computed.get(backend.backend)
            if seen and backend.prefill_tokens_per_s and (span_s := seen[-1][0] - seen[0][0]) >= LEAST_S:
                shares.append((seen[-1][1] - seen[0][1]) / backend.prefill_tokens_per_s / span_s)
        return sum(shares) / len(shares) if shares else None


def _counts(worker: WorkerSnapshot) -> Sums:
    families = worker.metrics.families if worker.metrics is not None else {}
    return {
        (family.name, *labels): list(cell)
        for family in _TOLD
        for labels, cell in families.get(family.name, ())
        if len(cell) == family.width and len(labels) == len(family.labels)
    }


def _sum(parts: Iterable[Sums]) -> Sums:
    total: Sums = {}
    for part in parts:
        for labels, cell in part.items():
            into = total.setdefault(labels, [0.0] * len(cell))
            for at, value in enumerate(cell):
                into[at] += value
    return total


def _ttft(pool: str, recent: Sums) -> list[float]:
    counts = [0.0] * (TTFT.width - 1)
    for labels, cell in recent.items():
        if labels[0] == TTFT.name and labels[2] == pool:
            for at, value in enumerate(cell[:-1]):
                counts[at] += value
    return counts


def _deficit(pool: str, recent: Sums) -> float | None:
    """Promises are counted by model: those count for the pool whose models it has served."""
    models = {labels[1] for labels, cell in recent.items() if labels[0] == TTFT.name and labels[2] == pool and any(cell[:-1])}
    met_missed: defaultdict[bool, float] = defaultdict(float)
    for labels, cell in recent.items():
        if labels[0] == GOODPUT_REQUESTS.name and labels[1] in models:
            met_missed[False] += cell[0]
            met_missed[True] += cell[1]
    every = met_missed[False] + met_missed[True]
    return met_missed[True] / every if every else None
