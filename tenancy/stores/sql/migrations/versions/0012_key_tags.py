"""Tags of keys."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Keys of before have none."""
    op.add_column("api_key", sa.Column("tags", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    """Back. Rules that ask for tags do not match any more."""
    op.drop_column("api_key", "tags")
