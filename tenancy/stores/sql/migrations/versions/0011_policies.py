"""Policies that the database keeps."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "policy_version",
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("author", sa.String(128), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("at_unix", sa.Float, nullable=False),
        sa.Column("file_count", sa.Integer, nullable=False),
        sa.Column("files", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Back; policies are files again, and what the database kept is forgotten."""
    op.drop_table("policy_version")
