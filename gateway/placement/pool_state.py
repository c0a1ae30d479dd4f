"""The state of the pools that one worker routes by. `gateway.fleet` keeps it current; decisions read it.

`PoolStates` has a load table per pool, one prefix index over all pools, the trust in each backend's index entries, and the memory of
routing policies; `PoolState` is the part of one pool. `facts_of` and `rates_of` turn the configured traits of a backend into the facts and
prior rates that routing uses before anything was measured.

`Sessions` knows the backend that served the last turn of each conversation; bounded, the least recently used conversation is dropped first.

`TenantShares` counts the requests that each tenant has in flight on one pool's engines, of this process, so that some capacity stays
reserved for tenants with few. Full engines are slow for every tenant, also for one whose request need not wait in the queue. Where a share
of the capacity is reserved, a tenant that has much more in flight than the others may use the rest only, as long as other tenants were
active lately. The price is reserved capacity that is not used. A small part of it, the headroom, is reserved whether another tenant was
active or not (`PoolState.held_back`): a tenant with many long answers would otherwise hold every slot when another one comes, for as long
as its answers last.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import inf
from typing import Final

import msgspec
import structlog

from backends.concurrency_limit import LimitBounds
from backends.recovery import Recovery
from domain.membership import NO_TRAITS, Traits
from gateway.placement.concurrency import ConcurrencyLimits, ReplicaShare
from gateway.placement.rest import PoolRest
from policies.routing_choice import Routing
from routing.calibration import Calibration
from routing.fleet import Pool
from routing.load import NO_FACTS, BackendFacts, LoadTable
from routing.policy_instance import PolicyInstance
from routing.prefix.chain import BLOCK_TOKENS
from routing.prefix.index import PrefixIndex
from routing.prefix.trust import EventCheck, Trusts
from routing.rates import PRIORS, UNKNOWN_RATES, Rates
from routing.room import HEADROOM

MAX_SESSIONS: Final = 50_000
"""Conversations remembered in one pool and worker; some 200 bytes each."""


class Sessions:
    """The conversations of one pool; `most` bounds their number."""

    __slots__ = ("_holders", "_life", "_lives", "_most")

    def __init__(self, most: int = MAX_SESSIONS) -> None:
        self._holders: OrderedDict[int, tuple[str, int]] = OrderedDict()
        """The backend of each session, and the life of the backend in which it served the session."""
        self._lives: dict[str, int] = {}
        """The number of the current life of each backend: forgetting a backend costs O(1), however many sessions it held."""
        self._life = 0
        self._most = most

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, session: int) -> str:
        """The id of the backend that served the last turn; empty when it is unknown, and for session 0 (none)."""
        entry = self._holders.get(session) if session else None
        return entry[0] if entry is not None and self._lives.get(entry[0]) == entry[1] else ""

    def held(self, session: int, backend_id: str) -> None:
        """Note that a backend serves a turn of a session now."""
        if not session:
            return
        life = self._lives.get(backend_id)
        if life is None:
            self._life += 1
            life = self._lives[backend_id] = self._life
        self._holders[session] = (backend_id, life)
        self._holders.move_to_end(session)
        if len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def forget(self, backend_id: str) -> None:
        """Drop the sessions of a backend that has left or lost its cache."""
        self._lives.pop(backend_id, None)


def session_of(name: str, tenant: str, secret: bytes) -> int:
    """A keyed hash of a caller's name for a conversation, valid in this tenant alone; 0 for no name.

    The names that callers choose may reveal something about them (an address, a chat's title), so they are neither kept nor passed on.
    """
    if not name:
        return 0
    owner = tenant.encode()
    digest = blake2b(b"%d:%b" % (len(owner), owner) + name.encode("utf-8", "surrogatepass"), key=secret[:64], digest_size=8)
    return int.from_bytes(digest.digest(), "little") or 1


QUIET_S: Final = 30.0
"""Seconds for which a tenant counts as active after its last request ended: a person reads an answer before asking again."""
MOST: Final = 4096
"""Tenants without requests that are remembered as active; beyond that the one that ended first is forgotten."""
MORE: Final = 3.0
BESIDES: Final = 1
"""A tenant has more than its share when it has more than `MORE` times the mean of all other active tenants, and `BESIDES` requests on
top. Among tenants with equal traffic chance gives one of them twice the mean all the time."""


class TenantShares:
    """The shares of one pool's tenants.

    Args:
        reserved_share: share of the capacity, 0 to 0.9, that is reserved for tenants with no more than their share.
    """

    __slots__ = ("_counts", "_ended_at", "_most", "headroom", "reserved_share", "total")

    def __init__(self, reserved_share: float = 0.0) -> None:
        self.reserved_share = reserved_share
        self.headroom: Final = min(HEADROOM, reserved_share)
        self._counts: dict[str, int] = {}
        self._ended_at: dict[str, float] = {}
        self.total = 0
        """Requests in flight, of all tenants."""
        self._most = 0
        """The most requests that one tenant has in flight; 0 where that has to be counted anew."""

    def request_sent(self, tenant: str) -> None:
        """Count one more request of a tenant in flight; to be paired with `request_over`."""
        if self.reserved_share:
            count = self._counts[tenant] = self._counts.get(tenant, 0) + 1
            self._most = max(self._most, count) if self._most else 0
            self._ended_at.pop(tenant, None)
            self.total += 1

    def request_over(self, tenant: str, now: float) -> None:
        """Count the end of a tenant's request. `now` in seconds, never less than before."""
        if not self.reserved_share:
            return
        self.total -= 1
        count = self._counts.pop(tenant) - 1
        self._most = self._most if count + 1 < self._most else 0
        if count:
            self._counts[tenant] = count
        else:
            ended_at = self._ended_at
            ended_at[tenant] = now
            if len(ended_at) > MOST:
                del ended_at[next(iter(ended_at))]

    def usable_share(self, tenant: str, now: float) -> float:
        """The part of the capacity that this tenant's next request may fill; 1 for all of it."""
        if self.reserved_share <= HEADROOM or self._counts.get(tenant, 0) < 2 or not self._other_tenants(now):
            return 1.0
        return 1.0 - self.reserved_share if self.far_above(tenant, now) else 1.0

    def far_above(self, tenant: str, now: float) -> bool:
        """Whether a tenant has far more in flight than the other active tenants, or much where no other is active."""
        own = self._counts.get(tenant, 0)
        return own > 1 and (own - BESIDES) * max(1, self._other_tenants(now)) > MORE * (self.total - own)

    def above_share(self, tenant: str) -> bool:
        """Whether a tenant has much in flight: more than half as many requests as the tenant with the most, and more than one."""
        own = self._counts.get(tenant, 0)
        if own < 2:
            return False
        if not self._most:
            self._most = max(self._counts.values())
        return 2 * own > self._most

    def _other_tenants(self, now: float) -> int:
        """The other tenants that are active, as one with a request in flight sees them."""
        ended_at = self._ended_at
        while ended_at and now - ended_at[next(iter(ended_at))] > QUIET_S:
            del ended_at[next(iter(ended_at))]
        return len(self._counts) + len(ended_at) - 1


class PoolDefaults(msgspec.Struct, frozen=True):
    """The defaults of a pool, for backends that configure nothing else."""

    context_tokens: int = 0
    hardware: str = ""
    bounds: LimitBounds | None = LimitBounds()
    """The bounds of each backend's concurrency limit; None for no limits."""
    kept_free: float = HEADROOM
    """The share of engines' capacity that is reserved for tenants with little in flight."""
    hold_s: float = inf
    """Seconds of unbegun prompts that may wait in an engine, of all processes together; infinite for no bound."""
    step_tokens: int = 2048
    """Most tokens of an engine's step."""
    prior: Rates | None = None
    """The measured speed of its engines (`routing.profile`); their hardware is then `profiled`."""


NO_DEFAULTS: Final = PoolDefaults()


def facts_of(traits: Traits, defaults: PoolDefaults = NO_DEFAULTS) -> BackendFacts:
    """The facts of a backend; `NO_FACTS` itself where there are none, which costs a decision nothing."""
    facts = BackendFacts(
        traits.max_in_flight, traits.context_tokens or defaults.context_tokens, traits.price, traits.region, defaults.step_tokens
    )
    return NO_FACTS if facts == NO_FACTS else facts


def rates_of(traits: Traits, defaults: PoolDefaults = NO_DEFAULTS) -> Rates:
    """The assumed speed of a backend until it is measured."""
    return PRIORS.get(traits.hardware or defaults.hardware) or defaults.prior or UNKNOWN_RATES


def effective(facts: BackendFacts, traits: Traits, defaults: PoolDefaults = NO_DEFAULTS) -> dict[str, str | int | float]:
    """The thresholds that apply to a backend, for the log; a missing one is logged as "none", so that no operator relies on it."""
    return {
        "max_in_flight": facts.in_flight_cap or "none",
        "context_tokens": facts.context_tokens or "none",
        "price": facts.price,
        "region": facts.region or "none",
        "hardware": traits.hardware or defaults.hardware or "unknown",
    }


log = structlog.get_logger("tidegate.routing")

DEFAULT_INDEX_BLOCKS: Final = 1_000_000
"""The default bound of the prefix index, in blocks over all backends."""
UNSAID_CAPACITY_TOKENS: Final = 131_072
"""The assumed KV cache of an engine that reports neither its contents nor its size: 16 GB of an 8B model's KV, so less than nearly all
engines have. Too small a value loses some matches; too large a value promises blocks that are gone."""
KNOWN_WELL: Final = 64
"""Samples after which a backend's speed is known well, and only every eighth answer is taken as a sample."""
MAX_CHOOSINGS: Final = 256
"""Policy instances that are kept for a pool; beyond that the oldest one is dropped, and starts without memory when it is used again."""
STALE_S: Final = 3.0
"""Seconds after which an engine's last report of its load is not believed alone: longer than the pause between two readings of a slow
engine."""


class PoolState:
    """The routing state of one pool."""

    __slots__ = ("load_table", "name", "policy_instances", "recovery", "rest", "sessions", "tenant_shares")

    def __init__(self, name: str, kept_free: float = HEADROOM) -> None:
        self.name = name
        self.tenant_shares = TenantShares(kept_free)
        self.load_table = LoadTable()
        self.recovery = Recovery()
        """Limits the requests to a pool that comes back after all its backends were out of service."""
        self.sessions = Sessions()
        self.policy_instances: dict[str, PolicyInstance] = {}
        """By `Routing.key`; filled by `policy_instance`."""
        self.rest = PoolRest(self.load_table)

    def policy_instance(self, routing: Routing) -> PolicyInstance:
        """The policy instance of a routing setting, with its memory. Tenants with equal settings share one instance: its memory is about
        backends, and about tenants only for fairness between them."""
        policy_instance = self.policy_instances.get(routing.key)
        if policy_instance is None:
            policy_instance = self.policy_instances[routing.key] = routing.policy_instance()
            if len(self.policy_instances) > MAX_CHOOSINGS:  # policy files have changed that often
                del self.policy_instances[next(iter(self.policy_instances))]
        return policy_instance

    def held_back(self, tenant: str, pool: Pool) -> bool:
        """Whether a request of this tenant has to leave the free slots of the pool to other tenants: the tenant has much in flight, and no
        more than the headroom is free. Where the headroom is less than one slot, what is left to the others is the engines' own queues."""
        shares = self.tenant_shares
        if not shares.headroom or not shares.above_share(tenant):
            return False
        slots = self.load_table.slots_of(pool.up)
        return shares.total + int(shares.headroom * slots) >= slots if slots < inf else False

    def recovering(self, pool: Pool, now: float) -> None:
        """Update the recovery of this pool from the load of its backends; called twice a second."""
        load_table = self.load_table
        rows = [load_table.row_of[backend.id] for backend in pool.up if backend.id in load_table.row_of]
        queued_s = min([load_table.queue_tokens[row] * load_table.prefill_s_token[row] for row in rows], default=0.0)
        self.recovery.look(bool(rows), queued_s, now)


class _Source:
    """How the prefix index knows the cache contents of one backend: from its KV events, or predicted from the requests sent to it."""

    __slots__ = ("capacity", "check", "disconnected", "useless")

    def __init__(self) -> None:
        self.capacity = UNSAID_CAPACITY_TOKENS // BLOCK_TOKENS
        """The size of its cache, in blocks."""
        self.check: EventCheck | None = None
        """Whether its events describe the prompts sent there; None for a backend without events."""
        self.disconnected = False
        """Whether its event subscription is down at the moment."""
        self.useless = ""
        """Why its contents are predicted in spite of its events; empty when the events are used."""


class PoolStates(dict[str, PoolState]):
    """The routing state of every pool of one worker, by the pool's name.

    Args:
        pools: the defaults of each pool's backends, by pool.
        index_blocks: bound of the prefix index, in blocks.
        generation: of the chains in the index; those of other processes with the same one are comparable (`routing.prefix.chain`).
    """

    def __init__(self, pools: Mapping[str, PoolDefaults], index_blocks: int = DEFAULT_INDEX_BLOCKS, generation: int = 0) -> None:
        super().__init__({name: PoolState(name, defaults.kept_free) for name, defaults in pools.items()})
        self.index = PrefixIndex(index_blocks)
        self.index_bound = index_blocks
        self.generation: Final = generation
        self.trusts = Trusts()
        self.limits = ConcurrencyLimits()
        self._calibrations: dict[str, Calibration] = {}
        self._answers = 0
        self._defaults = dict(pools)
        for name, defaults in pools.items():
            self[name].load_table.set_hold(defaults.hold_s)
        self._processes: dict[str, int] = {}
        """Processes that send to the pool's backends, by pool, where that is known."""
        self._siblings = 0
        self._of: dict[str, PoolState] = {}
        self._sources: dict[str, _Source] = {}

    def of(self, backend_id: str) -> PoolState | None:
        """The state of the pool that a backend belongs to; None once the backend has left."""
        return self._of.get(backend_id)

    def add(self, pool: str, backend_id: str, traits: Traits = NO_TRAITS) -> None:
        """Add a backend that joins, with nothing in flight and unknown cache contents."""
        pool_state = self._of[backend_id] = self[pool]
        defaults = self._defaults[pool]
        facts = facts_of(traits, defaults)
        rates = rates_of(traits, defaults)
        pool_state.load_table.add(backend_id, rates, facts)
        self._calibrations[backend_id] = Calibration(rates)
        self.limits.add(pool, backend_id, pool_state.load_table, defaults.bounds)
        log.info("routing facts", pool=pool, backend=backend_id, **effective(facts, traits, defaults))
        self._sources[backend_id] = _Source()
        self._size(backend_id, self._sources[backend_id])

    def set_share(self, pool: str, share: ReplicaShare) -> None:
        """Set this process's share of a pool's engines: of their concurrency limits, and of the prompts that may wait in them."""
        self.limits.set_share(pool, share)
        self._processes[pool] = share.processes
        self._set_hold(pool)

    def set_siblings(self, count: int) -> None:
        """Set how many other workers, of this host and of others, tell of their load: the prompts that may wait in an engine are theirs and
        this process's together."""
        self._siblings = count
        for pool in self:
            self._set_hold(pool)

    def _set_hold(self, pool: str) -> None:
        parts = self._processes.get(pool, 1) / (1 + self._siblings)
        self[pool].load_table.set_hold(self._defaults[pool].hold_s / max(1.0, parts))

    def configure(self, backend_id: str, traits: Traits) -> None:
        """Change the configured facts of a backend. Its measured speed stays; a new prior applies when it joins again."""
        pool_state = self._of.get(backend_id)
        if pool_state is not None:
            facts = facts_of(traits, self._defaults[pool_state.name])
            pool_state.load_table.set_facts(backend_id, facts)
            log.info("routing facts", pool=pool_state.name, backend=backend_id, **effective(facts, traits, self._defaults[pool_state.name]))

    def drop(self, backend_id: str) -> None:
        """Remove a backend that has left: it matches no prefix from now on. Raises ValueError while requests are in flight on it."""
        pool_state = self._of.get(backend_id)
        if pool_state is None:
            return
        pool_state.load_table.drop(backend_id)
        self.limits.drop(backend_id)
        pool_state.sessions.forget(backend_id)
        self.index.forget(backend_id)
        self.trusts.forget(backend_id)
        del self._of[backend_id], self._sources[backend_id], self._calibrations[backend_id]

    def in_flight(self, backend_id: str) -> int:
        """Requests of this worker in flight on a backend; 0 for a backend that has left."""
        pool_state = self._of.get(backend_id)
        return 0 if pool_state is None else pool_state.load_table.in_flight(backend_id)

    def total(self) -> int:
        """Requests of this worker in flight on all backends; a request with prefill and decode on two backends counts on both."""
        return sum(pool_state.load_table.total() for pool_state in self.values())

    def stale(self, now: float) -> None:
        """Mark the backends whose engines have not reported their load for `STALE_S`, and update the limits; called twice a second."""
        for pool_state in self.values():
            pool_state.load_table.stale(now, STALE_S)
        self.limits.tick(now)

    def residual_s(self, backend_id: str) -> float:
        """The 90th percentile of the error of predicted times to the first token, in seconds; 0 while none was measured."""
        calibration = self._calibrations.get(backend_id)
        return calibration.residual_p90_s if calibration is not None and calibration.samples else 0.0

    def calibration_to_train(self, backend_id: str) -> Calibration | None:
        """The calibration to train, or None when the backend has left or the sample is skipped (1 in 8 is kept once the backend is known
        well): a sample takes some 20 us."""
        calibration = self._calibrations.get(backend_id)
        self._answers += 1
        return None if calibration is None or (calibration.samples > KNOWN_WELL and self._answers & 7) else calibration

    def learned(self, backend_id: str, calibration: Calibration) -> None:
        """Use the rates of a calibration that took a sample."""
        self._of[backend_id].load_table.set_rates(backend_id, calibration.rates, calibration.residual_s)

    # --- cache contents -------------------------------------------------------------------------------------------

    def capacity(self, backend_id: str, tokens: int | None) -> None:
        """Set the size of an engine's KV cache, None for unknown; it bounds the predicted contents, of which no event tells."""
        source = self._sources.get(backend_id)
        blocks = max(1, (tokens or UNSAID_CAPACITY_TOKENS) // BLOCK_TOKENS)
        if source is not None and source.capacity != blocks:
            source.capacity = blocks
            self._size(backend_id, source)

    def use_events(self, backend_id: str) -> None:
        """Take the cache contents of this backend from its KV events from now on."""
        source = self._sources.get(backend_id)
        if source is not None:
            self._begin_anew(backend_id, source, EventCheck())

    def use_predictions(self, backend_id: str) -> None:
        """Predict the cache contents of this backend from the requests sent to it from now on: its events have ended."""
        source = self._sources.get(backend_id)
        if source is not None and source.check is not None:
            self._begin_anew(backend_id, source, None)

    def _begin_anew(self, backend_id: str, source: _Source, check: EventCheck | None) -> None:
        source.check, source.disconnected, source.useless = check, False, ""
        self.index.cleared(backend_id)
        self._size(backend_id, source)
        self._believe(backend_id, source)

    def events(self, backend_id: str, *, connected: bool, stored: int, now: float) -> None:
        """Take the state of a backend's event subscription: whether it is connected, and the number of blocks stored so far. Checks
        whether the events describe the prompts that were sent there; predicts the contents where they do not (routers no. 26)."""
        source = self._sources.get(backend_id)
        if source is None or source.check is None:
            return
        check = source.check
        index = self.index
        for block in check.due(now):
            check.checked(index.stored_by_events(backend_id, block), stored)
        if check.reason != source.useless:
            source.useless = check.reason
            tell = log.warning if check.reason else log.info
            tell("kv events of no use" if check.reason else "kv events of use again", backend=backend_id, reason=check.reason)
            self._size(backend_id, source)
        if source.disconnected is connected:
            source.disconnected = not connected
            self._believe(backend_id, source)

    def is_exact(self, backend_id: str) -> bool:
        """Whether the cache contents of a backend are taken from its events."""
        source = self._sources.get(backend_id)
        return source is not None and source.check is not None and not source.useless

    def prompt_answered(self, backend_id: str, chain: Sequence[int], now: float) -> None:
        """Note that a backend has begun to answer the prompt with this chain."""
        source = self._sources.get(backend_id)
        if source is not None and source.check is not None:
            source.check.answered(chain, now)

    def restarted(self, backend_id: str) -> None:
        """Forget the cache contents of a backend whose process is a new one. Contents taken from events stay: events report it too."""
        pool_state = self._of.get(backend_id)
        if pool_state is None:
            return
        self.limits.restarted(backend_id)
        pool_state.sessions.forget(backend_id)
        self.trusts.forget(backend_id)
        source = self._sources[backend_id]
        if source.check is None:
            self.index.cleared(backend_id)
        self._believe(backend_id, source)

    def _size(self, backend_id: str, source: _Source) -> None:
        self.index.size(backend_id, source.capacity, exact=source.check is not None and not source.useless)

    def note_cached(self, backend_id: str, predicted: float, actual: float) -> None:
        """Adjust the trust in a backend's index entries by the cached tokens of a prompt: the predicted ones, and those of the engine."""
        source = self._sources.get(backend_id)
        if source is None:
            return
        trust = self.trusts.of(backend_id)
        alarm, share = trust.alarm, trust.share
        trust.observe(predicted, actual)
        if trust.alarm is not alarm:
            tell = log.warning if trust.alarm else log.info
            tell("prefix index off" if trust.alarm else "prefix index right again", backend=backend_id, median_error=trust.median_error)
        if trust.share != share:
            self._believe(backend_id, source)

    def _believe(self, backend_id: str, source: _Source) -> None:
        self._of[backend_id].load_table.set_trust(backend_id, 0.0 if source.disconnected else self.trusts.share(backend_id))
