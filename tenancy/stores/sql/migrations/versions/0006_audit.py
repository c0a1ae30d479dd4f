"""The audit chain, and answers kept for idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SQLITE = [
    f"CREATE TRIGGER audit_no_{verb.lower()} BEFORE {verb} ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
    for verb in ("UPDATE", "DELETE")
]
POSTGRES = [
    """CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$""",
    """CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()""",
]


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at_unix_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("target", sa.String(512), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("before", sa.Text, nullable=False),
        sa.Column("after", sa.Text, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
    )
    op.create_index("audit_by_tenant", "audit", ["tenant", "seq"])
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
    )
    op.bulk_insert(head, [{"id": 1, "seq": 0, "hash": bytes(32)}])
    op.create_table(
        "idempotency",
        sa.Column("actor", sa.String(80), primary_key=True),
        sa.Column("key_digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("request_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("at_unix", sa.Float, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("etag", sa.String(80), nullable=False),
        sa.Column("nonce", sa.LargeBinary(16), nullable=False),
    )
    op.create_index("ix_idempotency_at_unix", "idempotency", ["at_unix"])
    for statement in POSTGRES if op.get_bind().dialect.name == "postgresql" else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    """Back; the audit is lost with its table."""
    for table in ("idempotency", "audit_head", "audit"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_append_only()")
