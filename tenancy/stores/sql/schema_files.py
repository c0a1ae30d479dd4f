"""The tables of files, uploads and batches, in the same metadata as all others (`tenancy.stores.sql.schema`).

`batch.facts` is the whole `domain.batches.StoredBatch` in JSON; the columns beside it are those that statements look for, and the counts,
which are changed in the transaction that inserts results. A row of `batch_line` lives until the output files of its batch are written.
"""

import sqlalchemy as sa

from tenancy.stores.sql.schema import metadata

stored_file = sa.Table(
    "stored_file",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(256), nullable=False),
    sa.Column("project", sa.String(256), nullable=False),
    sa.Column("filename", sa.String(512), nullable=False),
    sa.Column("purpose", sa.String(32), nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("expires_unix", sa.Float, nullable=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Index("stored_file_by_time", "tenant", "created_unix", "id"),
    sa.Index("stored_file_due", "expires_unix"),
)

file_upload = sa.Table(
    "file_upload",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(256), nullable=False),
    sa.Column("file_id", sa.String(64), nullable=False),
    sa.Column("mime_type", sa.String(256), nullable=False),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("expires_unix", sa.Float, nullable=False, index=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("keep_s", sa.Float, nullable=True),
)

upload_part = sa.Table(
    "upload_part",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("upload_id", sa.String(64), nullable=False, index=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_unix", sa.Float, nullable=False),
)

BATCH_SUMS = ("completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
"""The columns that results are added to."""

batch = sa.Table(
    "batch",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(256), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
    *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in BATCH_SUMS),
    sa.Column("owner", sa.String(64), nullable=False, server_default=""),
    sa.Column("until_unix", sa.Float, nullable=False, server_default="0"),
    sa.Index("batch_by_time", "tenant", "created_unix", "id"),
    sa.Index("batch_open", "status", "created_unix"),
)

batch_line = sa.Table(
    "batch_line",
    metadata,
    sa.Column("batch_id", sa.String(64), primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("failed", sa.Boolean, nullable=False),
    sa.Column("output", sa.Text, nullable=False),
)
