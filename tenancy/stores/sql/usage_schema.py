"""The tables of the ledger. Tokens and money are 64-bit integers; `tenancy.wal_frames.tamed` keeps single values far below that.

`usage_event` has one row per request. On Postgres it is partitioned by day, and the day is in the primary key because Postgres requires
it; the day comes from the event itself, so an event sent again has the same day.

`usage_total` is a projection of it, per day and combination of labels. `bucket` is a digest of the labels: they may be long
together, and an index of 20 bytes is quick. `free_requests` are those of `requests` that count towards no limit.

`usage_mark` has one row, which every writer locks first (`tenancy.stores.sql.ledger`).
"""

from typing import Final

import sqlalchemy as sa

from tenancy.stores.sql.schema import metadata

LABELS: Final = ("organisation", "tenant", "project", "key_id", "end_user", "model", "lora")
"""The labels that totals are kept by, besides the day."""
AMOUNTS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "units", "cost_nanousd")
"""The columns that are added up."""
MARK: Final = "usage"
"""The name of the one row of `usage_mark`."""

usage_event = sa.Table(
    "usage_event",
    metadata,
    sa.Column("request_id", sa.String(256), primary_key=True),
    sa.Column("day", sa.Date, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("bucket", sa.LargeBinary(16), nullable=False),
    sa.Column("at_unix_ms", sa.BigInteger, nullable=False),
    *(sa.Column(name, sa.String(256), nullable=False) for name in LABELS),
    *(sa.Column(name, sa.String(256), nullable=False) for name in ("endpoint", "pool", "revision", "outcome", "closing", "price_id")),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in AMOUNTS),
    sa.Column("duration_ms", sa.BigInteger, nullable=False),
    sa.Column("priority_class", sa.String(16), nullable=False, server_default=""),
    sa.Column("asked_model", sa.String(256), nullable=False, server_default=""),
    sa.Column("steps", sa.String(256), nullable=False, server_default=""),
)

usage_total = sa.Table(
    "usage_total",
    metadata,
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("bucket", sa.LargeBinary(16), primary_key=True),
    *(sa.Column(name, sa.String(256), nullable=False) for name in LABELS),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("free_requests", sa.BigInteger, nullable=False),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in AMOUNTS),
)

usage_mark = sa.Table(
    "usage_mark",
    metadata,
    sa.Column("what", sa.String(32), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("first_kept", sa.Date, nullable=False),
)
"""`seq`: every event up to it is in the totals. `first_kept`: events of days before it have been dropped and are not taken again."""
