"""Access to the admin port: who calls, and what that caller may do.

`Authenticator` checks the bootstrap token, or an API key or an identity provider's token that has a role, and returns a `Principal`.

`ROLE_TABLE` is the role-based access control: one table of roles by route, deny by default. A route without a row, or a row without a
route, stops the start of the gateway (`check_table`). `TENANT_ADMIN` in a row means: for the caller's own tenant only; resources of other
tenants do not exist for that caller (404).

Owners do everything, and make other owners and admins. Admins govern tenants, keys, limits, prices and backends, and do not read
the audit. Operators keep the gateway running: backends, rollouts and limits. Billing sets prices. Auditors read everything.

Tenant-admins govern the inside of their tenant: its projects and keys, with their rights and limits. The bounds of the tenant itself
(its own rights and limits, those of its organisation, and the limits per end user) they see and do not change. Since the tightest
bound wins, a tenant-admin can only narrow them (`governs_limit`).
"""

import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import sha256
from typing import Final

import msgspec
import structlog

from domain.clock import Clock, WallClock
from domain.identity import TenantId
from gateway.admin.problem import AdminProblem
from tenancy.key_networks import Networks, may_come_from
from tenancy.limits import Level, Scope
from tenancy.rights import Role

OWNER, ADMIN, OPERATOR, BILLING, AUDITOR, TENANT_ADMIN = Role

EVERYBODY: Final = frozenset(Role)
READERS: Final = frozenset({OWNER, ADMIN, OPERATOR, BILLING, AUDITOR})
READERS_AND_OWN: Final = READERS | {TENANT_ADMIN}
ADMINS: Final = frozenset({OWNER, ADMIN})
ADMINS_AND_OWN: Final = ADMINS | {TENANT_ADMIN}
RUNNERS: Final = frozenset({OWNER, ADMIN, OPERATOR})
RUNNERS_AND_OWN: Final = RUNNERS | {TENANT_ADMIN}
PRICERS: Final = frozenset({OWNER, ADMIN, BILLING})
CONTENT_READERS: Final = frozenset({OWNER, TENANT_ADMIN})
"""May read content that callers received."""
AUDITORS: Final = frozenset({OWNER, AUDITOR})

RouteKey = tuple[str, str]
"""Method and route template, below `/admin/v1`."""

