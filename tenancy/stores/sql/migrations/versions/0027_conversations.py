"""Conversations and their items."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "conversation",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("expires_unix", sa.Float, nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
        sa.Column("next", sa.BigInteger, nullable=False),
        sa.Column("item_count", sa.BigInteger, nullable=False),
        sa.Column("item_bytes", sa.BigInteger, nullable=False),
        sa.Column("kid", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("conversation_by_end", "conversation", ["expires_unix"])
    op.create_index("conversation_by_user", "conversation", ["end_user", "tenant"])
    op.create_table(
        "conversation_item",
        sa.Column("conversation", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("place", sa.BigInteger, primary_key=True),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
        sa.Column("kid", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("conversation_item_by_id", "conversation_item", ["conversation", "id"])
    op.create_index("conversation_item_by_user", "conversation_item", ["end_user", "tenant"])


def downgrade() -> None:
    """Back. The conversations are lost: no version before can read them. Their bytes are subtracted from those of their tenants."""
    op.execute(
        "UPDATE stored_bytes SET bytes = bytes - COALESCE("
        "(SELECT SUM(c.bytes + c.item_bytes) FROM conversation AS c WHERE c.tenant = stored_bytes.tenant), 0)"
    )
    op.drop_table("conversation_item")
    op.drop_table("conversation")
