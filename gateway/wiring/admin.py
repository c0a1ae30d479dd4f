"""Builds the collaborators of the admin API; called in the admin process, inside its event loop.

`api_run_for` builds them all as one `AdminApiRun`, with the background loops that keep keys and tokens as fresh as on the data port.
`StoreTransactions` opens transactions in which every SQL store takes part, `id_of` and `text_of` make the texts of new keys, and
`KeyHolders` looks up the holder of a credential: a key with roles, or a JWT whose issuer gives roles.

Size: every collaborator of the admin API is built here, a line or two for each.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog
from fastapi import FastAPI

from domain.adapters import AdapterStore
from domain.cache_purges import CachePurgeStore
from domain.faults import Fault
from domain.identity import Caller, KeyId
from domain.membership import MemberStore, Owner
from domain.membership import Role as EngineRole
from domain.model_revisions import ModelRevisionStore
from domain.policy_versions import PolicyVersions
from domain.rollouts import RolloutBook
from gateway.admin import Parts, call
from gateway.admin.access import Authenticator, Principal
from gateway.admin.call import DatabasePolicies
from gateway.admin.live import LiveFeed, live_workers
from gateway.admin.problem import RETRY, AdminProblem
from gateway.admin.simulations import Simulations
from gateway.alerts.watch import AlertCounts, AlertWatch
from gateway.answers.inspection import WorkersAnswers
from gateway.auth.jwt import JwtVerifier
from gateway.config.load import ConfigError, Settings
from gateway.config.pools import pinned_of
from gateway.config.read_secrets import HookSecrets, read_former_pepper
from gateway.config.secrets import SecretError
from gateway.console.provider_routes import ProviderAccess
from gateway.dashboards.prometheus import HttpPrometheus, PanelReader
from gateway.fleet.adapters import AdapterRegistry, adapters_of
from gateway.fleet.view import fleet_seen
from gateway.guards.inspection import WorkersGuards
from gateway.placement.explain import WorkersExplain
from gateway.process.background import kept_up
from gateway.process.own_loop import in_own_loop
from gateway.process.snapshots import Supervision, WorkerSnapshot
from gateway.process.sockets import shown_address
from gateway.process.supervisor import WorkerSlot
from gateway.process.worker_link import collect, supervision
from gateway.queue.outlook import WorkersQueues
from gateway.rollouts.aborts import RolloutAborts
from gateway.rollouts.hook import HookCounts, RolloutHook
from gateway.rollouts.keeper import KeeperState, RolloutKeeper
from gateway.rollouts.watch import WorkersRollouts
from gateway.signed_webhook import post_message
from gateway.sync.policies import WorkersReload
from gateway.sync.policy_copy import PolicyCopy
from gateway.sync.responses import ResponseSweep
from gateway.sync.revocations import RevocationWriter
from gateway.telemetry.file_gauges import FigureWatch
from gateway.telemetry.headroom import HeadroomWatch
from gateway.telemetry.judge_gauges import AgreementWatch
from gateway.telemetry.load_forecasts import LoadForecasts
from gateway.telemetry.rollout_gauges import RolloutFigures
from gateway.telemetry.scaling_gauges import PoolScaling
from gateway.wiring.auth import provider_sign_in_for, token_gate_for
from gateway.wiring.fleet import registry_for
from gateway.wiring.limits import CounterView
from gateway.wiring.request_log import request_log_for
from gateway.wiring.stores import (
    directory_watch_for,
    kept_directory_unix,
    pending_aborts_for,
    pending_revocations_for,
    policy_files_for,
    stores_on,
)
from policies.prompts.folder import names_in
from routing.forecast import PredictSettings
from routing.scaling import RoleScaleSettings
from tenancy.accounts import Contents
from tenancy.directory import Directory
from tenancy.directory_ports import DirectoryChange
from tenancy.journal import Change
from tenancy.jwt import JwtOutcome, looks_like_token
from tenancy.keys import SECRET_BYTES, KeyRecord, Pepper, mint, mint_again
from tenancy.limits import METERS_BY_NAME, Limit
from tenancy.responses import ResponseKeeper
from tenancy.rights import KeyScope, Role
from tenancy.stores.sql import (
    SqlAdapterStore,
    SqlAlerts,
    SqlBatches,
    SqlCachePurges,
    SqlDirectory,
    SqlFeedback,
    SqlJournal,
    SqlMemberStore,
    SqlModelRevisions,
    SqlPolicyVersions,
    SqlResponseKeeper,
    SqlRolloutStore,
    SqlUsageQueries,
    open_engine,
)
from tenancy.stores.sql.transaction import SqlConnections

T = TypeVar("T")

KEY_ENVIRONMENT: Final = "live"
"""The environment in every key's text."""


