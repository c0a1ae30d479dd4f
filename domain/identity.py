"""Who asks. Values only: how a key is verified is `tenancy.keys`, how a token `tenancy.jwt_tokens`; stores are `tenancy.stores`."""

from typing import Final, NewType

import msgspec

TenantId = NewType("TenantId", str)
ProjectId = NewType("ProjectId", str)
KeyId = NewType("KeyId", str)
"""The public, loggable part of an API key (10 characters), or `jwt:` and a digest of a token's subject; never a secret."""


TOKEN_PREFIX: Final = "jwt:"
"""Begins the id of a subject that came with a token; no key's id has a colon."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The authenticated origin of one request."""

    tenant: TenantId
    project: ProjectId
    key_id: KeyId
    roles: tuple[str, ...] = ()
    """Roles that a token gives its subject; a key's are with its rights."""
    user: str = ""
    """The end user that a token vouches for; empty where nobody does, and the request's own label counts."""
    tags: tuple[tuple[str, str], ...] = ()
    """Of its key: names and values."""

    @property
    def by_token(self) -> bool:
        """Whether a token said so and no key, so that what the caller may do is its project's."""
        return self.key_id.startswith(TOKEN_PREFIX)
