"""One request of the admin API: its caller, and the only way to change anything.

A change is one transaction: the read of the current state, the change, its audit row, and the answer stored for a repeated request.
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

from domain.adapters import AdapterStore, RegisteredAdapter
from domain.cache_purges import CachePurgeStore
from domain.clock import WallClock
from domain.identity import KeyId, TenantId
from domain.membership import MemberStore, Owner
from domain.model_revisions import ModelRevisionStore
from domain.policy_versions import PolicyVersions
from domain.rollouts import RolloutBook
from gateway.admin.access import Authenticator, Principal
from gateway.admin.live import LiveFeed
from gateway.admin.problem import AdminProblem, check_match, etag_of, not_found
from gateway.admin.simulations import Simulations
from gateway.answers.inspection import InspectsAnswers
from gateway.dashboards.prometheus import PanelReader
from gateway.fleet.adapters import AdapterRegistry
from gateway.fleet.registry import Registry
from gateway.guards.inspection import JudgesTexts
from gateway.placement.explain import Explaining
from gateway.process.snapshots import Supervision, WorkerSnapshot
from gateway.queue.outlook import ForecastsQueues
from gateway.request_log.reader import RequestLog
from gateway.rollouts.aborts import RolloutAborts
from gateway.sync.policies import Reloading
from gateway.sync.revocations import PendingRevocations
from gateway.telemetry.load_forecasts import LoadForecasts
from gateway.telemetry.scaling_gauges import PoolScaling
from policies.compile import PolicySet
from tenancy.accounts import DirectoryBounds
from tenancy.alerts import AlertStore
from tenancy.audit import Entry, canonical, shadow
from tenancy.directory_ports import DirectoryChange
from tenancy.feedback import FeedbackBook
from tenancy.hold import LimitUsage
from tenancy.journal import AuditLog, Change, Remembered
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Pepper
from tenancy.limits import Group
from tenancy.responses import ResponseKeeper
from tenancy.rights import Role
from tenancy.usage import UsageQueries

MAX_KEY_CHARS: Final = 255
"""Longest Idempotency-Key."""
MAX_AUDITED_CHARS: Final = 512
NONCE_BYTES: Final = 16

log = structlog.get_logger("tidegate.audit", audit=True)

NO_STORE: Final = {"cache-control": "no-store"}


class Done(msgspec.Struct, frozen=True):
    """The outcome of a change: its answer, and its audit row."""

    status: int
    action: str
    """The action in the audit, for instance `key.create`."""
    target: str
    """The target in the audit, for instance `tenant/acme/key/abcdefghij`."""
    shown: Any = None
    """The body of the answer; None for no body."""
    tenant: str = ""
    before: Any = None
    after: Any = None
    secret: str | None = None
    """The text of a new key; it appears in the body as `key`, and nowhere else."""
    effect: Callable[[], None] | None = None
    """A write outside the database, run last inside the transaction: an exception of it rolls everything back."""


@dataclass(frozen=True, slots=True)
class AdminCall:
    """One authorised request."""

    parts: "Parts"
    principal: Principal
    roles: frozenset[Role]
    """The caller's roles that `access.ROLE_TABLE` allows for this route."""
    address: str
    digest: bytes
    """SHA-256 of method, path, query and body."""
    idempotency_key: str | None
    if_match: str | None

    @property
    def tenant(self) -> TenantId | None:
        """The only tenant that is visible to this caller; None when all tenants are."""
        return self.principal.tenant if self.roles == {Role.TENANT_ADMIN} else None

    def own(self, tenant: str) -> TenantId:
        """The tenant's name, if the tenant is visible to this caller. Raises Problem 404."""
        if self.tenant is not None and tenant != self.tenant:
            raise not_found()
        return TenantId(tenant)

    @property
    def _holder(self) -> str:
        """The account whose quota of remembered answers this call uses: per tenant, because a tenant may make any number of keys."""
        return self.principal.actor if self.tenant is None else f"tenant {self.tenant}"

    def check_match(self, shown: Any) -> None:
        """Raises Problem unless the caller's If-Match names exactly this state."""
        check_match(self.if_match, shown)

    async def change(self, work: "Callable[[Transactions, Entropy], Awaitable[Done]]") -> Response:
        """Run `work`, write its audit row and answer, all in one transaction that any exception rolls back.

        A POST repeated with the same Idempotency-Key gets the remembered answer, and `work` is not run again.
        """
        key = None if self.idempotency_key is None else sha256(self.idempotency_key.encode()).digest()
        async with self.parts.change() as books:
            if key is not None:
                remembered = await books.change.remembered(self.principal.actor, key)
                if remembered is not None:
                    return self._replayed(remembered)
            nonce = self.parts.entropy(NONCE_BYTES)
            done = await work(books, self.parts.entropy(ENTROPY_BYTES) if key is None else self._seeded(nonce))
            await books.change.write_down(self._entry(done))
            etag = "" if done.shown is None or done.status == 202 else etag_of(done.shown)
            if key is not None:
                body = done.shown
                if done.secret is not None:
                    body = {**done.shown, "key": shadow(self.parts.pepper.secret, done.secret.encode())}
                text = "" if body is None else canonical(body)
                remembered = Remembered(self.digest, done.status, text, etag, b"" if done.secret is None else nonce)
                await books.change.remember(self.principal.actor, self._holder, key, remembered)
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
        """Random bytes for a new key that a repeated request derives again.

        The derivation needs the Idempotency-Key, of which only a digest is stored; database and pepper alone do not suffice.
        """
        fields = (self.principal.actor.encode(), (self.idempotency_key or "").encode(), self.digest, nonce)
        message = b"tidegate idempotent key v1" + b"".join(b"%d:%b" % (len(field), field) for field in fields)
        return hmac.digest(self.parts.pepper.secret, message, "sha512")[:ENTROPY_BYTES]

    def _replayed(self, stored: Remembered) -> Response:
        if not hmac.compare_digest(stored.request, self.digest):
            message = "This Idempotency-Key was used for another request within a day; take a new one."
            raise AdminProblem(422, "idempotency_key_reused", message, "idempotency-key")
        shown: Any = msgspec.json.decode(stored.body) if stored.body else None
        if stored.nonce:
            text = self.parts.text_of(KeyId(shown["id"]), self._seeded(stored.nonce))
            if shadow(self.parts.pepper.secret, text.encode()) != shown["key"]:
                raise AdminProblem(
                    409, "secret_gone", "It was done, but the key cannot be shown again: the pepper was changed. Rotate the key."
                )
            shown["key"] = text
        return answer(stored.status, shown, stored.etag, {"idempotency-replayed": "true"})


