"""The tables in SQL but those of stored Responses (`responses.py`).

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

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

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

model_revision = sa.Table(
    "model_revision",
    metadata,
    sa.Column("model", sa.String(256), primary_key=True),
    sa.Column("revision", sa.String(64), primary_key=True),
    sa.Column("weights", sa.String(4096), nullable=False),
    sa.Column("digest", sa.String(80), nullable=False),
    sa.Column("architecture", sa.String(128), nullable=False),
    sa.Column("precision", sa.String(64), nullable=False),
    sa.Column("tensor_parallel", sa.Integer, nullable=False),
    sa.Column("pipeline_parallel", sa.Integer, nullable=False),
    sa.Column("data_parallel", sa.Integer, nullable=False),
    sa.Column("expert_parallel", sa.Integer, nullable=False),
    sa.Column("tokenizer", sa.String(4096), nullable=False),
    sa.Column("context_tokens", sa.Integer, nullable=False),
    sa.Column("adapters", sa.Text, nullable=False),
    sa.Column("launch", sa.String(256), nullable=False),
    sa.Column("registered_by", sa.String(128), nullable=False),
    sa.Column("registered_unix", sa.Float, nullable=False),
    sa.Column("retired_unix", sa.Float, nullable=True),
    sa.Column("profile", sa.Text, nullable=False),
)
"""The registry of models; rows are never removed."""

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
TOKEN_AMOUNTS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "units", "cost_nanousd")
AUDIO_AMOUNTS: Final = ("audio_seconds", "audio_bytes")
USAGE_AMOUNTS: Final = (*TOKEN_AMOUNTS, *AUDIO_AMOUNTS)
"""The columns that are added up."""


def _amounts(names: Sequence[str]) -> list[sa.Column[Any]]:
    """Columns of amounts. A process of an older version writes none of sound."""
    return [sa.Column(name, sa.BigInteger, nullable=False, server_default="0" if name in AUDIO_AMOUNTS else None) for name in names]


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
    *_amounts(USAGE_AMOUNTS),
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
    *_amounts(USAGE_AMOUNTS),
)

QUARTER_AMOUNTS: Final = ("prompt_tokens", "completion_tokens", "units", "cost_nanousd", *AUDIO_AMOUNTS)
"""The columns that limits count."""

usage_quarter = sa.Table(
    "usage_quarter",
    metadata,
    sa.Column("begins_s", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("bucket", sa.LargeBinary(16), primary_key=True),
    sa.Column("day", sa.Date, nullable=False, index=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("free_requests", sa.BigInteger, nullable=False),
    *_amounts(QUARTER_AMOUNTS),
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
