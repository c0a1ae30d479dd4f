"""What the steps of the lifecycle work with, bundled once per worker by `wiring.py`."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from backends.attempt import RetryBudget
from backends.dialects import Dialect
from backends.health import Health
from backends.kv_blocks import KvState
from backends.lora_loader import LoraLoader
from backends.ports import Upstream
from backends.readings import PrefillRate
from backends.signals import Signals
from domain.clock import Clock, Rng, WallClock
from domain.faults import Fault, Kind
from gateway.http.edge.patience import Patience
from gateway.http.edge.relay import ReplyRelay
from gateway.story import Record
from policies.compile import PolicySet
from routing.fleet import Fleet
from routing.load import Load, Mark
from tenancy.keys import KeyRing
from tenancy.ports import Ledger


class Live:
    """The snapshots in force. Each is immutable and replaced whole; a request reads each of them at most once."""

    __slots__ = ("fleet", "health", "keys", "kv", "marks", "names", "policies", "prefill", "signals")

    def __init__(self, keys: KeyRing, policies: PolicySet, fleet: Fleet) -> None:
        self.keys = keys
        self.policies = policies
        self.fleet = fleet
        self.health: dict[str, Health] = {}
        """What this worker believes of each backend, by backend id."""
        self.names: dict[str, frozenset[str]] = {}
        """The models each backend listed last, by backend id."""
        self.signals: dict[str, Signals] = {}
        """The last reading of each backend that has one, by backend id."""
        self.marks: dict[str, Mark] = {}
        """What this process had sent and seen end when each of those readings was asked for."""
        self.prefill: dict[str, PrefillRate] = {}
        """How fast each backend prefills, by backend id."""
        self.kv: dict[str, KvState] = {}
        """What each backend that publishes KV events holds, by backend id."""


class Watch:
    """Relays under way, checked together a few times a second: no request pays for a timer of its own."""

    __slots__ = ("_relays",)

    def __init__(self) -> None:
        self._relays: set[ReplyRelay] = set()

    def add(self, relay: ReplyRelay) -> None:
        """Watch a relay until it is over. Bounded by the connections there may be."""
        self._relays.add(relay)

    def forget(self, relay: ReplyRelay) -> None:
        """Stop watching a relay that is over; one that still waits for its engine's last bytes stays."""
        if relay.over:
            self._relays.discard(relay)

    def sweep(self, now: float, log_defect: Callable[[BaseException, str], None]) -> None:
        """Enforce deadlines and send heartbeats. A relay that raises is ended with a 500 or an error event; the others go on."""
        for relay in list(self._relays):
            if now >= relay.look_at:
                try:
                    relay.check(now)
                except Exception as error:  # noqa: BLE001 - one bad relay must not take the deadlines of all others with it
                    log_defect(error, "sweep")
                    relay.end_with(Fault(Kind.INTERNAL, "Something failed on our side. Try again; if it stays, quote the request id."))
                if relay.over:
                    self._relays.discard(relay)

    def last_events(self) -> dict[str, float]:
        """By backend id: when the last event of an answer came from it to a request that is under way."""
        found: dict[str, float] = {}
        for relay in self._relays:
            at = relay.last_event_at
            if at is not None and at > found.get(relay.backend, 0.0):
                found[relay.backend] = at
        return found

    def relays(self) -> list[ReplyRelay]:
        """Every relay under way."""
        return list(self._relays)


class RequestIds:
    """Ids that are unique across processes and restarts: a random part per process and a count."""

    __slots__ = ("_count", "_prefix")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._count = 0

    def __call__(self) -> str:
        """The next id, `req-<process>-<count>`."""
        self._count += 1
        return f"req-{self._prefix}-{self._count:x}"


@dataclass(frozen=True, slots=True)
class Deps:
    """Everything a request may touch."""

    live: Live
    clock: Clock
    wall: WallClock
    rng: Rng
    loop: asyncio.AbstractEventLoop
    new_id: RequestIds
    load: Load
    budget: RetryBudget
    ledger: Ledger
    upstreams: dict[str, Upstream]
    """The ways to those backends that may get new requests, kept by `gateway.fleet.roster`; draining ones are not in it."""
    loras: LoraLoader
    dialects: Mapping[str, Dialect]
    patience: Patience
    watch: Watch
    observe: Callable[[Record], None]
    log_defect: Callable[[BaseException, str], None]
    salt_secret: bytes
    started_unix: int
    """When this worker started, seconds since the epoch; the `created` of the models it lists."""
    cors_origins: frozenset[str] = frozenset()
    salts: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Cache salts by tenant, pool and, where there is one, the adapter's digest; at most tenants times models of the configuration."""
