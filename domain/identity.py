"""The caller's identity. Values only: `tenancy.keys` verifies keys, `tenancy.jwt` JWTs; stores are in `tenancy.stores`."""

from typing import Final, NewType

import msgspec

TenantId = NewType("TenantId", str)
ProjectId = NewType("ProjectId", str)
KeyId = NewType("KeyId", str)
"""The public, loggable part of an API key (10 characters), or `jwt:` and a digest of a JWT's subject; never a secret."""


TOKEN_PREFIX: Final = "jwt:"
"""How the key id of a caller with a JWT begins; no API key's id has a colon."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The authenticated origin of one request."""

    tenant: TenantId
    project: ProjectId
    key_id: KeyId
    roles: tuple[str, ...] = ()
    """Roles that a JWT gives its subject; an API key's roles are in its rights."""
    user: str = ""
    """The end user that a JWT asserts; empty for none, and then the request's own label counts."""
    tags: tuple[tuple[str, str], ...] = ()
    """Tags of the API key: names and values."""
    networks: tuple[str, ...] = ()
    """Networks that the API key may be used from; empty for everywhere."""

    @property
    def by_token(self) -> bool:
        """Whether the caller authenticated with a JWT and not with an API key, so that it has its project's rights."""
        return self.key_id.startswith(TOKEN_PREFIX)
