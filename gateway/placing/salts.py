"""What keeps tenants apart, in engines' caches and in the index of them: one salt, and the root of chains that follows from it."""

from typing import Final, NamedTuple

from backends.loras import Adapter
from routing.chain import root
from routing.fleet import Pool
from tenancy.isolation import cache_salt

MAX_KNOWN: Final = 100_000
"""Salts kept, some 400 bytes each: tenants come and go over the admin API. At the bound all are worked out anew as they are needed."""


class Salted(NamedTuple):
    """Of one tenant, pool and adapter."""

    salt: str
    """What engines mix into their first block."""
    root: int
    """What chains of its prompts begin with: of the same tenant, model, revision and adapter, so that nobody is routed by a prefix that
    the engine would not let him use (routers no. 28)."""


def salted(known: dict[tuple[str, str, str], Salted], secret: bytes, tenant: str, pool: Pool, adapter: Adapter | None) -> Salted:
    """Worked out once, and kept in `known`, `MAX_KNOWN` at most."""
    digest = adapter.digest if adapter is not None else ""
    key = (tenant, pool.name, digest)
    found = known.get(key)
    if found is None:
        if len(known) >= MAX_KNOWN:
            known.clear()
        pinned = (digest,) if digest else ()
        salt = cache_salt(secret, tenant, pool.model, pool.revision, *pinned)
        found = known[key] = Salted(salt, root_of(pool.model, pool.revision, digest, salt, secret))
    return found


def root_of(model: str, revision: str, lora_digest: str, salt: str, secret: bytes) -> int:
    """The root of chains under a salt; the same for our prompts and for engines' events of them."""
    return root(f"{model}\n{revision}", lora_digest, salt, secret)
