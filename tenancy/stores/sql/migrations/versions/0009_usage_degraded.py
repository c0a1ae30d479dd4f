"""Columns of degradation in the ledger: what requests were given instead of what they asked for."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Rows of before have got what they asked for."""
    op.add_column("usage_event", sa.Column("asked_model", sa.String(256), nullable=False, server_default=""))
    op.add_column("usage_event", sa.Column("steps", sa.String(256), nullable=False, server_default=""))


def downgrade() -> None:
    """Back."""
    op.drop_column("usage_event", "steps")
    op.drop_column("usage_event", "asked_model")
