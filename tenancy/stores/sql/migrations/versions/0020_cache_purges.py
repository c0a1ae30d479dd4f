"""Purges of the answer cache, and their counter."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

change = sa.table("change", sa.column("what", sa.String), sa.column("version", sa.BigInteger))


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "cache_purge",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at_unix", sa.Float, nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
        sa.Column("before_unix", sa.Float, nullable=True),
    )
    op.bulk_insert(change, [{"what": "cache_purges", "version": 0}])


def downgrade() -> None:
    """Back. Versions before have no answer cache in the database's care."""
    op.execute(sa.delete(change).where(change.c.what == "cache_purges"))
    op.drop_table("cache_purge")