@dataclass(frozen=True, slots=True)
class _OpenTransaction:
    change: Change
    members: MemberStore
    adapters: AdapterStore
    models: ModelRevisionStore
    purges: CachePurgeStore
    responses: ResponseKeeper
    rollouts: RolloutBook
    policies: PolicyVersions
    directory: DirectoryChange


class StoreTransactions:
    """Opens the transactions that `gateway.admin.call.Parts` asks for."""

    def __init__(self, journal: SqlJournal) -> None:
        self._journal = journal

    def change(self) -> AbstractAsyncContextManager[call.Transactions]:
        """A transaction for changes."""
        return self._change()

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncIterator[call.Transactions]:
        async with self._journal.change() as change, SqlDirectory(change.connections).transaction() as directory:
            on = change.connections
            members, adapters, models, purges = SqlMemberStore(on), SqlAdapterStore(on), SqlModelRevisions(on), SqlCachePurges(on)
            responses, rollouts = SqlResponseKeeper(on, time.time), SqlRolloutStore(on)
            yield _OpenTransaction(change, members, adapters, models, purges, responses, rollouts, SqlPolicyVersions(on), directory)

    def policies(self) -> AbstractAsyncContextManager[PolicyVersions]:
        """A transaction for reading policies."""
        return self._read(SqlPolicyVersions)

    def adapters(self) -> AbstractAsyncContextManager[AdapterStore]:
        """A transaction for reading registered adapters."""
        return self._read(SqlAdapterStore)

    def models(self) -> AbstractAsyncContextManager[ModelRevisionStore]:
        """A transaction for reading the registry of models."""
        return self._read(SqlModelRevisions)

    def rollouts(self) -> AbstractAsyncContextManager[RolloutBook]:
        """A transaction for reading rollouts."""
        return self._read(SqlRolloutStore)

    @contextlib.asynccontextmanager
    async def _read(self, store: Callable[[SqlConnections], T]) -> AsyncIterator[T]:
        async with self._journal.reading() as joined:
            yield store(joined)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[DirectoryChange]:
        """A transaction for reading the directory."""
        async with self._journal.reading() as joined, SqlDirectory(joined).transaction() as directory:
            yield directory


def id_of(entropy: bytes) -> KeyId:
    """The id of a new key, from random bytes."""
    return mint(KEY_ENVIRONMENT, entropy).id


def text_of(key_id: KeyId, entropy: bytes) -> str:
    """The text of the key with this id, from the same random bytes."""
    return mint_again(KEY_ENVIRONMENT, key_id, entropy[:SECRET_BYTES]).text


DATABASE_AWAY: Final = (
    "The database has not answered for a minute, so nobody knows which keys were revoked. Try again; the bootstrap token works."
)
NOT_READ: Final = "No key has been read from the database yet. Try again shortly; the bootstrap token works."
NO_ISSUER: Final = "Tokens cannot be checked right now. Try again shortly."


