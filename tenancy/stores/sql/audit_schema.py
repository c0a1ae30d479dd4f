"""The tables of the audit chain and of idempotency keys."""

import sqlalchemy as sa

from tenancy.stores.sql.schema import metadata

audit = sa.Table(
    "audit",
    metadata,
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
    sa.Index("audit_by_tenant", "tenant", "seq"),
)
"""Append-only: triggers refuse to change or remove rows."""

audit_head = sa.Table(
    "audit_head",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.LargeBinary(32), nullable=False),
)
"""One row: the last number and hash. Locking it is what makes writers wait for each other."""

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("actor", sa.String(80), primary_key=True),
    sa.Column("key_digest", sa.LargeBinary(32), primary_key=True),
    sa.Column("request_digest", sa.LargeBinary(32), nullable=False),
    sa.Column("at_unix", sa.Float, nullable=False, index=True),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("etag", sa.String(80), nullable=False),
    sa.Column("nonce", sa.LargeBinary(16), nullable=False),
    sa.Column("holder", sa.String(80), nullable=False, server_default="", index=True),
)
"""`holder`: a row counts towards its share of the table."""
