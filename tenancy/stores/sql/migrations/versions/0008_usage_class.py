"""The class of the requests in the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Rows of before have none."""
    op.add_column("usage_event", sa.Column("priority_class", sa.String(16), nullable=False, server_default=""))


def downgrade() -> None:
    """Back."""
    op.drop_column("usage_event", "priority_class")
