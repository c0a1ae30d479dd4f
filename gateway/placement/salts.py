"""The cache salts that keep tenants apart in engines' KV caches, and the chain roots that do so in the prefix index."""

from typing import Final, NamedTuple

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
    that the engine would not let the request use (routers no. 28)."""


class Salts(dict[tuple[str, str, str, str], Salted]):
    """The salts and roots by tenant, model, revision and adapter digest (empty for the base model). Each is computed when it is asked for
    the first time; at most `MAX_KNOWN` are remembered.

    Args:
        secret: keys every salt and root.
    """

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self._secret = secret

    def __missing__(self, key: tuple[str, str, str, str]) -> Salted:
        if len(self) >= MAX_KNOWN:
            self.clear()
        tenant, model, revision, digest = key
        salt = cache_salt(self._secret, tenant, model, revision, *((digest,) if digest else ()))
        salted = self[key] = Salted(salt, root_of(model, revision, digest, salt, self._secret))
        return salted


def root_of(model: str, revision: str, lora_digest: str, salt: str, secret: bytes) -> int:
    """The root of chains under a salt; equal for our prompts and for engines' events about them."""
    return root(f"{model}\n{revision}", lora_digest, salt, secret)
