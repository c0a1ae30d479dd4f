"""Names of deleted tenants, and whose an idempotency key is."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. The audit knows who was deleted before."""
    op.create_table("retired_tenant", sa.Column("name", sa.String(63), primary_key=True))
    op.execute(
        "INSERT INTO retired_tenant (name) SELECT DISTINCT tenant FROM audit "
        "WHERE action = 'tenant.delete' AND tenant NOT IN (SELECT name FROM tenant)"
    )
    op.add_column("idempotency", sa.Column("holder", sa.String(80), nullable=False, server_default=""))
    op.create_index("ix_idempotency_holder", "idempotency", ["holder"])


def downgrade() -> None:
    """Back."""
    op.drop_index("ix_idempotency_holder", "idempotency")
    op.drop_column("idempotency", "holder")
    op.drop_table("retired_tenant")
