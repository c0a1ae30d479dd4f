"""Registered backends, and their change counter."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

change = sa.table("change", sa.column("what", sa.String), sa.column("version", sa.BigInteger))


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "backend",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("kv_endpoint", sa.String(256)),
        sa.Column("kv_replay", sa.String(256)),
        sa.Column("registered_unix", sa.Float, nullable=False),
        sa.Column("drain_grace_s", sa.Float),
    )
    op.bulk_insert(change, [{"what": "backends", "version": 1}])


def downgrade() -> None:
    """Back."""
    op.execute(sa.delete(change).where(change.c.what == "backends"))
    op.drop_table("backend")