ROLE_TABLE: Final[Mapping[RouteKey, frozenset[Role]]] = {
    ("GET", "/openapi.json"): EVERYBODY,
    ("GET", "/self"): EVERYBODY,
    ("GET", "/audit"): AUDITORS,
    ("GET", "/audit/verification"): AUDITORS,
    ("GET", "/organisations"): READERS,
    ("POST", "/organisations"): ADMINS,
    ("GET", "/organisations/{organisation}"): READERS,
    ("PUT", "/organisations/{organisation}"): ADMINS,
    ("DELETE", "/organisations/{organisation}"): ADMINS,
    ("GET", "/tenants"): READERS_AND_OWN,
    ("POST", "/tenants"): ADMINS,
    ("GET", "/tenants/{tenant}"): READERS_AND_OWN,
    ("PUT", "/tenants/{tenant}"): ADMINS,
    ("DELETE", "/tenants/{tenant}"): ADMINS,
    ("GET", "/tenants/{tenant}/projects"): READERS_AND_OWN,
    ("POST", "/tenants/{tenant}/projects"): ADMINS_AND_OWN,
    ("GET", "/tenants/{tenant}/projects/{project}"): READERS_AND_OWN,
    ("PUT", "/tenants/{tenant}/projects/{project}"): ADMINS_AND_OWN,
    ("DELETE", "/tenants/{tenant}/projects/{project}"): ADMINS_AND_OWN,
    ("GET", "/tenants/{tenant}/keys"): READERS_AND_OWN,
    ("POST", "/tenants/{tenant}/keys"): ADMINS_AND_OWN,
    ("GET", "/tenants/{tenant}/keys/{key_id}"): READERS_AND_OWN,
    ("PUT", "/tenants/{tenant}/keys/{key_id}"): ADMINS_AND_OWN,
    ("POST", "/tenants/{tenant}/keys/{key_id}/rotate"): ADMINS_AND_OWN,
    ("POST", "/tenants/{tenant}/keys/{key_id}/revoke"): ADMINS_AND_OWN,
    ("POST", "/keys/{key_id}/revoke"): ADMINS_AND_OWN,
    ("GET", "/limits"): READERS_AND_OWN,
    ("GET", "/limits/state"): READERS_AND_OWN,
    ("GET", "/limits/forecast"): READERS_AND_OWN,
    ("GET", "/limits/alerts"): READERS,
    ("GET", "/limits/{limit_id:path}"): READERS_AND_OWN,
    ("PUT", "/limits/{limit_id:path}"): RUNNERS_AND_OWN,
    ("POST", "/limits/{limit_id:path}/raise"): RUNNERS_AND_OWN,
    ("DELETE", "/limits/{limit_id:path}"): RUNNERS_AND_OWN,
    ("GET", "/prices"): READERS,
    ("POST", "/prices"): PRICERS,
    ("GET", "/prices/{price_id}"): READERS,
    ("GET", "/usage"): READERS_AND_OWN,
    ("GET", "/adapters"): READERS,
    ("POST", "/adapters"): RUNNERS,
    ("DELETE", "/adapters/{pool}/{name}"): RUNNERS,
    ("GET", "/tenants/{tenant}/adapters"): READERS_AND_OWN,
    ("PUT", "/tenants/{tenant}/adapters"): RUNNERS,
    ("GET", "/model-revisions"): READERS,
    ("POST", "/model-revisions"): RUNNERS,
    ("GET", "/model-revisions/{reference:path}"): READERS,
    ("POST", "/model-revisions/{reference:path}/retire"): RUNNERS,
    ("POST", "/model-revisions/{reference:path}/profile"): RUNNERS,
    ("GET", "/cache"): READERS_AND_OWN,
    ("GET", "/cache/entries"): READERS_AND_OWN,
    ("GET", "/cache/entries/{key}"): CONTENT_READERS,
    ("POST", "/cache/purge"): RUNNERS_AND_OWN,
    ("GET", "/feedback"): READERS_AND_OWN,
    ("GET", "/requests"): READERS_AND_OWN,
    ("GET", "/requests/live"): READERS_AND_OWN,
    ("GET", "/requests/{request_id}"): READERS_AND_OWN,
    ("GET", "/guards"): READERS_AND_OWN,
    ("GET", "/guards/events"): READERS_AND_OWN,
    ("GET", "/guards/shadow"): READERS_AND_OWN,
    ("POST", "/guards/test"): RUNNERS_AND_OWN,
    ("GET", "/queues"): READERS,
    ("GET", "/queues/refusals"): READERS,
    ("GET", "/requests/{request_id}/explanation"): READERS,
    ("POST", "/requests/explanation"): RUNNERS,
    ("POST", "/policies/reload"): RUNNERS,
    ("GET", "/rollouts"): READERS,
    ("POST", "/rollouts"): RUNNERS,
    ("GET", "/rollouts/{rollout}"): READERS,
    ("POST", "/rollouts/{rollout}/pause"): RUNNERS,
    ("POST", "/rollouts/{rollout}/resume"): RUNNERS,
    ("POST", "/rollouts/{rollout}/promote"): RUNNERS,
    ("POST", "/rollouts/{rollout}/abort"): RUNNERS,
    ("POST", "/rollouts/{rollout}/close"): RUNNERS,
    ("GET", "/policies/active"): READERS,
    ("POST", "/policies/check"): RUNNERS,
    ("GET", "/simulations"): RUNNERS,
    ("POST", "/simulations"): RUNNERS,
    ("POST", "/simulations/cancel"): RUNNERS,
    ("GET", "/policies"): READERS,
    ("POST", "/policies"): ADMINS,
    ("POST", "/policies/rollback"): ADMINS,
    ("GET", "/policies/versions"): READERS,
    ("GET", "/policies/versions/{version}"): READERS,
    ("GET", "/gateway"): READERS,
    ("GET", "/live"): READERS,
    ("GET", "/dashboards"): READERS,
    ("GET", "/dashboards/{board}/choices"): READERS,
    ("GET", "/dashboards/{board}/panels/{panel}"): READERS,
    ("POST", "/gateway/reload"): RUNNERS,
    ("POST", "/gateway/stop"): RUNNERS,
    ("GET", "/scaling"): READERS,
    ("GET", "/scaling/{pool}/hours"): READERS,
    ("POST", "/backends"): RUNNERS,
    ("POST", "/backends/{backend_id}/drain"): RUNNERS,
    ("POST", "/backends/{backend_id}/resume"): RUNNERS,
    ("DELETE", "/backends/{backend_id}"): RUNNERS,
}

