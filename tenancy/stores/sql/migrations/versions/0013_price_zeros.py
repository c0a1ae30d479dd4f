"""Prices whose zeros are known to be meant."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Prices of before, and those that a gateway of before adds beside this schema, stored 0 for a rate that was left out."""
    op.add_column("price", sa.Column("zeros_stated", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Back. Which zeros were meant is forgotten."""
    op.drop_column("price", "zeros_stated")
