"""Time zones of limits, and totals of usage per quarter of an hour, from which limits over hours and days of other zones are set."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

NEW_WINDOWS = ("hour", "week")


def upgrade() -> None:
    """Forward. Usage of before is not in the totals of quarters: limits over hours and in other zones did not exist then."""
    op.add_column("usage_limit", sa.Column("zone", sa.String(64), nullable=False, server_default=""))
    op.create_table(
        "usage_quarter",
        sa.Column("begins_s", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("bucket", sa.LargeBinary(16), primary_key=True),
        sa.Column("day", sa.Date, nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("requests", "free_requests", "prompt_tokens", "completion_tokens", "units", "cost_nanousd")
        ),
    )
    op.create_index("ix_usage_quarter_day", "usage_quarter", ["day"])
    op.add_column("usage_mark", sa.Column("quarter_seq", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE usage_mark SET quarter_seq = seq")


def downgrade() -> None:
    """Back. Versions before know no such limits: they are removed, never counted as something else."""
    limits = sa.table("usage_limit", sa.column("counted_per"), sa.column("zone"))
    op.execute(sa.delete(limits).where(limits.c.counted_per.in_(NEW_WINDOWS) | (limits.c.zone != "")))
    op.drop_column("usage_mark", "quarter_seq")
    op.drop_table("usage_quarter")
    op.drop_column("usage_limit", "zone")