class KeyHolders:
    """Looks keys and tokens up in the current directory; also a `gateway.sync.directory.DirectoryFollower`.

    Args:
        empty: the directory to begin with; while it is in place, nobody is known and nobody is refused as unknown.
        believes: whether the directory is fresh enough to authenticate admins (`DirectoryWatch.believes_admins`).
        issuers: whether identity providers are configured, whose tokens are accepted.
    """

    def __init__(self, empty: Directory, believes: Callable[[], bool], *, issuers: bool = False) -> None:
        self.directory = empty
        self.tokens: JwtVerifier | None = None
        """Set once issuers were asked."""
        self._empty = empty
        self._believes = believes
        self._issuers = issuers

    async def __call__(self, text: str, now_unix: float) -> Principal | None:
        """The holder, or None for an unknown credential and for one without a role.

        Raises:
            Problem: 503 for every credential before the directory was first read, and once the database has not answered for a
                minute, since keys may have been revoked in the meantime; and 503 for a token whose issuer's keys were never read.
        """
        if self.directory is self._empty:
            raise AdminProblem(503, "store_unavailable", NOT_READ, headers=RETRY)
        if not self._believes():
            raise AdminProblem(503, "store_unavailable", DATABASE_AWAY, headers=RETRY)
        if self._issuers and looks_like_token(text):
            if self.tokens is None:
                raise AdminProblem(503, "identity_unavailable", NO_ISSUER, headers=RETRY)
            try:
                return _with_roles(await self.tokens.authenticate(text, now_unix, self))
            except Fault:
                raise AdminProblem(503, "identity_unavailable", NO_ISSUER, headers=RETRY) from None
        caller = self.directory.keys.authenticate(text, now_unix, KeyScope.ADMIN)
        if caller is None:
            return None
        roles = self.directory.grant(caller.key_id, now_unix).holder.roles
        return Principal(f"key {caller.key_id}", roles, caller.tenant, caller.networks)

    async def known(self, text: str, now_unix: float) -> bool:
        """Whether a token of an identity provider is valid and names a tenant and project of this gateway, with or without a role."""
        if self.tokens is None or not looks_like_token(text):
            return False
        try:
            return await self.tokens.authenticate(text, now_unix, self) is not None
        except Fault:
            return False


def _with_roles(caller: Caller | None) -> Principal | None:
    if caller is None or not caller.roles:
        return None
    return Principal(caller.key_id, frozenset(map(Role, caller.roles)), caller.tenant)


SEEN_WITHIN_S: Final = 0.5
"""Longest wait for a worker's list of backends."""


log = structlog.get_logger("tidegate.admin")


STOP_AND_START: Final = "stop the gateway and start it"
HOT_RESTART: Final = "send SIGUSR2 (tidegate reload --code), or stop the gateway and start it"
HOW_TO_APPLY: Final = {
    "data.bind": STOP_AND_START,
    "admin.bind": STOP_AND_START,
    "workers": f"for more workers {HOT_RESTART}; for fewer, {STOP_AND_START}",
    "drain.accept_s": HOT_RESTART,
    "drain.grace_s": HOT_RESTART,
}
"""How the settings are taken up that a rolling restart (SIGHUP) leaves as they are."""


class SettingsCheck(Protocol):
    """Reads the settings file and its secrets as a start would."""

    def __call__(self, *, new_start: bool) -> None:
        """Raises ConfigError or SecretError where new processes would not start.

        Args:
            new_start: whether the first process is replaced as well (SIGUSR2).
        """
        ...


