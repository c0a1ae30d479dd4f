"""The ledger: usage events, their totals, and the mark up to which the totals have them."""

import datetime as dt

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

LABELS = ("organisation", "tenant", "project", "key_id", "end_user", "model", "lora")
AMOUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "units", "cost_nanousd")


def upgrade() -> None:
    """Forward."""
    postgres = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "usage_event",
        sa.Column("request_id", sa.String(256), nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("bucket", sa.LargeBinary(16), nullable=False),
        sa.Column("at_unix_ms", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.String(256), nullable=False) for name in LABELS),
        *(sa.Column(name, sa.String(256), nullable=False) for name in ("endpoint", "pool", "revision", "outcome", "closing", "price_id")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in AMOUNTS),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("request_id", "day") if postgres else sa.PrimaryKeyConstraint("request_id"),
        postgresql_partition_by="RANGE (day)",
    )
    op.create_index("usage_event_seq", "usage_event", ["seq"])
    op.create_index("usage_event_tenant", "usage_event", ["tenant", "seq"])
    if not postgres:
        op.create_index("usage_event_day", "usage_event", ["day"])
    op.create_table(
        "usage_total",
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("bucket", sa.LargeBinary(16), nullable=False),
        *(sa.Column(name, sa.String(256), nullable=False) for name in LABELS),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("free_requests", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in AMOUNTS),
        sa.PrimaryKeyConstraint("day", "bucket"),
    )
    op.create_index("usage_total_tenant", "usage_total", ["tenant", "day"])
    op.create_index("usage_total_key", "usage_total", ["key_id", "day"])
    mark = op.create_table(
        "usage_mark",
        sa.Column("what", sa.String(32), primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("first_kept", sa.Date, nullable=False),
    )
    op.bulk_insert(mark, [{"what": "usage", "seq": 0, "first_kept": dt.date(1970, 1, 1)}])


def downgrade() -> None:
    """Back."""
    for table in ("usage_mark", "usage_total", "usage_event"):
        op.drop_table(table)
