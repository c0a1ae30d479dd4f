"""What engines reported, in rows of the ledger that are billed at a bound because the report was implausible."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Reports of before were believed."""
    op.add_column("usage_event", sa.Column("reported", sa.String(256), nullable=False, server_default=""))


def downgrade() -> None:
    """Back."""
    op.drop_column("usage_event", "reported")
