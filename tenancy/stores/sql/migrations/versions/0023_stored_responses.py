"""Stored Responses, and the bytes that each tenant's take."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "stored_response",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("bytes_before", sa.BigInteger, nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("expires_unix", sa.Float, nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
        sa.Column("kid", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("stored_response_by_end", "stored_response", ["expires_unix"])
    op.create_index("stored_response_by_user", "stored_response", ["end_user", "tenant"])
    op.create_table(
        "stored_bytes",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Back. The stored Responses are lost: no version before can read them."""
    op.drop_table("stored_bytes")
    op.drop_table("stored_response")
