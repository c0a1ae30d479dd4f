"""Rollouts, and what workers count of them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "rollout",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("baseline", sa.String(64), nullable=False),
        sa.Column("canary", sa.String(64), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("open", sa.Boolean, nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("changed_unix", sa.Float, nullable=False),
    )
    op.create_index("rollout_by_end", "rollout", ["open", "changed_unix", "id"])
    op.create_index("rollout_by_name", "rollout", ["name", "created_unix"])
    op.create_table(
        "rollout_sums",
        sa.Column("rollout", sa.String(40), primary_key=True),
        sa.Column("interval_index", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("source", sa.String(128), primary_key=True),
        sa.Column("sums", sa.Text, nullable=False),
    )
    op.execute("INSERT INTO change (what, version) VALUES ('rollouts', 1)")


def downgrade() -> None:
    """Back; rollouts are forgotten, everybody is on the baseline."""
    op.execute("DELETE FROM change WHERE what = 'rollouts'")
    op.drop_table("rollout_sums")
    op.drop_table("rollout")
