"""Who asks on the admin port: the bootstrap token, or an API key or token of an identity provider with a role."""

import hmac
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final

import msgspec
import structlog

from domain.clock import Clock, WallClock
from domain.identity import TenantId
from gateway.http.admin_api.problem import Problem
from tenancy.rights import Role

audit = structlog.get_logger("tidegate.audit", audit=True)

BOOTSTRAP: Final = "bootstrap"
LINES_PER_S: Final = 1.0
LINES_AT_ONCE: Final = 20.0
"""Failed authentications that are written to the log; beyond that they are counted, and the count goes with the next line."""
MAX_TOKEN_CHARS: Final = 16_384
"""Of what is looked at; tokens of identity providers are long."""

HOW_TO_ENABLE: Final = (
    " No admin token is configured here: set secrets.admin_token to {file: path} or {env: NAME} with a token of at least 24 "
    "characters, and restart the gateway (SIGHUP)."
)


class Principal(msgspec.Struct, frozen=True):
    """Somebody who may ask."""

    actor: str
    """`bootstrap`, `key` and its public id, or `jwt:` and a digest of a token's subject."""
    roles: frozenset[Role]
    tenant: TenantId | None = None
    """Of the key or token; a tenant-admin sees nothing else."""


Holder = Callable[[str, float], Awaitable["Principal | None"]]
"""The holder of a key or token at a moment (seconds since the epoch), or None; keys of the data port are none here. Raises Problem."""


class BoundedLines:
    """At most so many log lines, whoever asks how often."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = LINES_AT_ONCE
        self._at = clock()
        self._unsaid = 0

    def refused(self, method: str, path: str, address: str) -> None:
        """Say that somebody was not let in, or count it."""
        now = self._clock()
        self._left = min(LINES_AT_ONCE, self._left + (now - self._at) * LINES_PER_S)
        self._at = now
        if self._left < 1.0:
            self._unsaid += 1
            return
        self._left -= 1.0
        audit.warning("refused: no valid admin token", method=method, path=path[:200], address=address, more_since=self._unsaid)
        self._unsaid = 0


class Authenticator:
    """Tells who asks.

    Args:
        token: the bootstrap token; None where none is configured.
        holder: looks keys and tokens up.
        clock: for the bound on log lines.
        wall: for the expiry of keys.
    """

    def __init__(self, token: str | None, holder: Holder, clock: Clock, wall: WallClock) -> None:
        self._digest = None if token is None else sha256(token.encode()).digest()
        self._holder = holder
        self._wall = wall
        self._lines = BoundedLines(clock)

    async def authenticate(self, authorization: str, method: str, path: str, address: str) -> Principal:
        """Who sends this header. Raises Problem 401, the same for every reason; and what the holder raises."""
        scheme, _, given = authorization.partition(" ")
        given = given.strip()
        if scheme.lower() == "bearer" and given and len(given) <= MAX_TOKEN_CHARS:
            # digests are compared, so that neither bytes nor length tell by time
            matches = hmac.compare_digest(sha256(given.encode("latin-1", "replace")).digest(), self._digest or bytes(32))
            if matches and self._digest is not None:
                return Principal(BOOTSTRAP, frozenset({Role.OWNER}))
            holder = await self._holder(given, self._wall())
            if holder is not None:
                return holder
        self._lines.refused(method, path, address)
        said = "The admin token is missing or wrong. Send it, or an API key with a role, as 'Authorization: Bearer TOKEN'."
        hint = HOW_TO_ENABLE if self._digest is None else ""
        raise Problem(401, "invalid_admin_token", said + hint, headers={"www-authenticate": "Bearer"})
