"""One request of the admin API: who asks, and the one way to change anything.

A change is one transaction: the look at what is there, the change, its audit row, and the answer kept for a repeated request.
"""

import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol

import msgspec
import structlog
from fastapi import Request
from fastapi.responses import Response

from domain.clock import WallClock
from domain.identity import KeyId, TenantId
from domain.membership import MemberStore, Owner
from domain.policy_versions import PolicyVersions
from domain.rollouts import RolloutBook
from gateway.fleet.registry import Registry
from gateway.http.admin_api.etags import check_match, etag_of
from gateway.http.admin_api.principal import Authenticator, Principal
from gateway.http.admin_api.problem import Problem, not_found
from gateway.placing.explaining import Explaining
from gateway.policy_watch import Reloading
from policies.compile import PolicySet
from tenancy.accounts import Bounds
from tenancy.audit import Entry, canonical, shadow
from tenancy.directory_ports import DirectoryChange
from tenancy.hold import LineState
from tenancy.journal import AuditLog, Change, Remembered
from tenancy.keys import ENTROPY_BYTES, Pepper
from tenancy.limits import Group
from tenancy.rights import Role
from tenancy.usage import UsageQueries

MAX_KEY_CHARS: Final = 255
"""Of an Idempotency-Key."""
MAX_AUDITED_CHARS: Final = 512
NONCE_BYTES: Final = 16

log = structlog.get_logger("tidegate.audit", audit=True)

NO_STORE: Final = {"cache-control": "no-store"}


class Done(msgspec.Struct, frozen=True):
    """What was done: how it is answered, and how it is written down."""

    status: int
    action: str
    """For the audit, `key.create`."""
    target: str
    """For the audit, `tenant/acme/key/abcdefghij`."""
    shown: Any = None
    """The body; None for none."""
    tenant: str = ""
    before: Any = None
    after: Any = None
    secret: str | None = None
    """The text of a new key: goes into the body as `key`, and nowhere else."""
    effect: Callable[[], None] | None = None
    """What is written outside the database, once everything else is: what it raises takes all of it back."""


@dataclass(frozen=True, slots=True)
class Call:
    """One authorised request."""

    parts: "Parts"
    principal: Principal
    roles: frozenset[Role]
    """Those of the caller's roles that the table lets do this."""
    address: str
    digest: bytes
    """SHA-256 of method, path, query and body."""
    idempotency_key: str | None
    if_match: str | None

    @property
    def tenant(self) -> TenantId | None:
        """The only tenant there is for this caller; None when all are."""
        return self.principal.tenant if self.roles == {Role.TENANT_ADMIN} else None

    def own(self, tenant: str) -> TenantId:
        """A tenant's name, if it exists for this caller. Raises Problem 404."""
        if self.tenant is not None and tenant != self.tenant:
            raise not_found()
        return TenantId(tenant)

    @property
    def _holder(self) -> str:
        """Whose share of what is remembered this call takes: a tenant makes itself as many keys as it likes."""
        return self.principal.actor if self.tenant is None else f"tenant {self.tenant}"

    def check_match(self, shown: Any) -> None:
        """Raises Problem unless the caller has seen exactly this."""
        check_match(self.if_match, shown)

    async def change(self, work: "Callable[[Books, Entropy], Awaitable[Done]]") -> Response:
        """Do it, write it down, and answer; nothing of it when anything is raised. A repeated POST is answered again."""
        key = None if self.idempotency_key is None else sha256(self.idempotency_key.encode()).digest()
        async with self.parts.change() as books:
            if key is not None:
                kept = await books.change.remembered(self.principal.actor, key)
                if kept is not None:
                    return self._again(kept)
            nonce = self.parts.entropy(NONCE_BYTES)
            done = await work(books, self.parts.entropy(ENTROPY_BYTES) if key is None else self._seeded(nonce))
            await books.change.write_down(self._entry(done))
            etag = "" if done.shown is None or done.status == 202 else etag_of(done.shown)
            if key is not None:
                body = done.shown
                if done.secret is not None:
                    body = {**done.shown, "key": shadow(self.parts.pepper.secret, done.secret.encode())}
                said = "" if body is None else canonical(body)
                kept = Remembered(self.digest, done.status, said, etag, b"" if done.secret is None else nonce)
                await books.change.remember(self.principal.actor, self._holder, key, kept)
            if done.effect is not None:
                done.effect()
        log.info(done.action, actor=self.principal.actor, address=self.address, target=done.target)
        return answer(done.status, done.shown if done.secret is None else {**done.shown, "key": done.secret}, etag)

    def _entry(self, done: Done) -> Entry:
        by = next(role for role in Role if role in self.roles)
        return Entry(
            actor=self.principal.actor,
            role=by.value,
            address=self.address[:64],
            action=done.action,
            target=done.target[:MAX_AUDITED_CHARS],
            tenant=done.tenant,
            before="" if done.before is None else canonical(done.before),
            after="" if done.after is None else canonical(done.after),
        )

    def _seeded(self, nonce: bytes) -> bytes:
        """Random bytes for a new key that can be had again from what the caller sends, and from the database and the pepper not
        alone: of the Idempotency-Key only a digest is kept."""
        fields = (self.principal.actor.encode(), (self.idempotency_key or "").encode(), self.digest, nonce)
        said = b"tidegate idempotent key v1" + b"".join(b"%d:%b" % (len(field), field) for field in fields)
        return hmac.digest(self.parts.pepper.secret, said, "sha512")[:ENTROPY_BYTES]

    def _again(self, kept: Remembered) -> Response:
        if not hmac.compare_digest(kept.request, self.digest):
            said = "This Idempotency-Key was used for another request within a day; take a new one."
            raise Problem(422, "idempotency_key_reused", said, "idempotency-key")
        shown: Any = msgspec.json.decode(kept.body) if kept.body else None
        if kept.nonce:
            text = self.parts.text_of(KeyId(shown["id"]), self._seeded(kept.nonce))
            if shadow(self.parts.pepper.secret, text.encode()) != shown["key"]:
                raise Problem(409, "secret_gone", "It was done, but the key cannot be shown again: the pepper was changed. Rotate the key.")
            shown["key"] = text
        return answer(kept.status, shown, kept.etag, {"idempotency-replayed": "true"})


