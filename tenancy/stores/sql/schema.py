"""The tables in SQL but those of stored Responses (`responses.py`), the opening of a store by URL (`open_engine`), and the migration of its
schema to this version (`migrate`).

Several processes may start at once on an empty database, so a migration holds a lock that ends with its connection: SQLite's
write lock, a Postgres advisory lock.

The tables come in sections: the directory, the audit chain with the idempotency keys, policies that the database keeps, rollouts with the
sums that workers report about them, and the ledger. In the ledger, tokens and money are 64-bit integers; `tenancy.wal_frames.tamed` keeps
single values far below that.

- `usage_event` has one row per request. On Postgres it is partitioned by day, and the day is in the primary key because Postgres requires
  it; the day comes from the event itself, so an event sent again has the same day.
- `usage_total` is a projection of it, per day and combination of labels. `bucket` is a digest of the labels: they may be long together, and
  an index of 20 bytes is quick. `free_requests` are those of `requests` that count towards no limit.
- `usage_quarter` is the same per quarter of an hour, for limits whose period begins within a day. Its labels stand in `usage_total`, in the
  row of the same day and bucket.
- `usage_mark` has one row, which every writer locks first (`tenancy.stores.sql.ledger`).
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

BUSY_MS: Final = 5_000
"""How long a SQLite writer waits for another."""

MIGRATION_BUSY_MS: Final = 120_000
"""How long a SQLite migration waits for that of another process. It takes milliseconds on a quiet machine and many seconds on a busy one,
and a process that gave up would not start."""

CONNECT_S: Final = 5.0
"""Longest wait for a connection to Postgres; a host that is gone does not refuse, it is silent."""

ADVISORY_LOCK: Final = 0x7469_6465_6761_7465
"""Postgres advisory lock held while migrating; the bytes spell the project's name."""

metadata = sa.MetaData()


def _record_columns() -> list[sa.Column[Any]]:
    """The columns that every account has. The defaults are for rows that a process of an older version writes."""
    return [
        sa.Column("label", sa.String(200), nullable=False, server_default=""),
        sa.Column("disabled", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("rights", sa.Text, nullable=False, server_default="{}"),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="1"),
    ]


organisation = sa.Table(
    "organisation",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("created_unix", sa.Float, nullable=False),
    *_record_columns(),
)

tenant = sa.Table(
    "tenant",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("organisation", sa.String(63), nullable=False, server_default="default"),
    *_record_columns(),
)
"""Tenants. The column `organisation` is no foreign key: SQLite cannot add one to a table that has rows. Writers wait for each other and
check that the organisation exists."""

retired_tenant = sa.Table("retired_tenant", metadata, sa.Column("name", sa.String(63), primary_key=True))
"""Names of deleted tenants."""

project = sa.Table(
    "project",
    metadata,
    sa.Column("tenant", sa.String(63), sa.ForeignKey("tenant.name"), primary_key=True),
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("created_unix", sa.Float, nullable=False, server_default="0"),
    *_record_columns(),
)

