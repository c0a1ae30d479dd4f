"""Seconds and bytes of sound in the ledger and its totals."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

TABLES = ("usage_event", "usage_total", "usage_quarter")
COLUMNS = ("audio_seconds", "audio_bytes")


def upgrade() -> None:
    """Forward."""
    for table in TABLES:
        for name in COLUMNS:
            op.add_column(table, sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Back. What was counted of sound is lost, and limits on it, which versions before do not know, are removed."""
    limits = sa.table("usage_limit", sa.column("meter"))
    op.execute(sa.delete(limits).where(limits.c.meter.in_(COLUMNS)))
    for table in TABLES:
        for name in COLUMNS:
            op.drop_column(table, name)
