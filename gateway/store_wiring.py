"""Builds what is kept in SQL and on this machine's disk: the directory, members, rollouts and policies, usage and its log."""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.membership import MemberStore
from domain.rollouts import RolloutStore
from gateway.bookkeeper import Bookkeeper
from gateway.directory_file import DirectoryFile
from gateway.directory_watch import DirectoryWatch
from gateway.policy_copy import PolicyCopy, compiled_from, texts_of
from gateway.secrets import read_pepper
from gateway.settings import Settings
from gateway.usage_log import UsageWriter
from policies.problems import ConfigError, Problem
from tenancy.audit import Entry, canonical
from tenancy.directory_ports import DirectorySource
from tenancy.journal import JournalAway
from tenancy.keys import Pepper
from tenancy.stores.shipper import Shipper
from tenancy.stores.sql import (
    SqlDirectory,
    SqlJournal,
    SqlMemberStore,
    SqlPolicyVersions,
    SqlRolloutStore,
    SqlSpendReader,
    SqlUsageStore,
    StoreAway,
    StoreError,
    migrate,
    open_engine,
)
from tenancy.stores.under_way import UnderWay
from tenancy.stores.wal import Wal
from tenancy.usage import SpendReader

log = structlog.get_logger("tidegate.directory")

__all__ = ["StoreError", "Stores", "bookkeeper_for", "directory_watch_for", "open_stores", "prepare_store", "stores_on", "usage_writer_for"]

FIRST_START = "first start"
"""Who the audit says put the first policies into the database."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The adapters of one database, over one set of connections."""

    directory: DirectorySource
    members: MemberStore
    spend: SpendReader
    rollouts: RolloutStore
    close: Callable[[], Awaitable[None]]


async def prepare_store(settings: Settings) -> None:
    """Bring the store's schema to this version.

    A database that is away is no reason not to start while there is a kept directory to start with.

    Raises:
        StoreError: the database cannot be used.
        ConfigError: the policies that are to be its first have mistakes.
        SecretError: there is no pepper.
    """
    kept = _directory_file(settings, read_pepper(settings))
    engine = open_engine(settings.sql_url)
    try:
        await migrate(engine)
        if settings.policies_from == "database":
            try:
                await _prepare_policies(settings, engine)
            except (JournalAway, SQLAlchemyError, OSError, TimeoutError) as error:
                raise StoreAway(f"the database's policies cannot be had: {type(error).__name__}: {error}"[:300]) from error
    except StoreAway as error:
        if kept.load() is None:
            raise
        if settings.policies_from == "database" and not PolicyCopy(settings.policies_copy, SqlPolicyVersions(engine)).version:
            raise
        log.warning("database away; starting with the kept directory", reason=str(error))
    finally:
        await engine.dispose()


async def _prepare_policies(settings: Settings, engine: AsyncEngine) -> None:
    """The database's policies as a folder; where it has none yet, the settings' folder is what it begins with."""
    versions = SqlPolicyVersions(engine)
    if not await versions.current():
        try:
            files = await asyncio.to_thread(texts_of, settings.policies_folder)
        except (OSError, UnicodeDecodeError) as error:
            said = f"cannot be read for the database's first policies: {error}"
            raise ConfigError([Problem(str(settings.policies_folder), 1, 1, "", said, "create it with one policy")]) from None
        made = await asyncio.to_thread(compiled_from, files, *settings.policy_targets, settings.prompts_dir)
        async with SqlJournal(engine, time.time).change() as change:
            inside = SqlPolicyVersions(change.connections)
            if not await inside.current():  # of several gateways that start at once, one is first
                first = await inside.append(files, made.digest, FIRST_START, f"the files of {settings.policies}", time.time())
                after = canonical({"version": first.version, "digest": first.digest, "files": first.files})
                await change.write_down(Entry(FIRST_START, "", "", "policy.apply", f"policies/{first.version}", after=after))
    await PolicyCopy(settings.policies_copy, versions).follow()


def stores_on(engine: AsyncEngine) -> Stores:
    """The stores of one database."""
    return Stores(SqlDirectory(engine), SqlMemberStore(engine), SqlSpendReader(engine), SqlRolloutStore(engine), engine.dispose)


def open_stores(settings: Settings) -> Stores:
    """What is kept in SQL; the schema has been prepared."""
    return stores_on(open_engine(settings.sql_url))


def directory_watch_for(settings: Settings, stores: Stores, pepper: Pepper) -> DirectoryWatch:
    """The directory's watcher; closing it lets the connections of all stores go."""
    return DirectoryWatch(stores.directory, pepper, _directory_file(settings, pepper), time.time, stores.close)


def _directory_file(settings: Settings, pepper: Pepper) -> DirectoryFile:
    return DirectoryFile(settings.base_dir / settings.stores.directory_file, pepper, time.time)


def usage_writer_for(settings: Settings) -> UsageWriter | None:
    """A worker's end of the ledger; None where usage is not written down. Must be called in the process that uses it.

    Raises:
        StoreError: the folder cannot be used.
    """
    wanted = settings.ledger
    if not wanted.enabled:
        return None
    name = f"{os.getpid()}-{secrets.token_hex(6)}"
    try:
        wal = Wal(settings.ledger_dir, name, time.monotonic, fsync_s=wanted.fsync_ms / 1000, max_bytes=wanted.max_bytes)
    except OSError as error:
        raise StoreError(f"ledger.folder: {settings.ledger_dir} cannot be used: {error.strerror or error}") from error
    return UsageWriter(wal, UnderWay(wal.claim.path, time.monotonic))


def bookkeeper_for(settings: Settings) -> Bookkeeper | None:
    """The admin process's end of the ledger; None where usage is not written down."""
    if not settings.ledger.enabled:
        return None
    engine = open_engine(settings.sql_url)
    store = SqlUsageStore(engine, settings.stores.end_users_per_tenant)
    return Bookkeeper(Shipper(settings.ledger_dir, store, time.time), store, time.time, settings.ledger.retention_days, engine.dispose)
