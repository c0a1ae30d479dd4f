"""Ratings of answers, and whose turn it is to judge."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "feedback",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(8), primary_key=True),
        sa.Column("at_unix", sa.Float, nullable=False),
        sa.Column("expires_unix", sa.Float, nullable=False),
        sa.Column("rating", sa.String(8), nullable=False),
        sa.Column("score", sa.Integer, nullable=True),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("key_id", sa.String(80), nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
    )
    op.create_table(
        "judge_turn",
        sa.Column("what", sa.String(16), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("until_unix", sa.Float, nullable=False),
        sa.Column("day", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
    )
    op.create_index("feedback_by_time", "feedback", ["at_unix"])
    op.create_index("feedback_by_tenant", "feedback", ["tenant", "at_unix"])
    op.create_index("feedback_by_end", "feedback", ["expires_unix"])
    op.create_index("feedback_by_user", "feedback", ["end_user", "tenant"])


def downgrade() -> None:
    """Back. The ratings are lost: no version before can read them."""
    op.drop_table("judge_turn")
    op.drop_table("feedback")
