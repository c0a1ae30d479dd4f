"""The Fleet: an immutable snapshot of pools and backends, replaced whole when anything about them changes."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from domain.membership import Role


class State(Enum):
    """What is known of a backend."""

    UNKNOWN = "unknown"
    """Not heard of yet; never routed to."""
    UP = "up"
    DOWN = "down"
    EJECTED = "ejected"
    """It answers polls and brings no tokens; only probes go there."""
    DRAINING = "draining"
    """Leaving, or told to pause: what runs on it may finish, nothing new goes there."""


class Backend(msgspec.Struct, frozen=True):
    """One engine endpoint."""

    id: str
    pool: str
    state: State = State.UNKNOWN
    reason: str = "not polled yet"
    """Why it is not up, or what is wrong with it though it is, in words for an operator; empty otherwise."""
    warming_since: float | None = None
    """When it came back with an empty cache (monotonic seconds), for as long as it is spared for that."""
    role: Role = "both"
    """Whether it serves requests whole or one half of them (`routing.disaggregation`)."""
    bootstrap: tuple[str, int] | None = None
    """Host and port at which decoding engines ask it for KV, where they do."""


class Pool(msgspec.Struct, frozen=True):
    """Backends that serve one model revision under one name."""

    name: str
    model: str
    """The name the engines serve it under."""
    revision: str
    dialect: str
    backends: tuple[Backend, ...]
    up: tuple[Backend, ...] = ()
    """Those of `backends` that are up; filled in by `Fleet`, once per snapshot instead of once per request."""
    not_up: tuple[Backend, ...] = ()
    """The others."""
    halves: bool = False
    """Whether some of them, up or not, serve one half of requests only; filled in likewise."""


class Fleet(msgspec.Struct, frozen=True):
    """Every pool by name."""

    pools: Mapping[str, Pool]

    def __post_init__(self) -> None:
        """Sort every pool's backends by whether they are up."""
        sorted_pools = {name: _sorted(pool) for name, pool in self.pools.items()}
        msgspec.structs.force_setattr(self, "pools", sorted_pools)

    @property
    def known(self) -> bool:
        """Whether every backend was heard of at least once, up or down."""
        return all(b.state is not State.UNKNOWN for pool in self.pools.values() for b in pool.backends)

    def with_backends(self, pool_name: str, backends: tuple[Backend, ...]) -> "Fleet":
        """The same fleet with this pool's backends replaced; `self` when nothing changed."""
        pool = self.pools[pool_name]
        if backends == pool.backends:
            return self
        return Fleet(pools={**self.pools, pool_name: msgspec.structs.replace(pool, backends=backends)})

    def with_backend(self, backend: Backend) -> "Fleet":
        """The same fleet with this one backend replaced; `self` when nothing changed."""
        backends = tuple(backend if b.id == backend.id else b for b in self.pools[backend.pool].backends)
        return self.with_backends(backend.pool, backends)

    def with_member(self, backend: Backend) -> "Fleet":
        """The same fleet with this backend in its pool, whether it was there or not."""
        there = self.pools[backend.pool].backends
        if any(b.id == backend.id for b in there):
            return self.with_backend(backend)
        return self.with_backends(backend.pool, (*there, backend))

    def without(self, pool_name: str, backend_id: str) -> "Fleet":
        """The same fleet without this backend."""
        return self.with_backends(pool_name, tuple(b for b in self.pools[pool_name].backends if b.id != backend_id))


def _sorted(pool: Pool) -> Pool:
    up = tuple(b for b in pool.backends if b.state is State.UP)
    not_up = tuple(b for b in pool.backends if b.state is not State.UP)
    halves = any(b.role != "both" for b in pool.backends)
    if (up, not_up, halves) == (pool.up, pool.not_up, pool.halves):
        return pool
    return msgspec.structs.replace(pool, up=up, not_up=not_up, halves=halves)
