"""Keeps tenants apart in engines' KV caches and in the prefix index: one cache salt, and the root of prompt chains that follows from
it."""

from typing import Final, NamedTuple

from backends.lora.residency import Adapter
from routing.fleet import Pool
from routing.prefix.chain import root
from tenancy.isolation import cache_salt

MAX_KNOWN: Final = 100_000
"""Salts remembered, some 400 bytes each: tenants come and go over the admin API. At the bound all are dropped and computed anew."""


class Salted(NamedTuple):
    """The salt and the chain root of one tenant, pool and adapter."""

    salt: str
    """The value that engines mix into the hash of their first block."""
    root: int
    """The root of the tenant's prompt chains: a function of tenant, model, revision and adapter, so that no request is routed by a prefix
    that the engine would not let it use (routers no. 28)."""


def salted(known: dict[tuple[str, str, str], Salted], secret: bytes, tenant: str, pool: Pool, adapter: Adapter | None) -> Salted:
    """The salt and root of a tenant in a pool; computed once, and remembered in `known`, `MAX_KNOWN` entries at most."""
    digest = adapter.digest if adapter is not None else ""
    key = (tenant, pool.name, digest)
    entry = known.get(key)
    if entry is None:
        if len(known) >= MAX_KNOWN:
            known.clear()
        pinned = (digest,) if digest else ()
        salt = cache_salt(secret, tenant, pool.model, pool.revision, *pinned)
        entry = known[key] = Salted(salt, root_of(pool.model, pool.revision, digest, salt, secret))
    return entry


def root_of(model: str, revision: str, lora_digest: str, salt: str, secret: bytes) -> int:
    """The root of chains under a salt; equal for our prompts and for engines' events about them."""
    return root(f"{model}\n{revision}", lora_digest, salt, secret)
