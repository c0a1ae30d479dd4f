"""Builds the stores in SQL and on this machine's disk: the directory, members, rollouts and policies, usage and its log."""

import asyncio
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.adapters import AdapterStore
from domain.cache_purges import CachePurgeStore
from domain.membership import MemberStore
from domain.model_revisions import ModelRevisionStore
from domain.rollouts import RolloutStore
from gateway.admin.call import PolicyFiles
from gateway.background.runs import BackgroundRuns
from gateway.config.load import Settings
from gateway.config.read_secrets import LOST_PEPPER, read_former_pepper, read_pepper
from gateway.config.secrets import SecretError
from gateway.ledger.bookkeeper import Bookkeeper
from gateway.ledger.writer import UsageWriter
from gateway.placement.decision_log import DecisionLog
from gateway.request.feedback import FeedbackService
from gateway.rollouts.aborts import PendingAborts
from gateway.sync.directory import DirectoryFile, DirectoryWatch
from gateway.sync.policy_copy import PolicyCopy, compiled_from, texts_of
from gateway.sync.revocations import PendingRevocations
from gateway.ticks import next_tick
from gateway.wiring.request_log import check_request_log
from policies.compile import PolicySet
from policies.yaml.problems import ConfigError, Problem
from tenancy.audit import Entry, canonical
from tenancy.background import BackgroundStore
from tenancy.conversations import ConversationStore
from tenancy.directory_ports import DirectorySource
from tenancy.feedback import FeedbackBook
from tenancy.journal import JournalAway
from tenancy.keys import Pepper
from tenancy.periods import DAY_S
from tenancy.responses import ResponseSealer, ResponseStore
from tenancy.stores.shipper import LedgerShipper
from tenancy.stores.sql import (
    SqlAdapterStore,
    SqlBackgroundResponses,
    SqlCachePurges,
    SqlConversations,
    SqlDirectory,
    SqlFeedback,
    SqlJournal,
    SqlMemberStore,
    SqlModelRevisions,
    SqlPolicyVersions,
    SqlResponses,
    SqlRolloutStore,
    SqlSpendReader,
    SqlUsageStore,
    StoreAway,
    StoreError,
    migrate,
    open_engine,
)
from tenancy.stores.under_way import InFlightLog
from tenancy.stores.wal import Wal
from tenancy.usage import SpendReader

log = structlog.get_logger("tidegate.directory")

__all__ = [
    "StoreError",
    "Stores",
    "background_runs_for",
    "bookkeeper_for",
    "decision_log_for",
    "directory_watch_for",
    "feedback_for",
    "open_stores",
    "prepare_store",
    "stores_on",
    "usage_writer_for",
]

RESPONSE_CONNECTIONS: Final = 8
"""Connections of one worker to Postgres for stored Responses, at most; they are opened when they are needed."""
FIRST_START = "first start"
"""The actor in the audit row of the first policies of a database."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The adapters of one database, over one set of connections."""

    directory: DirectorySource
    members: MemberStore
    adapters: AdapterStore
    models: ModelRevisionStore
    purges: CachePurgeStore
    spend: SpendReader
    rollouts: RolloutStore
    responses: ResponseStore | None
    """Stored Responses; None in a process that serves no requests."""
    background: BackgroundStore | None
    """Responses in the background; None as before."""
    conversations: ConversationStore | None
    """Conversations; None as before."""
    feedback: FeedbackBook | None
    """Ratings of answers; None as before."""
    close: Callable[[], Awaitable[None]]


async def prepare_store(settings: Settings, *, new_pepper: bool = False) -> None:
    """Migrate the store's schema to this version, and give a database that owns the policies its first ones.

    While the database is away the gateway still starts, with the directory (and policies) kept on disk from the last run.

    Args:
        new_pepper: start although the pepper verifies none of the database's keys.

    Raises:
        StoreError: the database cannot be used, and nothing is kept on disk to start with.
        ConfigError: the policies that would be the first of the database have mistakes.
        SecretError: the pepper is missing, or verifies none of the database's keys.
    """
    pepper = read_pepper(settings)
    check_request_log(settings)
    directory_file = _directory_file(settings, pepper)
    engine = open_engine(settings.sql_url)
    try:
        await migrate(engine)
        if not new_pepper:
            await _check_pepper(engine, pepper)
        if settings.policies_from == "database":
            try:
                await _prepare_policies(settings, engine)
            except (JournalAway, SQLAlchemyError, OSError, TimeoutError) as error:
                raise StoreAway(f"the database's policies cannot be had: {type(error).__name__}: {error}"[:300]) from error
    except StoreAway as error:
        if directory_file.load() is None:
            raise
        if settings.policies_from == "database" and not PolicyCopy(settings.policies_copy, SqlPolicyVersions(engine)).version:
            raise
        log.warning("database away; starting with the kept directory", reason=str(error))
    finally:
        await engine.dispose()


