"""Files, uploads in parts, batches and the results of their lines."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

change = sa.table("change", sa.column("what", sa.String), sa.column("version", sa.BigInteger))


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "stored_file",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(256), nullable=False),
        sa.Column("project", sa.String(256), nullable=False),
        sa.Column("filename", sa.String(512), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("expires_unix", sa.Float, nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
    )
    op.create_index("stored_file_by_time", "stored_file", ["tenant", "created_unix", "id"])
    op.create_index("stored_file_due", "stored_file", ["expires_unix"])
    op.create_table(
        "file_upload",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(256), nullable=False),
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("mime_type", sa.String(256), nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("expires_unix", sa.Float, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("keep_s", sa.Float, nullable=True),
    )
    op.create_index("ix_file_upload_expires_unix", "file_upload", ["expires_unix"])
    op.create_table(
        "upload_part",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("upload_id", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
    )
    op.create_index("ix_upload_part_upload_id", "upload_part", ["upload_id"])
    sums = ("completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    op.create_table(
        "batch",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(256), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in sums),
        sa.Column("owner", sa.String(64), nullable=False, server_default=""),
        sa.Column("until_unix", sa.Float, nullable=False, server_default="0"),
    )
    op.create_index("batch_by_time", "batch", ["tenant", "created_unix", "id"])
    op.create_index("batch_open", "batch", ["status", "created_unix"])
    op.create_table(
        "batch_line",
        sa.Column("batch_id", sa.String(64), primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("failed", sa.Boolean, nullable=False),
        sa.Column("output", sa.Text, nullable=False),
    )
    op.bulk_insert(change, [{"what": "files", "version": 0}, {"what": "batches", "version": 0}])


def downgrade() -> None:
    """Back. The bytes of files stay in their folder or bucket."""
    op.execute(sa.delete(change).where(change.c.what.in_(["files", "batches"])))
    for table in ("batch_line", "batch", "upload_part", "file_upload", "stored_file"):
        op.drop_table(table)
