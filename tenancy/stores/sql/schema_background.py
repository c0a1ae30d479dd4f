"""The tables of Responses in the background, and how rows of them are removed.

A row and its events go together. The bytes of both are counted in `stored_bytes` (`responses.py`), like those of stored Responses, by
whoever writes or removes them.
"""

from collections import Counter

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.identity import TenantId
from tenancy.stores.sql.schema import metadata

background_response = sa.Table(
    "background_response",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(63), primary_key=True),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("expires_unix", sa.Float, nullable=False),
    sa.Column("end_user", sa.String(64), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("last", sa.Integer, nullable=False),
    sa.Column("worker", sa.String(64), nullable=False),
    sa.Column("lease_until_unix", sa.Float, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("kid", sa.String(32), nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Index("background_response_by_lease", "lease_until_unix"),
    sa.Index("background_response_by_end", "expires_unix"),
    sa.Index("background_response_by_user", "end_user", "tenant"),
)
"""`bytes` is the size of `sealed` and of all its events; `kid` as in `stored_response`. The lease of a Response that is over is 0, so
that those which are not over are found by the index of leases."""

background_events = sa.Table(
    "background_events",
    metadata,
    sa.Column("response", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(63), primary_key=True),
    sa.Column("first", sa.Integer, primary_key=True),
    sa.Column("last", sa.Integer, nullable=False),
    sa.Column("kid", sa.String(32), nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
)
"""One row for each batch of events: those with the sequence numbers from `first` to `last`."""


async def remove_background(connection: AsyncConnection, where: "sa.ColumnElement[bool]") -> tuple[int, Counter[str]]:
    """Remove Responses in the background with their events.

    Returns:
        How many of them no stored Response stands for, and the bytes that are to be subtracted from the sum of each tenant.
    """
    column, event = background_response.c, background_events.c
    gone = (
        await connection.execute(
            sa.delete(background_response).where(where).returning(column.tenant, column.id, column.status, column.bytes)
        )
    ).all()
    sums: Counter[str] = Counter()
    for tenant, name, _status, size in gone:
        sums[tenant] += size
        await connection.execute(sa.delete(background_events).where(event.response == name, event.tenant == tenant))
    return sum(status not in ("completed", "incomplete") for _, _, status, _ in gone), sums


def forgotten_background(tenant: TenantId) -> tuple[sa.Delete, ...]:
    """Statements that remove all Responses in the background of a tenant that is being deleted, in its transaction."""
    of_tenant = background_response.c.tenant == tenant
    return sa.delete(background_response).where(of_tenant), sa.delete(background_events).where(background_events.c.tenant == tenant)
