"""The Fleet: an immutable snapshot of pools and backends, replaced whole when anything about them changes."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from domain.membership import Role


class Availability(Enum):
    """Whether a backend takes requests."""

    UNKNOWN = "unknown"
    """Not polled yet; never routed to."""
    UP = "up"
    DOWN = "down"
    EJECTED = "ejected"
    """Outlier ejection: it answers polls and brings no tokens; only probes go there."""
    DRAINING = "draining"
    """Leaving, or paused by an operator: running requests may finish, new ones go elsewhere."""


class Backend(msgspec.Struct, frozen=True):
    """One engine endpoint."""

    id: str
    pool: str
    state: Availability = Availability.UNKNOWN
    reason: str = "not polled yet"
    """Why the backend is not up, or what is wrong with it although it is up, for an operator; empty otherwise."""
    warming_since: float | None = None
    """When the backend came back with an empty cache (monotonic seconds); None once slow start is over (`routing.warmth`)."""
    role: Role = "both"
    """Whether the backend serves requests whole, or only computes prompts or generates (`routing.disaggregation`)."""
    bootstrap: tuple[str, int] | None = None
    """Host and port at which decode engines fetch KV from it; None for engines that do not."""


class Pool(msgspec.Struct, frozen=True):
    """Backends that serve one model revision under one name."""

    name: str
    model: str
    """The name the engines serve it under."""
    revision: str
    dialect: str
    backends: tuple[Backend, ...]
    up: tuple[Backend, ...] = ()
    """The members of `backends` that are up; filled in by `Fleet`, once per snapshot instead of once per request."""
    not_up: tuple[Backend, ...] = ()
    """The members of `backends` that are not up; filled in likewise."""
    has_roles: bool = False
    """Whether any backend, up or not, is for disaggregated requests only (prefill or decode); filled in likewise."""
    up_ids: frozenset[str] = frozenset()
    """The ids of `up`; filled in likewise."""
    warming: bool = False
    """Whether any member of `up` is in slow start; filled in likewise."""


class Fleet(msgspec.Struct, frozen=True):
    """Every pool by name."""

    pools: Mapping[str, Pool]

    def __post_init__(self) -> None:
        """Sort every pool's backends by whether they are up."""
        sorted_pools = {name: _sorted(pool) for name, pool in self.pools.items()}
        msgspec.structs.force_setattr(self, "pools", sorted_pools)

    @property
    def known(self) -> bool:
        """Whether every backend was polled at least once, up or down."""
        return all(b.state is not Availability.UNKNOWN for pool in self.pools.values() for b in pool.backends)

    def with_backends(self, pool_name: str, backends: tuple[Backend, ...]) -> "Fleet":
        """A copy of the fleet with this pool's backends replaced; `self` when nothing changed."""
        pool = self.pools[pool_name]
        if backends == pool.backends:
            return self
        return Fleet(pools={**self.pools, pool_name: msgspec.structs.replace(pool, backends=backends)})

    def with_backend(self, backend: Backend) -> "Fleet":
        """A copy of the fleet with this one backend replaced; `self` when nothing changed."""
        backends = tuple(backend if b.id == backend.id else b for b in self.pools[backend.pool].backends)
        return self.with_backends(backend.pool, backends)

    def with_member(self, backend: Backend) -> "Fleet":
        """A copy of the fleet with this backend in its pool, added or replaced."""
        backends = self.pools[backend.pool].backends
        if any(b.id == backend.id for b in backends):
            return self.with_backend(backend)
        return self.with_backends(backend.pool, (*backends, backend))

    def without(self, pool_name: str, backend_id: str) -> "Fleet":
        """A copy of the fleet without this backend."""
        return self.with_backends(pool_name, tuple(b for b in self.pools[pool_name].backends if b.id != backend_id))


def _sorted(pool: Pool) -> Pool:
    up = tuple(b for b in pool.backends if b.state is Availability.UP)
    not_up = tuple(b for b in pool.backends if b.state is not Availability.UP)
    has_roles = any(b.role != "both" for b in pool.backends)
    if (up, not_up, has_roles) == (pool.up, pool.not_up, pool.has_roles):
        return pool
    up_ids = frozenset(b.id for b in up)
    warming = any(b.warming_since is not None for b in up)
    return msgspec.structs.replace(pool, up=up, not_up=not_up, has_roles=has_roles, up_ids=up_ids, warming=warming)
