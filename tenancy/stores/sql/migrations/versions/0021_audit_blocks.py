"""Numbers of blocks by guard rules, from which the audit's rows of them are bounded."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "audit_blocks",
        sa.Column("tenant", sa.String(256), primary_key=True),
        sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("written", sa.BigInteger, nullable=False),
        sa.Column("further", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Back. Blocks beyond the bound in the last minutes are not summed up then."""
    op.drop_table("audit_blocks")