api_key = sa.Table(
    "api_key",
    metadata,
    sa.Column("id", sa.String(10), primary_key=True),
    sa.Column("tenant", sa.String(63), nullable=False),
    sa.Column("project", sa.String(63), nullable=False),
    sa.Column("label", sa.String(200), nullable=False),
    sa.Column("kid", sa.String(32), nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("second_digest", sa.LargeBinary(32)),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("expires_unix", sa.Float),
    sa.Column("revoked_unix", sa.Float),
    sa.Column("old_until_unix", sa.Float),
    sa.Column("disabled", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("scopes", sa.String(64), nullable=False, server_default="inference"),
    sa.Column("roles", sa.String(128), nullable=False, server_default=""),
    sa.Column("rights", sa.Text, nullable=False, server_default="{}"),
    sa.Column("version", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("tags", sa.Text, nullable=False, server_default="{}"),
    sa.Column("networks", sa.Text, nullable=False, server_default="[]"),
    sa.ForeignKeyConstraint(["tenant", "project"], ["project.tenant", "project.name"]),
)
"""`second_digest` is the digest of the secret before the last rotation, valid until `old_until_unix`; scopes and roles are names with
spaces between, tags a JSON object, networks a JSON array."""

usage_limit = sa.Table(
    "usage_limit",
    metadata,
    sa.Column("id", sa.String(400), primary_key=True),
    sa.Column("tenant", sa.String(63), nullable=False),
    sa.Column("level", sa.String(16), nullable=False),
    sa.Column("name", sa.String(256), nullable=False),
    sa.Column("meter", sa.String(32), nullable=False),
    sa.Column("counted_per", sa.String(16), nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("burst", sa.BigInteger),
    sa.Column("soft", sa.BigInteger),
    sa.Column("raised_to", sa.BigInteger),
    sa.Column("raised_until_unix", sa.Float),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("zone", sa.String(64), nullable=False, server_default=""),
)
"""`id` is `tenancy.limits.state_key`; `tenant` owns the limit, empty for limits of an organisation, a model or the gateway."""

price = sa.Table(
    "price",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("revision", sa.String(256), nullable=False),
    sa.Column("effective_unix", sa.Float, nullable=False),
    *(
        sa.Column(f"{unit}_{kind}", sa.BigInteger, nullable=False)
        for unit in ("nanousd", "units")
        for kind in ("uncached_input", "cached_input", "output", "reasoning")
    ),
    sa.Column("zeros_stated", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.UniqueConstraint("model", "revision", "effective_unix", name="price_begins_once"),
)
"""Rows are added and never changed. `zeros_stated` is false where a version stored the row that wrote 0 for a rate that was left out."""

backend = sa.Table(
    "backend",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("pool", sa.String(64), nullable=False),
    sa.Column("url", sa.String(2048), nullable=False),
    sa.Column("kv_endpoint", sa.String(256)),
    sa.Column("kv_replay", sa.String(256)),
    sa.Column("registered_unix", sa.Float, nullable=False),
    sa.Column("drain_grace_s", sa.Float),
    sa.Column("load_endpoint", sa.String(256)),
    sa.Column("load_ranks", sa.Integer),
)
"""Registered backends; a backend with a `drain_grace_s` is drained."""

lora_adapter = sa.Table(
    "lora_adapter",
    metadata,
    sa.Column("pool", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("path", sa.String(4096), nullable=False),
    sa.Column("registered_unix", sa.Float, nullable=False),
)
"""Registered adapters."""

cache_purge = sa.Table(
    "cache_purge",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_unix", sa.Float, nullable=False),
    sa.Column("owner", sa.String(128), nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("namespace", sa.String(64), nullable=False),
    sa.Column("end_user", sa.String(64), nullable=False),
    sa.Column("before_unix", sa.Float, nullable=True),
)
"""Purges of the answer cache."""

change = sa.Table(
    "change",
    metadata,
    sa.Column("what", sa.String(32), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
)
"""One counter per kind of thing that processes keep a snapshot of; raised in the transaction of every write."""


class StoreError(Exception):
    """The database cannot be used; the message says which, why, and what to do."""


class StoreAway(StoreError):
    """The database cannot be reached now."""


def open_engine(url: str, most: int = 4) -> AsyncEngine:
    """An engine for `sqlite:///path` or `postgresql://user:password@host/database`; `most` are its connections to Postgres, at most.

    Raises:
        StoreError: the URL has another scheme, or the SQLite file's folder does not exist.
    """
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        raise StoreError(f"stores.sql: {url!r} is no database URL; write sqlite:///file.db or postgresql://user@host/database") from None
    if parsed.drivername == "sqlite":
        if not parsed.database or not Path(parsed.database).resolve().parent.is_dir():
            raise StoreError(f"stores.sql: the folder of {parsed.database!r} does not exist; create it, or name another file")
        engine = create_async_engine(parsed.set(drivername="sqlite+aiosqlite"), connect_args={"timeout": BUSY_MS / 1000})
        sa.event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        sa.event.listen(engine.sync_engine, "begin", _begin_immediate)
        return engine
    if parsed.drivername in ("postgresql", "postgres"):
        return create_async_engine(
            parsed.set(drivername="postgresql+asyncpg"),
            pool_size=2,
            max_overflow=most - 2,
            pool_pre_ping=True,
            connect_args={"timeout": CONNECT_S},
        )
    raise StoreError(f"stores.sql: {parsed.drivername!r} is not supported; use sqlite:/// or postgresql://")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # the driver's own transaction handling begins late and commits DDL; SQLAlchemy's recipe is to switch it off
    connection.isolation_level = None
    cursor = connection.cursor()
    # The mode stays with the file. Changing it needs exclusive access to the file and does not wait for that, so when another process
    # uses the file (to migrate, or to change the mode) the change is left to that process or to the next connection.
    with contextlib.suppress(sqlite3.OperationalError, sa.exc.OperationalError):
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    # a transaction that reads first and writes later could fail half-way when another transaction wrote in between
    connection.exec_driver_sql("BEGIN IMMEDIATE")


async def migrate(engine: AsyncEngine, revision: str = "head") -> None:
    """Migrate the schema to this version; several processes may do so at once.

    Raises:
        StoreAway: the database is unreachable.
        StoreError: its schema is newer than this program, or cannot be moved.
    """
    if engine.dialect.name == "sqlite" and engine.url.database not in (None, "", ":memory:"):
        _make_private(str(engine.url.database))
    async with contextlib.AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(engine.connect())
        except Exception as error:  # drivers raise their own, unwrapped, while they connect
            # a file is never away: its errors do not pass by themselves
            raise (StoreError if engine.dialect.name == "sqlite" else StoreAway)(_message(engine, error)) from error
        try:
            if engine.dialect.name == "postgresql":
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
            else:
                await _wait_for_writers(connection, MIGRATION_BUSY_MS)
            await connection.run_sync(_run, revision)
            await connection.commit()
            if engine.dialect.name == "sqlite":
                await _wait_for_writers(connection, BUSY_MS)  # the connection goes back to the pool
        except (SQLAlchemyError, OSError) as error:
            raise StoreError(_message(engine, error)) from error


async def _wait_for_writers(connection: AsyncConnection, milliseconds: int) -> None:
    """Set how long a SQLite connection waits for other writers. Through the driver: a statement would begin a transaction, and wait."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    pragma = f"PRAGMA busy_timeout = {milliseconds}"  # a pragma takes no parameters
    await driver.execute(pragma)


def _make_private(path: str) -> None:
    """Create a missing file readable by its owner only: it will have digests of keys, labels of end users and the audit. An existing
    file keeps its mode, and SQLite gives the files it puts beside it the same mode."""
    with contextlib.suppress(OSError):  # connecting reports the reason
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _message(engine: AsyncEngine, error: Exception) -> str:
    return f"stores.sql: {engine.url.render_as_string(hide_password=True)}: {str(error) or type(error).__name__}"


def _run(connection: sa.Connection, revision: str) -> None:
    # imported only here: it takes 0.4 s, which every other command would wait for
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    current = _revision_in(connection)
    if current is not None and current not in {known.revision for known in script.walk_revisions()}:
        raise StoreError(f"stores.sql: the schema has revision {current!r}, which this version does not know; use the version that made it")
    if revision == "head":
        command.upgrade(config, "head")
    else:
        command.downgrade(config, revision)


def _revision_in(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(sa.select(sa.column("version_num")).select_from(sa.table("alembic_version"))).scalar()
    return revision


audit = sa.Table(
    "audit",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_unix_ms", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.String(80), nullable=False),
    sa.Column("role", sa.String(32), nullable=False),
    sa.Column("address", sa.String(64), nullable=False),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("target", sa.String(512), nullable=False),
    sa.Column("tenant", sa.String(63), nullable=False),
    sa.Column("before", sa.Text, nullable=False),
    sa.Column("after", sa.Text, nullable=False),
    sa.Column("hash", sa.LargeBinary(32), nullable=False),
    sa.Index("audit_by_tenant", "tenant", "seq"),
)
"""Append-only: triggers refuse to change or remove rows."""

audit_head = sa.Table(
    "audit_head",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.LargeBinary(32), nullable=False),
)
"""One row: the last number and hash. Locking it is what makes writers wait for each other."""

audit_blocks = sa.Table(
    "audit_blocks",
    metadata,
    sa.Column("tenant", sa.String(256), primary_key=True),
    sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("written", sa.BigInteger, nullable=False),
    sa.Column("further", sa.BigInteger, nullable=False),
)
"""Blocks by guard rules in the last minutes: those that have a row of the audit, and those that will be counted in one
(`tenancy.guard_blocks`). The lock of `usage_mark` guards it."""

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("actor", sa.String(80), primary_key=True),
    sa.Column("key_digest", sa.LargeBinary(32), primary_key=True),
    sa.Column("request_digest", sa.LargeBinary(32), nullable=False),
    sa.Column("at_unix", sa.Float, nullable=False, index=True),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("etag", sa.String(80), nullable=False),
    sa.Column("nonce", sa.LargeBinary(16), nullable=False),
    sa.Column("holder", sa.String(80), nullable=False, server_default="", index=True),
)
"""`holder`: a row counts towards its share of the table."""


policy_version = sa.Table(
    "policy_version",
    metadata,
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("author", sa.String(128), nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("at_unix", sa.Float, nullable=False),
    sa.Column("file_count", sa.Integer, nullable=False),
    sa.Column("files", sa.Text, nullable=False),
)
"""`files`: a JSON object, text by name."""


rollout = sa.Table(
    "rollout",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("name", sa.String(63), nullable=False),
    sa.Column("baseline", sa.String(64), nullable=False),
    sa.Column("canary", sa.String(64), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("changed_unix", sa.Float, nullable=False),
    sa.Index("rollout_by_end", "open", "changed_unix", "id"),
    sa.Index("rollout_by_name", "name", "created_unix"),
)
"""`document` has both pools as well; the columns are there so that no pool takes part in two rollouts in force."""

rollout_sums = sa.Table(
    "rollout_sums",
    metadata,
    sa.Column("rollout", sa.String(40), primary_key=True),
    sa.Column("interval_index", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("source", sa.String(128), primary_key=True),
    sa.Column("sums", sa.Text, nullable=False),
)
"""No foreign key: a worker may write once more after a rollout is closed. Such rows are removed later (`forget_closed`)."""


USAGE_LABELS: Final = ("organisation", "tenant", "project", "key_id", "end_user", "model", "lora")
"""The labels that totals are kept by, besides the day."""
USAGE_AMOUNTS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "units", "cost_nanousd")
"""The columns that are added up."""
USAGE_MARK: Final = "usage"
"""The name of the one row of `usage_mark`."""

usage_event = sa.Table(
    "usage_event",
    metadata,
    sa.Column("request_id", sa.String(256), primary_key=True),
    sa.Column("day", sa.Date, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("bucket", sa.LargeBinary(16), nullable=False),
    sa.Column("at_unix_ms", sa.BigInteger, nullable=False),
    *(sa.Column(name, sa.String(256), nullable=False) for name in USAGE_LABELS),
    *(sa.Column(name, sa.String(256), nullable=False) for name in ("endpoint", "pool", "revision", "outcome", "closing", "price_id")),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in USAGE_AMOUNTS),
    sa.Column("duration_ms", sa.BigInteger, nullable=False),
    sa.Column("priority_class", sa.String(16), nullable=False, server_default=""),
    sa.Column("asked_model", sa.String(256), nullable=False, server_default=""),
    sa.Column("steps", sa.String(256), nullable=False, server_default=""),
    sa.Column("reported", sa.String(256), nullable=False, server_default=""),
)

usage_total = sa.Table(
    "usage_total",
    metadata,
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("bucket", sa.LargeBinary(16), primary_key=True),
    *(sa.Column(name, sa.String(256), nullable=False) for name in USAGE_LABELS),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("free_requests", sa.BigInteger, nullable=False),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in USAGE_AMOUNTS),
)

QUARTER_AMOUNTS: Final = ("prompt_tokens", "completion_tokens", "units", "cost_nanousd")
"""The columns that limits count."""

usage_quarter = sa.Table(
    "usage_quarter",
    metadata,
    sa.Column("begins_s", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("bucket", sa.LargeBinary(16), primary_key=True),
    sa.Column("day", sa.Date, nullable=False, index=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("free_requests", sa.BigInteger, nullable=False),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in QUARTER_AMOUNTS),
)

usage_mark = sa.Table(
    "usage_mark",
    metadata,
    sa.Column("what", sa.String(32), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("first_kept", sa.Date, nullable=False),
    sa.Column("quarter_seq", sa.BigInteger, nullable=False, server_default="0"),
)
"""`seq`: every event up to it is in the totals; `quarter_seq`: every event up to it is in the totals of quarters, too, which processes of
an older version do not write. `first_kept`: events of days before it have been dropped and are not taken again."""

budget_alert = sa.Table(
    "budget_alert",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("limit_id", sa.String(512), nullable=False),
    sa.Column("period", sa.String(32), nullable=False),
    sa.Column("percent", sa.Integer, nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("used", sa.BigInteger, nullable=False),
    sa.Column("at_unix", sa.Float, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("result", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_try_unix", sa.Float, nullable=True),
    sa.Index("budget_alert_by_time", "at_unix"),
    sa.Index("budget_alert_due", "next_try_unix"),
)
"""Budget alerts; `next_try_unix` is null for those that are over."""