MAY_GRANT: Final[Mapping[Role, frozenset[Role]]] = {
    OWNER: EVERYBODY,
    ADMIN: frozenset({OPERATOR, BILLING, AUDITOR, TENANT_ADMIN}),
    TENANT_ADMIN: frozenset({TENANT_ADMIN}),
}
"""Roles that a caller with a role may give to a key. A caller may also change only keys whose roles are all among them, because a
caller who may rotate a key can hold it."""


class TableError(Exception):
    """The routes and the table differ; the message names the difference."""


def check_table(routes: Iterable[RouteKey], table: Mapping[RouteKey, frozenset[Role]] = ROLE_TABLE) -> None:
    """Raises TableError unless every route has a row and every row a route."""
    served = set(routes)
    missing = sorted(served - table.keys())
    unused = sorted(table.keys() - served)
    if missing:
        raise TableError(f"admin API: no row in access.ROLE_TABLE says who may use {', '.join(' '.join(row) for row in missing)}")
    if unused:
        raise TableError(f"admin API: access.ROLE_TABLE has rows without a route: {', '.join(' '.join(row) for row in unused)}")


def may_grant(roles: Iterable[Role], granted: Iterable[Role]) -> bool:
    """Whether a caller with `roles` may give the `granted` roles to a key."""
    grantable = frozenset[Role]().union(*(MAY_GRANT.get(role, frozenset()) for role in roles))
    return grantable.issuperset(granted)


def governs_limit(scope: Scope) -> bool:
    """Whether a tenant-admin may set, raise and remove limits of this scope in his own tenant."""
    # users of a whole tenant are named `acme`, those of a project `acme/web`
    return scope.level in (Level.PROJECT, Level.KEY) or (scope.level is Level.USER and "/" in scope.name)


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
    networks: Networks = ()
    """Where the key may be used from; empty for everywhere."""


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
        """The caller who sends this `Authorization` header. Raises Problem 401, the same for every reason, 403 for a key
        that may not be used from `address`, and whatever `holder` raises."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() == "bearer" and token and len(token) <= MAX_TOKEN_CHARS:
            # digests are compared, so that the time taken reveals neither bytes nor length
            matches = hmac.compare_digest(sha256(token.encode("latin-1", "replace")).digest(), self._digest or bytes(32))
            if matches and self._digest is not None:
                return Principal(BOOTSTRAP, frozenset({Role.OWNER}))
            holder = await self._holder(token, self._wall())
            if holder is not None:
                if not may_come_from(holder.networks, address):
                    self._log_lines.refused(method, path, address)
                    seen = address or "a connection without an address"
                    raise AdminProblem(403, "forbidden", f"This key may not be used from {seen}.")
                return holder
        self._log_lines.refused(method, path, address)
        message = "The admin token is missing or wrong. Send it, or an API key with a role, as 'Authorization: Bearer TOKEN'."
        hint = HOW_TO_ENABLE if self._digest is None else ""
        raise AdminProblem(401, "invalid_admin_token", message + hint, headers={"www-authenticate": "Bearer"})