Entropy = bytes
"""Random bytes for a new key; `ENTROPY_BYTES` of them."""


class Transactions(Protocol):
    """The stores that take part in one transaction."""

    @property
    def change(self) -> Change:
        """Writes audit rows and remembered answers."""
        ...

    @property
    def members(self) -> MemberStore:
        """Registered backends."""
        ...

    @property
    def adapters(self) -> AdapterStore:
        """Registered adapters."""
        ...

    @property
    def models(self) -> ModelRevisionStore:
        """The registry of models."""
        ...

    @property
    def purges(self) -> CachePurgeStore:
        """Purges of the answer cache."""
        ...

    @property
    def responses(self) -> ResponseKeeper:
        """Stored Responses."""
        ...

    @property
    def rollouts(self) -> RolloutBook:
        """Rollouts."""
        ...

    @property
    def policies(self) -> PolicyVersions:
        """Versions of the policies that the database owns."""
        ...

    @property
    def directory(self) -> DirectoryChange:
        """Organisations, tenants, projects, keys, limits and prices."""
        ...


@dataclass(frozen=True, slots=True)
class DatabasePolicies:
    """Policies that the database owns."""

    reading: Callable[[], AbstractAsyncContextManager[PolicyVersions]]
    """Opens the policy versions for reading. Raises JournalAway."""
    compiled: Callable[[Mapping[str, str]], PolicySet]
    """Compiles policy files against this gateway's settings. Raises `policies.yaml.problems.ConfigError`."""
    refresh: Callable[[], Awaitable[None]]
    """Makes this gateway follow the newest version at once."""


@dataclass(frozen=True, slots=True)
class PolicyFiles:
    """The policy files that workers read, whoever owns them."""

    folder: str
    """Where they are on the gateway's machine."""
    texts: Callable[[], Mapping[str, str]]
    """Reads the files, by file name. Raises OSError, UnicodeDecodeError and `policies.yaml.problems.ConfigError`."""
    compiled: Callable[[Mapping[str, str]], PolicySet]
    """Compiles policy files against this gateway's settings. Raises `policies.yaml.problems.ConfigError`."""


