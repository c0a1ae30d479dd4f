"""The request log: finished requests, and the sealed texts of some."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "request_log",
        sa.Column("at_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("duration_us", sa.BigInteger, nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("key_id", sa.String(128), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("pool", sa.String(256), nullable=False),
        sa.Column("backend", sa.String(256), nullable=False),
        sa.Column("outcome", sa.String(64), nullable=False),
        sa.Column("rule", sa.String(256), nullable=False),
        sa.Column("cache", sa.String(64), nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
        sa.Column("expires_us", sa.BigInteger, nullable=False),
        sa.Column("line", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("request_log_by_tenant", "request_log", ["tenant", "at_us"])
    op.create_table(
        "request_content",
        sa.Column("at_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("end_user", sa.String(64), nullable=False),
        sa.Column("expires_us", sa.BigInteger, nullable=False),
        sa.Column("kid", sa.String(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("request_content_by_tenant", "request_content", ["tenant", "at_us"])


def downgrade() -> None:
    """Back. The requests are lost: no version before can read them."""
    op.drop_table("request_content")
    op.drop_table("request_log")
