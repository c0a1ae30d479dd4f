"""Where registered backends push their load."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("backend", sa.Column("load_endpoint", sa.String(256)))
    op.add_column("backend", sa.Column("load_ranks", sa.Integer))


def downgrade() -> None:
    """Back."""
    with op.batch_alter_table("backend") as backend:
        backend.drop_column("load_ranks")
        backend.drop_column("load_endpoint")