class OwnProcesses:
    """The processes of this gateway, by their run directory; a `gateway.admin.call.GatewayProcesses`."""

    def __init__(self, settings: Settings, run_dir: Path, check: SettingsCheck) -> None:
        self._run_dir = run_dir
        self._check = check
        self._settings = settings
        self.accept_s = settings.drain.accept_s
        self.grace_s = settings.drain.grace_s
        self.counters = settings.counter_url.kind.value

    def supervision(self) -> Supervision | None:
        """The state that the supervisor wrote last."""
        return supervision(self._run_dir)

    async def workers(self) -> list[WorkerSnapshot]:
        """The workers that answer."""
        return await collect(self._run_dir, SEEN_WITHIN_S, with_metrics=True)

    def unapplied(self) -> list[str]:
        """What the settings that this process has read say otherwise than the supervisor does, in words."""
        published = self.supervision()
        if published is None or published.plan is None:
            return []
        wanted = (
            ("data.bind", shown_address(*self._settings.data.bind_address), published.plan.data_bind),
            ("admin.bind", shown_address(*self._settings.admin.bind_address), published.plan.admin_bind),
            ("workers", self._settings.workers, published.plan.workers),
            ("drain.accept_s", self.accept_s, published.plan.accept_s),
            ("drain.grace_s", self.grace_s, published.plan.grace_s),
        )
        return [
            f"{name} is {now} in the settings file, and the running gateway keeps {kept}: {HOW_TO_APPLY[name]}"
            for name, now, kept in wanted
            if now != kept
        ]

    async def refusal(self, *, new_start: bool) -> str:
        """Why new processes could not start with the settings file and its secrets as they are now; empty when they could."""
        try:
            await asyncio.to_thread(self._check, new_start=new_start)
        except (ConfigError, SecretError) as error:
            return str(error)
        return ""

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to the supervisor."""
        os.kill(pid, number)


class AdminApiRun:
    """The admin API's collaborators and their background loops; keys and tokens are as fresh as on the data port."""

    def __init__(
        self, settings: Settings, slot: WorkerSlot, pepper: Pepper, token: str | None, hook_secrets: HookSecrets, check: SettingsCheck
    ) -> None:
        engine = open_engine(settings.sql_url)
        journal = SqlJournal(engine, time.time)
        books = StoreTransactions(journal)
        self._watch = directory_watch_for(settings, stores_on(engine), pepper)
        self._counters = CounterView(settings, Path(slot.run_dir))
        self._run_dir = Path(slot.run_dir)
        self._settings = settings
        self._pending = pending_revocations_for(settings)
        self._writer = RevocationWriter(self._pending, books.change, time.time, partial(kept_directory_unix, settings, pepper))
        self._processes = OwnProcesses(settings, self._run_dir, check)
        self._copy = PolicyCopy(settings.policies_copy, SqlPolicyVersions(engine)) if settings.policies_from == "database" else None
        self._holders = KeyHolders(Directory(Contents(), pepper), lambda: self._watch.believes_admins, issuers=bool(settings.auth.jwt))
        self._hook = _hook_for(settings, hook_secrets.rollouts)
        announce: Callable[[Mapping[str, object]], None] = self._hook.tell if self._hook is not None else lambda _message: None
        self._announce = announce
        self.routes: FastAPI | None = None
        self._keeper_state: KeeperState | None = None
        workers = WorkersRollouts(self._run_dir)
        self._aborts = RolloutAborts(
            pending_aborts_for(settings), workers, books.change, time.time, announce, lambda: self.rollouts().keeper.standings
        )
        self._alerts = self._alerts_for(settings, hook_secrets.alerts, SqlAlerts(engine))
        self.files = FigureWatch(SqlBatches(engine), time.time) if settings.files.enabled else None
        measures = settings.judge is not None and settings.judge.agreement_every_days is not None
        self.agreement = AgreementWatch(SqlFeedback(engine)) if measures else None
        self._simulations = Simulations(self._run_dir, time.time, lambda: f"sim_{secrets.token_hex(12)}")
        self._requests = request_log_for(settings, self._run_dir, pepper, SqlCachePurges(engine))
        self.headroom = HeadroomWatch(lambda: self._holders.directory, self._counters.look, time.time)
        flow = provider_sign_in_for(settings, pepper)
        self.provider = None if flow is None else ProviderAccess(flow, lambda token: self._holders.known(token, time.time()))
        self._sweep = ResponseSweep(SqlResponseKeeper(engine, time.time))
        self._charts = _charts_for(settings)
        self._forecasts = _forecasts_for(settings)
        files = policy_files_for(settings)
        self.parts = Parts(
            authenticator=Authenticator(token, self._holders, time.monotonic, time.time),
            change=books.change,
            reading=books.reading,
            audit=journal,
            pepper=pepper,
            former_pepper=read_former_pepper(settings),
            id_of=id_of,
            text_of=text_of,
            entropy=secrets.token_bytes,
            wall=time.time,
            registry=registry_for(settings, slot),
            seen=self._seen,
            limit_states=self._counters.look,
            usage=SqlUsageQueries(engine),
            adapters=adapters_of(settings.pools),
            adapter_registry=AdapterRegistry(settings.pools, time.time),
            registered_adapters=books.adapters,
            models=books.models,
            pinned=pinned_of(settings.pools),
            bounds=settings.tenants.bounds(),
            explaining=WorkersExplain(Path(slot.run_dir), settings.explanations_dir),
            reloading=WorkersReload(Path(slot.run_dir)),
            kept=WorkersAnswers(Path(slot.run_dir)),
            rollouts=books.rollouts,
            prompts=lambda: names_in(settings.prompts_dir),
            pools={pool.name: [lora.name for lora in pool.loras] for pool in settings.pools},
            announce=announce,
            policies=None if self._copy is None else DatabasePolicies(books.policies, files.compiled, self._copy.look),
            gateway=self._processes,
            known_key=self._known_key,
            alerts=SqlAlerts(engine),
            feedback=SqlFeedback(engine),
            pending=self._pending,
            aborts=self._aborts,
            live=LiveFeed(partial(live_workers, self._run_dir), time.time),
            policy_files=files,
            simulations=self._simulations,
            queues=WorkersQueues(self._run_dir),
            guards=WorkersGuards(self._run_dir),
            requests=self._requests.log if self._requests is not None else None,
            scaling=_scaling_for(settings, self._forecasts),
            forecasts=self._forecasts,
            charts=self._charts,
            docs_url=settings.public_docs,
        )

    async def run(self) -> None:
        """Run the background loops until cancelled; keys with roles are known after the first refresh of the directory."""
        for sentence in self._processes.unapplied():
            log.warning("a changed setting is not taken up by a reload", setting=sentence)
        await self._counters.start()
        try:
            self._holders.directory = await self._watch.load()
        except Exception as error:  # noqa: BLE001 - neither a database nor a kept directory: the loop below goes on asking
            log.warning("no directory yet", error=type(error).__name__)
        async with asyncio.TaskGroup() as group:
            rollouts = partial(self._keep_rollouts, asyncio.get_running_loop())
            group.create_task(kept_up(partial(self._watch.run, self._holders), "keys"))
            group.create_task(kept_up(self._writer.run, "revocations"))
            group.create_task(kept_up(self._aborts.run, "aborts of rollouts"))
            group.create_task(kept_up(self._sweep.run, "stored responses"))
            group.create_task(kept_up(lambda: in_own_loop(rollouts, "rollouts"), "rollouts"))
            optional = ((self._hook, "webhook"), (self._alerts, "alerts"), (self.files, "figures of files"), (self._copy, "policies"))
            group.create_task(kept_up(self.headroom.run, "headroom"))
            for work, name in (
                *optional,
                (self._requests, "requests"),
                (self.agreement, "agreement of the judge"),
                (self._forecasts, "forecasts"),
            ):
                if work is not None:
                    group.create_task(kept_up(work.run, name))
            # beside the loops above, which keep keys current while issuers are slow to answer
            group.create_task(kept_up(self._follow_issuers, "issuers"))

    async def _follow_issuers(self) -> None:
        tokens = self._holders.tokens = await token_gate_for(self._settings, _log_token, self._run_dir)
        if tokens is not None:
            async with asyncio.TaskGroup() as group:
                for loop in tokens.loops():
                    group.create_task(loop)

    def _known_key(self, key_id: KeyId) -> KeyRecord | None:
        return self._holders.directory.key(key_id)

    def rollouts(self) -> RolloutFigures:
        """The state of rollouts and of the webhook, for metrics."""
        state = self._keeper_state or KeeperState()
        return RolloutFigures(state, HookCounts() if self._hook is None else self._hook.counts)

    def alerts(self) -> AlertCounts | None:
        """What became of budget alerts, for metrics; None where nobody is told."""
        return None if self._alerts is None else self._alerts.counts

    def _limits_now(self) -> Iterator[tuple[str, Limit]]:
        return self._holders.directory.calendar_limits()

    def _alerts_for(self, settings: Settings, secret: bytes | None, store: SqlAlerts) -> AlertWatch | None:
        written = settings.alerts
        if written.webhook is None or secret is None:
            return None
        return AlertWatch(
            store,
            self._limits_now,
            self._counters.look,
            partial(post_message, written.webhook.url),
            secret,
            percents=sorted(set(written.at_percent)),
            meters=frozenset(METERS_BY_NAME[name] for name in written.meters),
            every_s=written.look_every_s,
            wall=time.time,
        )

    async def _keep_rollouts(self, main: asyncio.AbstractEventLoop) -> None:
        """Decide on rollouts until cancelled, in a loop of its own and on connections of its own (`gateway.process.own_loop`).

        Args:
            main: the loop that posts webhooks.
        """

        def announce(message: Mapping[str, object]) -> None:
            main.call_soon_threadsafe(self._announce, message)

        engine = open_engine(self._settings.sql_url)
        books = StoreTransactions(SqlJournal(engine, time.time))
        keeper = RolloutKeeper(
            SqlRolloutStore(engine),
            books.change,
            time.time,
            time.monotonic,
            announce,
            WorkersRollouts(self._run_dir),
        )
        self._keeper_state = keeper.state
        try:
            await keeper.run()
        finally:
            await engine.dispose()

    async def close(self) -> None:
        """Close the connections to the database and the counters, and end a running simulation."""
        await self._simulations.close()
        if self._requests is not None:
            await self._requests.close()
        if self._charts is not None:
            await self._charts.close()
        if self._forecasts is not None:
            await self._forecasts.close()
        await self._counters.close()
        await self._watch.close()

    async def _seen(self) -> Mapping[str, Owner]:
        snapshots = await collect(self._run_dir, SEEN_WITHIN_S, with_metrics=False)
        return {b.backend: b.source for b in fleet_seen(snapshots) if b.source}