def import_driver(settings: Settings) -> None:
    """Import what connections to the store need, in the process that others are forked from; nothing is connected to.

    Raises:
        StoreError: the store's URL is of no store.
    """
    open_engine(settings.sql_url)


async def _check_pepper(engine: AsyncEngine, pepper: Pepper) -> None:
    """Raises SecretError when the database has keys and the pepper verifies none of them."""
    try:
        peppers = await SqlDirectory(engine).peppers()
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise StoreAway(f"the database's keys cannot be read: {type(error).__name__}: {error}"[:300]) from error
    if peppers and pepper.kid not in peppers:
        raise SecretError(
            f"the pepper (id {pepper.kid}) verifies none of the database's keys, which were made with the pepper of id "
            f"{', '.join(sorted(peppers))}; restore that pepper (`tidegate.pepper` beside the database, or secrets.pepper). {LOST_PEPPER}"
        )


async def _prepare_policies(settings: Settings, engine: AsyncEngine) -> None:
    """Copy the database's policies to this machine; a database without any gets those of the settings' folder first."""
    versions = SqlPolicyVersions(engine)
    if not await versions.current():
        try:
            files = await asyncio.to_thread(texts_of, settings.policies_folder)
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot be read for the database's first policies: {error}"
            raise ConfigError([Problem(str(settings.policies_folder), 1, 1, "", message, "create it with one policy")]) from None
        targets = (*settings.policy_targets, settings.prompts_dir, settings.detector_names)
        compiled = await asyncio.to_thread(compiled_from, files, *targets)
        async with SqlJournal(engine, time.time).change() as change:
            inside = SqlPolicyVersions(change.connections)
            if not await inside.current():  # several gateways may start at once; one of them is first
                first = await inside.append(files, compiled.digest, FIRST_START, f"the files of {settings.policies}", time.time())
                after = canonical({"version": first.version, "digest": first.digest, "files": first.files})
                await change.write_down(Entry(FIRST_START, "", "", "policy.apply", f"policies/{first.version}", after=after))
    await PolicyCopy(settings.policies_copy, versions).follow()


def stores_on(
    engine: AsyncEngine,
    responses: ResponseStore | None = None,
    background: BackgroundStore | None = None,
    conversations: ConversationStore | None = None,
    feedback: FeedbackBook | None = None,
) -> Stores:
    """The stores of one database, over the connections of `engine`."""
    members, adapters, models = SqlMemberStore(engine), SqlAdapterStore(engine), SqlModelRevisions(engine)
    purges, spend, rollouts = SqlCachePurges(engine), SqlSpendReader(engine), SqlRolloutStore(engine)
    of_callers = responses, background, conversations, feedback
    return Stores(SqlDirectory(engine), members, adapters, models, purges, spend, rollouts, *of_callers, engine.dispose)


def open_stores(settings: Settings, pepper: Pepper) -> Stores:
    """The SQL stores of these settings, whose schema has been migrated (`prepare_store`)."""
    engine = open_engine(settings.sql_url)
    own = open_engine(
        settings.sql_url, RESPONSE_CONNECTIONS
    )  # so that requests and what keeps the worker current never wait for each other
    sealer = _sealer(settings, pepper)
    kept = SqlBackgroundResponses(own, sealer, time.time), SqlConversations(own, sealer, time.time), SqlFeedback(own)
    stores = stores_on(engine, SqlResponses(own, sealer, time.time), *kept)

    async def close() -> None:
        await engine.dispose()
        await own.dispose()

    return replace(stores, close=close)


def _sealer(settings: Settings, pepper: Pepper) -> ResponseSealer:
    """What seals the state that callers store. Raises SecretError: the pepper of before is configured and missing."""
    former = read_former_pepper(settings)
    return ResponseSealer([pepper] if former is None else [pepper, former], secrets.token_bytes)