Entropy = bytes
"""Random bytes for a new key; `ENTROPY_BYTES` of them."""


class Books(Protocol):
    """What one transaction reaches."""

    @property
    def change(self) -> Change:
        """Writes down."""
        ...

    @property
    def members(self) -> MemberStore:
        """Registered backends."""
        ...

    @property
    def rollouts(self) -> RolloutBook:
        """Rollouts."""
        ...

    @property
    def policies(self) -> PolicyVersions:
        """Policies that the database owns."""
        ...

    @property
    def directory(self) -> DirectoryChange:
        """Organisations, tenants, projects, keys, limits and prices."""
        ...


@dataclass(frozen=True, slots=True)
class DatabasePolicies:
    """Policies that the database owns."""

    reading: Callable[[], AbstractAsyncContextManager[PolicyVersions]]
    """Opens them to read in. Raises JournalAway."""
    compiled: Callable[[Mapping[str, str]], PolicySet]
    """What files mean on this gateway. Raises `policies.problems.ConfigError`."""
    look: Callable[[], Awaitable[None]]
    """Has this gateway follow what was changed at once."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the API works with; built by `gateway/admin_wiring.py`.

    Args:
        change: opens a transaction of the books. Raises `tenancy.journal.JournalAway`.
        audit: the chain, for readers.
        reading: opens the directory to read in. Raises the same.
        id_of: the id of a new key from random bytes.
        text_of: the text of a key from its id and random bytes.
        look: how the limits of a group stand. Raises `tenancy.ports.CountersAway`.
        usage: what was used. Raises `tenancy.usage.LedgerAway`.
        adapters: the adapters of the settings.
        explaining: what workers know of their decisions.
        reloading: has workers read their policies.
        rollouts: opens rollouts to read in. Raises JournalAway.
        pools: the pools of the settings, each with the names of its adapters.
        tell: passes on what was done to a rollout, after it is written; at once back.
        entropy: random bytes.
    """

    authenticator: Authenticator
    change: Callable[[], AbstractAsyncContextManager[Books]]
    reading: Callable[[], AbstractAsyncContextManager[DirectoryChange]]
    audit: AuditLog
    pepper: Pepper
    id_of: Callable[[bytes], KeyId]
    text_of: Callable[[KeyId, bytes], str]
    entropy: Callable[[int], bytes]
    wall: WallClock
    registry: Registry
    seen: Callable[[], Awaitable[Mapping[str, Owner]]]
    """The backends workers know, with their owners."""
    look: Callable[[Group], Awaitable[list[LineState]]]
    usage: UsageQueries
    adapters: Sequence[Mapping[str, str]]
    bounds: Bounds
    """What one tenant may have at most."""
    explaining: Explaining
    reloading: Reloading
    rollouts: Callable[[], AbstractAsyncContextManager[RolloutBook]]
    pools: Mapping[str, Sequence[str]]
    prompts: Callable[[], Collection[str]]
    """The versions of prompts that there are, `id@version`; reads files."""
    tell: Callable[[Mapping[str, Any]], None]
    policies: DatabasePolicies | None = None
    """Where the database owns the policies."""


def answer(status: int, shown: Any, etag: str = "", headers: dict[str, str] | None = None) -> Response:
    """A JSON answer; nobody may keep it."""
    out = {**NO_STORE, **(headers or {}), **({"etag": etag} if etag else {})}
    if shown is None:
        return Response(status_code=status, headers=out)
    return Response(msgspec.json.encode(shown), status, out, "application/json")


def call_of(request: Request) -> Call:
    """The call that the guard put together."""
    found: Call = request.state.call
    return found