class GatewayProcesses(Protocol):
    """The processes of the gateway that the API belongs to."""

    accept_s: float
    grace_s: float
    counters: str
    """Kind of the counter store."""

    def supervision(self) -> Supervision | None:
        """The state that the supervisor wrote last; None when it cannot be read."""
        ...

    async def workers(self) -> list[WorkerSnapshot]:
        """The workers that answer."""
        ...

    def unapplied(self) -> list[str]:
        """Settings that were changed and that no reload takes up, in words."""
        ...

    async def refusal(self, *, new_start: bool) -> str:
        """Why new processes could not start with the settings file and its secrets as they are now; empty when they could.

        Args:
            new_start: whether the first process is replaced as well.
        """
        ...

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to the supervisor."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The collaborators of the API; built by `gateway/wiring/admin.py`.

    Args:
        change: opens a transaction over every store. Raises `tenancy.journal.JournalAway`.
        audit: the audit chain, for readers.
        reading: opens the directory for reading. Raises the same.
        id_of: the id of a new key from random bytes.
        text_of: the text of a key from its id and random bytes.
        limit_states: reads the counters of a group of limits. Raises `tenancy.ports.CountersAway`.
        usage: queries over usage. Raises `tenancy.usage.LedgerAway`.
        adapters: the adapters of the settings.
        adapter_registry: checks and writes registrations of adapters.
        registered_adapters: opens the registered adapters for reading. Raises JournalAway.
        models: opens the registry of models for reading. Raises JournalAway.
        explaining: asks workers about their routing decisions.
        reloading: makes workers read their policies again.
        kept: asks workers about kept answers.
        rollouts: opens rollouts for reading. Raises JournalAway.
        pools: the pools of the settings, each with the names of its adapters.
        announce: passes on a change of a rollout once it is committed; does not block.
        entropy: gives so many random bytes.
        alerts: budget alerts. Raises AlertsAway.
        feedback: ratings of answers. Raises FeedbackAway.
    """

    authenticator: Authenticator
    change: Callable[[], AbstractAsyncContextManager[Transactions]]
    reading: Callable[[], AbstractAsyncContextManager[DirectoryChange]]
    audit: AuditLog
    pepper: Pepper
    id_of: Callable[[bytes], KeyId]
    text_of: Callable[[KeyId, bytes], str]
    entropy: Callable[[int], bytes]
    wall: WallClock
    registry: Registry
    seen: Callable[[], Awaitable[Mapping[str, Owner]]]
    """The backends that workers know, with their owners."""
    limit_states: Callable[[Group], Awaitable[list[LimitUsage]]]
    usage: UsageQueries
    adapters: Sequence[RegisteredAdapter]
    adapter_registry: AdapterRegistry
    registered_adapters: Callable[[], AbstractAsyncContextManager[AdapterStore]]
    models: Callable[[], AbstractAsyncContextManager[ModelRevisionStore]]
    pinned: Mapping[str, Mapping[str, str]]
    """The digests with which pools of the settings are pinned to a revision, by pool, by the revision's reference."""
    bounds: DirectoryBounds
    """How many keys and projects one tenant may have."""
    explaining: Explaining
    reloading: Reloading
    kept: InspectsAnswers
    rollouts: Callable[[], AbstractAsyncContextManager[RolloutBook]]
    pools: Mapping[str, Sequence[str]]
    prompts: Callable[[], Collection[str]]
    """The existing versions of prompts, as `id@version`; reads files."""
    announce: Callable[[Mapping[str, Any]], None]
    alerts: AlertStore
    feedback: FeedbackBook
    policies: DatabasePolicies | None = None
    """Set where the database owns the policies; None where files do."""
    known_key: Callable[[KeyId], KeyRecord | None] = lambda _key_id: None
    """The key of an id in the last known directory, for outages of the database."""
    pending: PendingRevocations | None = None
    """Keeps revocations that the database cannot take; None where the API belongs to no gateway."""
    former_pepper: Pepper | None = None
    """The pepper of before, which digests may be of."""
    aborts: RolloutAborts | None = None
    """Ends rollouts that the database cannot write; None where the API belongs to no gateway."""
    gateway: GatewayProcesses | None = None
    """None where the API belongs to no gateway."""
    live: LiveFeed | None = None
    """None where the API belongs to no gateway."""
    policy_files: PolicyFiles | None = None
    """None where the API belongs to no gateway."""
    simulations: Simulations | None = None
    """None where the API belongs to no gateway."""
    queues: ForecastsQueues | None = None
    """Asks workers what the next request would meet; None where the API belongs to no gateway."""
    guards: JudgesTexts | None = None
    """Asks workers what guard rules say of a text; None where the API belongs to no gateway."""
    requests: RequestLog | None = None
    """The request log; None where the API belongs to no gateway."""
    scaling: PoolScaling | None = None
    """How many backends the pools should have; None where the API belongs to no gateway."""
    forecasts: LoadForecasts | None = None
    """The load of pools in the past; None where no pool has a section `predict`."""
    charts: PanelReader | None = None
    """Asks Prometheus for the panels of the dashboards; None where the settings name none."""
    docs_url: str = ""
    """The address that pages in messages are below; empty for their paths."""


def answer(status: int, shown: Any, etag: str = "", headers: dict[str, str] | None = None) -> Response:
    """A JSON answer that caches must not store; without a body when `shown` is None."""
    out = {**NO_STORE, **(headers or {}), **({"etag": etag} if etag else {})}
    if shown is None:
        return Response(status_code=status, headers=out)
    return Response(msgspec.json.encode(shown), status, out, "application/json")


def call_of(request: Request) -> AdminCall:
    """The call that the guard built."""
    call: AdminCall = request.state.call
    return call
