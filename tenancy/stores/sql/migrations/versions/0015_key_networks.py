"""Networks that keys may be used from."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Keys of before may be used from everywhere."""
    op.add_column("api_key", sa.Column("networks", sa.Text, nullable=False, server_default="[]"))


def downgrade() -> None:
    """Back. Every key may be used from everywhere."""
    op.drop_column("api_key", "networks")
