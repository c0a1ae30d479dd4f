"""Budget alerts that are due, or were sent."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "budget_alert",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("limit_id", sa.String(512), nullable=False),
        sa.Column("period", sa.String(32), nullable=False),
        sa.Column("percent", sa.Integer, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("at_unix", sa.Float, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("result", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_try_unix", sa.Float, nullable=True),
    )
    op.create_index("budget_alert_by_time", "budget_alert", ["at_unix"])
    op.create_index("budget_alert_due", "budget_alert", ["next_try_unix"])


def downgrade() -> None:
    """Back. What was told is forgotten; the older version tells nothing."""
    op.drop_table("budget_alert")
