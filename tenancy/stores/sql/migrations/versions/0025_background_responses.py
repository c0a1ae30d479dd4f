"""Responses in the background, and their events."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "background_response",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("expires_unix", sa.Float, nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("last", sa.Integer, nullable=False),
        sa.Column("worker", sa.String(64), nullable=False),
        sa.Column("lease_until_unix", sa.Float, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("kid", sa.String(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("background_response_by_lease", "background_response", ["lease_until_unix"])
    op.create_index("background_response_by_end", "background_response", ["expires_unix"])
    op.create_index("background_response_by_user", "background_response", ["end_user", "tenant"])
    op.create_table(
        "background_events",
        sa.Column("response", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("first", sa.Integer, primary_key=True),
        sa.Column("last", sa.Integer, nullable=False),
        sa.Column("kid", sa.String(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Back. Responses in the background are lost: no version before can read them. Those that are complete stay as stored Responses."""
    op.drop_table("background_events")
    op.drop_table("background_response")
