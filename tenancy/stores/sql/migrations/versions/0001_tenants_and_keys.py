"""Tenants, projects, keys, and the change counter."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "tenant",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("created_unix", sa.Float, nullable=False),
    )
    op.create_table(
        "project",
        sa.Column("tenant", sa.String(63), sa.ForeignKey("tenant.name"), primary_key=True),
        sa.Column("name", sa.String(63), primary_key=True),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(10), primary_key=True),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("label", sa.String(200), nullable=False),
        sa.Column("kid", sa.String(32), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("second_digest", sa.LargeBinary(32)),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("expires_unix", sa.Float),
        sa.Column("revoked_unix", sa.Float),
        sa.ForeignKeyConstraint(["tenant", "project"], ["project.tenant", "project.name"]),
    )
    change = op.create_table(
        "change",
        sa.Column("what", sa.String(32), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(change, [{"what": "keys", "version": 1}])


def downgrade() -> None:
    """Back."""
    for table in ("change", "api_key", "project", "tenant"):
        op.drop_table(table)
