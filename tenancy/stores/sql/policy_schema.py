"""The table of policies that the database keeps."""

import sqlalchemy as sa

from tenancy.stores.sql.schema import metadata

policy_version = sa.Table(
    "policy_version",
    metadata,
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("author", sa.String(128), nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("at_unix", sa.Float, nullable=False),
    sa.Column("file_count", sa.Integer, nullable=False),
    sa.Column("files", sa.Text, nullable=False),
)
"""`files`: a JSON object, text by name."""
