"""The judge's agreement with labelled answers, as it was measured last."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "judge_agreement",
        sa.Column("what", sa.String(16), primary_key=True),
        sa.Column("at_unix", sa.Float, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Back. The agreement is measured anew."""
    op.drop_table("judge_agreement")
