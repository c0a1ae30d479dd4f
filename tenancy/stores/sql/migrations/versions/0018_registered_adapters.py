"""Registered adapters, and their change counter."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

change = sa.table("change", sa.column("what", sa.String), sa.column("version", sa.BigInteger))


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "lora_adapter",
        sa.Column("pool", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("path", sa.String(4096), nullable=False),
        sa.Column("registered_unix", sa.Float, nullable=False),
    )
    op.bulk_insert(change, [{"what": "adapters", "version": 1}])


def downgrade() -> None:
    """Back. Registered adapters are lost; requests of policies that name them get 503 until they are in the settings."""
    op.execute(sa.delete(change).where(change.c.what == "adapters"))
    op.drop_table("lora_adapter")
