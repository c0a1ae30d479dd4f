"""Authentication on the admin port: the bootstrap token, or an API key or an identity provider's token that has a role."""

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
"""Bounds on log lines for failed authentications; failures beyond them are counted, and the next line carries the count."""
MAX_TOKEN_CHARS: Final = 16_384
"""Longest credential that is checked; tokens of identity providers are long."""

HOW_TO_ENABLE: Final = (
    " No admin token is configured here: set secrets.admin_token to {file: path} or {env: NAME} with a token of at least 24 "
    "characters, and restart the gateway (SIGHUP)."
)


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller of the admin API."""

    actor: str
    """`bootstrap`, `key` and its public id, or `jwt:` and a digest of a token's subject."""
    roles: frozenset[Role]
    tenant: TenantId | None = None
    """The tenant of the key or token; a tenant-admin sees no other tenant."""


Holder = Callable[[str, float], Awaitable["Principal | None"]]
"""Looks up the holder of a key or token at a moment (seconds since the epoch); None for unknown keys and for keys without a role.
Raises Problem."""


class BoundedLines:
    """A token bucket for log lines about failed authentications, so that callers cannot flood the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens = LINES_AT_ONCE
        self._at = clock()
        self._suppressed = 0

    def refused(self, method: str, path: str, address: str) -> None:
        """Log a failed authentication, or count it when the bucket is empty."""
        now = self._clock()
        self._tokens = min(LINES_AT_ONCE, self._tokens + (now - self._at) * LINES_PER_S)
        self._at = now
        if self._tokens < 1.0:
            self._suppressed += 1
            return
        self._tokens -= 1.0
        audit.warning("refused: no valid admin token", method=method, path=path[:200], address=address, more_since=self._suppressed)
        self._suppressed = 0


class Authenticator:
    """Authenticates callers of the admin API.

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
        self._log_lines = BoundedLines(clock)

    async def authenticate(self, authorization: str, method: str, path: str, address: str) -> Principal:
        """The caller who sends this `Authorization` header. Raises Problem 401, the same for every reason, and whatever `holder` raises."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() == "bearer" and token and len(token) <= MAX_TOKEN_CHARS:
            # digests are compared, so that the time taken reveals neither bytes nor length
            matches = hmac.compare_digest(sha256(token.encode("latin-1", "replace")).digest(), self._digest or bytes(32))
            if matches and self._digest is not None:
                return Principal(BOOTSTRAP, frozenset({Role.OWNER}))
            holder = await self._holder(token, self._wall())
            if holder is not None:
                return holder
        self._log_lines.refused(method, path, address)
        message = "The admin token is missing or wrong. Send it, or an API key with a role, as 'Authorization: Bearer TOKEN'."
        hint = HOW_TO_ENABLE if self._digest is None else ""
        raise Problem(401, "invalid_admin_token", message + hint, headers={"www-authenticate": "Bearer"})