def _hook_for(settings: Settings, secret: bytes | None) -> RolloutHook | None:
    webhook = settings.rollouts.webhook
    return None if webhook is None or secret is None else RolloutHook(partial(post_message, webhook.url), secret, time.time)


def _charts_for(settings: Settings) -> PanelReader | None:
    written = settings.console
    return None if written.prometheus_url is None else PanelReader(HttpPrometheus(written.prometheus_url), written.scrape_s, time.time)


def _forecasts_for(settings: Settings) -> LoadForecasts | None:
    predicts: dict[tuple[str, EngineRole], PredictSettings] = {}
    for pool in settings.pools:
        written: dict[EngineRole, RoleScaleSettings] = pool.scale_roles or ({} if pool.scale is None else {"both": pool.scale})
        predicts |= {(pool.name, role): scale.predict for role, scale in written.items() if scale.predict is not None}
    url = settings.console.prometheus_url
    return LoadForecasts(predicts, HttpPrometheus(url), time.time) if predicts and url is not None else None


def _scaling_for(settings: Settings, forecasts: LoadForecasts | None) -> PoolScaling:
    pools = {pool.name: pool.scale for pool in settings.pools}
    by_role = {
        pool.name: {role: written.bounds for role, written in pool.scale_roles.items()}
        for pool in settings.pools
        if pool.disaggregation is not None
    }
    if forecasts is None:
        return PoolScaling(pools, time.monotonic, by_role)
    return PoolScaling(pools, time.monotonic, by_role, forecasts.growth)


def _log_token(issuer: str, outcome: JwtOutcome) -> None:
    log.debug("token", issuer=issuer, outcome=outcome.value)


def api_run_for(
    settings: Settings, slot: WorkerSlot, pepper: Pepper, token: str | None, hook_secrets: HookSecrets, check: SettingsCheck
) -> AdminApiRun:
    """The admin API of this process."""
    return AdminApiRun(settings, slot, pepper, token, hook_secrets, check)
