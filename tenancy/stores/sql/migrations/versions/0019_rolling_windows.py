"""Limits over rolling days. They are rows with the window `rolling-Nd`; going back to a version that does not know them removes them."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. No table changes: the name of a window was always text."""


def downgrade() -> None:
    """Back. Versions before know no such limits: they are removed, never counted as something else."""
    limits = sa.table("usage_limit", sa.column("counted_per"))
    op.execute(sa.delete(limits).where(limits.c.counted_per.startswith("rolling-", autoescape=True)))
