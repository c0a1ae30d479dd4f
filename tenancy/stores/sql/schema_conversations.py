"""The tables of conversations and their items, and what removes them.

Apart from their store (`conversations.py`), because erasure, the sweep and the end of a tenant (`responses.py`, `accounts.py`) remove
conversations together with stored Responses, and the store builds on those.

Whoever changes a conversation takes the lock of its row first, and that of the tenant's bytes (`stored_bytes`) last, so that no two of
them wait for each other.
"""

from collections import Counter

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.identity import TenantId
from tenancy.stores.sql.schema import metadata

conversation = sa.Table(
    "conversation",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(63), primary_key=True),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("expires_unix", sa.Float, nullable=False),
    sa.Column("end_user", sa.String(64), nullable=False),
    sa.Column("next", sa.BigInteger, nullable=False),
    sa.Column("item_count", sa.BigInteger, nullable=False),
    sa.Column("item_bytes", sa.BigInteger, nullable=False),
    sa.Column("kid", sa.String(32), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Index("conversation_by_end", "expires_unix"),
    sa.Index("conversation_by_user", "end_user", "tenant"),
)
"""`sealed` is the metadata and `bytes` its size; `next` is the place of the next item; `item_count` and `item_bytes` are the number and the
sealed bytes of the items that there are."""

conversation_item = sa.Table(
    "conversation_item",
    metadata,
    sa.Column("conversation", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(63), primary_key=True),
    sa.Column("place", sa.BigInteger, primary_key=True),
    sa.Column("id", sa.String(64), nullable=False),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("end_user", sa.String(64), nullable=False),
    sa.Column("kid", sa.String(32), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Index("conversation_item_by_id", "conversation", "id"),
    sa.Index("conversation_item_by_user", "end_user", "tenant"),
)


def conversation_is_of(tenant: TenantId) -> "sa.ColumnElement[bool]":
    """The conversations of a tenant."""
    return conversation.c.tenant == tenant


def items_in(tenant: TenantId, conversation_id: str) -> "sa.ColumnElement[bool]":
    """The items of a conversation."""
    return (conversation_item.c.conversation == conversation_id) & (conversation_item.c.tenant == tenant)


async def remove_conversations(connection: AsyncConnection, where: "sa.ColumnElement[bool]") -> tuple[int, Counter[str]]:
    """Remove conversations with their items; returns how many there were, and the bytes by tenant, which are still to be subtracted."""
    column, item = conversation.c, conversation_item.c
    wanted = column.id, column.tenant, (column.bytes + column.item_bytes).label("size")
    gone = (await connection.execute(sa.delete(conversation).where(where).returning(*wanted))).all()
    sums: Counter[str] = Counter()
    for conversation_id, tenant, size in gone:
        sums[tenant] += size
        await connection.execute(sa.delete(conversation_item).where(item.conversation == conversation_id, item.tenant == tenant))
    return len(gone), sums


def conversations_of_users(tenant: TenantId, end_users: list[str], before_unix: float | None) -> "sa.ColumnElement[bool]":
    """The conversations that end users created or have an item in; those that they did so in before a time, where one is given."""
    column, item = conversation.c, conversation_item.c
    created: sa.ColumnElement[bool] = column.end_user.in_(end_users)
    has: sa.ColumnElement[bool] = item.end_user.in_(end_users)
    if before_unix is not None:
        created, has = created & (column.created_unix < before_unix), has & (item.created_unix < before_unix)
    theirs = sa.select(item.conversation).where(item.tenant == tenant, has)
    return conversation_is_of(tenant) & (created | column.id.in_(theirs))


def forgotten_conversations(tenant: TenantId) -> tuple[sa.Delete, ...]:
    """What removes all conversations of a tenant that is being deleted, in its transaction."""
    items = sa.delete(conversation_item).where(conversation_item.c.tenant == tenant)
    return sa.delete(conversation).where(conversation_is_of(tenant)), items