def background_runs_for(stores: Stores) -> BackgroundRuns | None:
    """A worker's Responses in the background, under a name that no other process has. Must be called in the process that uses it."""
    return None if stores.background is None else BackgroundRuns(stores.background, f"worker-{secrets.token_hex(16)}", time.time)


def feedback_for(settings: Settings, stores: Stores, count: Callable[[str, str], None]) -> FeedbackService | None:
    """Keeps ratings of answers; None where they are switched off.

    Args:
        count: called with the tenant and the rating of each that is kept.
    """
    kept = settings.feedback
    if stores.feedback is None or not kept.enabled:
        return None
    return FeedbackService(stores.feedback, kept.max_per_tenant, kept.retention_days * DAY_S, count)


def directory_watch_for(settings: Settings, stores: Stores, pepper: Pepper) -> DirectoryWatch:
    """The directory's watcher; closing it closes the connections of all stores."""
    pending = pending_revocations_for(settings)
    return DirectoryWatch(stores.directory, pepper, _directory_file(settings, pepper), time.time, stores.close, pending)


def pending_revocations_for(settings: Settings) -> PendingRevocations:
    """The revocations that the database could not take, beside the kept directory."""
    file = settings.base_dir / settings.stores.directory_file
    return PendingRevocations(file.with_name(f"{file.name}.revoked"))


def pending_aborts_for(settings: Settings) -> PendingAborts:
    """The aborts of rollouts that the database could not take, beside the kept directory."""
    file = settings.base_dir / settings.stores.directory_file
    return PendingAborts(file.with_name(f"{file.name}.aborted"))


def kept_directory_unix(settings: Settings, pepper: Pepper) -> float:
    """The time to which the kept directory was confirmed; infinity where none is kept."""
    saved = _directory_file(settings, pepper).load()
    return math.inf if saved is None else saved.at_unix


def _directory_file(settings: Settings, pepper: Pepper) -> DirectoryFile:
    return DirectoryFile(settings.base_dir / settings.stores.directory_file, pepper, time.time)


def usage_writer_for(settings: Settings) -> UsageWriter | None:
    """A worker's end of the ledger; None where the ledger is off. Must be called in the process that uses it.

    Raises:
        StoreError: the ledger's folder cannot be used.
    """
    ledger = settings.ledger
    if not ledger.enabled:
        return None
    name = f"{os.getpid()}-{secrets.token_hex(6)}"
    try:
        wal = Wal(settings.ledger_dir, name, time.monotonic, fsync_s=ledger.fsync_ms / 1000, max_bytes=ledger.max_bytes)
    except OSError as error:
        raise StoreError(f"ledger.folder: {settings.ledger_dir} cannot be used: {error.strerror or error}") from error
    return UsageWriter(wal, InFlightLog(wal.claim.path, time.monotonic))


def decision_log_for(settings: Settings) -> DecisionLog | None:
    """A worker's writer of routing decisions; None where none are written. Must be called in the process that uses it."""
    folder, kept = settings.explanations_dir, settings.explanations
    if folder is None:
        return None
    name = f"{os.getpid()}-{secrets.token_hex(6)}"
    try:
        return DecisionLog(
            folder,
            name,
            max_bytes=kept.max_bytes,
            workers=settings.workers,
            keep_s=kept.hours * 3600,
            wall=time.time,
            clock=time.monotonic,
        )
    except OSError as error:
        log.warning("explanations.folder cannot be used: decisions are kept in memory only", folder=str(folder), reason=error.strerror)
        return None


def bookkeeper_for(settings: Settings) -> Bookkeeper | None:
    """The admin process's end of the ledger; None where the ledger is off."""
    if not settings.ledger.enabled:
        return None
    engine = open_engine(settings.sql_url)
    store = SqlUsageStore(engine, settings.stores.end_users_per_tenant)
    return Bookkeeper(
        LedgerShipper(settings.ledger_dir, store, time.time, sleep=next_tick),
        store,
        time.time,
        settings.ledger.retention_days,
        engine.dispose,
    )


def policy_files_for(settings: Settings) -> PolicyFiles:
    """The policy files that this gateway's workers read."""

    def compiled(files: Mapping[str, str]) -> PolicySet:
        return compiled_from(files, *settings.policy_targets, settings.prompts_dir, settings.detector_names)

    return PolicyFiles(str(settings.policies_dir), lambda: texts_of(settings.policies_dir), compiled)
