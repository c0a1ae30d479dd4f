"""Conversations in SQL: a row for each, sealed, and rows of sealed items behind it.

An addition takes the lock of the conversation's row, which gives it the places of its items. So additions come one after the other, from
whichever gateway, and what is added together stands together.
"""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.clock import WallClock
from domain.identity import TenantId
from tenancy.conversations import (
    MOST_CONVERSATION_ITEMS,
    AddedItems,
    Conversation,
    ConversationItem,
    ConversationPage,
    ItemExists,
    UnknownItem,
    WholeConversation,
)
from tenancy.responses import MAX_CHAIN_BYTES, ConversationTooLong, NoRoomForResponses, ResponseSealer, StoredResponse
from tenancy.stores.sql.responses import (
    READ_WITHIN_S,
    WRITE_WITHIN_S,
    away,
    erased,
    give_room,
    insert_response,
    log,
    remove_past,
    take_room,
)
from tenancy.stores.sql.schema_conversations import (
    conversation,
    conversation_is_of,
    conversation_item,
    items_in,
    remove_conversations,
)
from tenancy.stores.sql.transaction import SqlConnections

_SAME: Final = tuple(name for name in Conversation.__struct_fields__ if name != "metadata")


class SqlConversations:
    """Conversations in SQL (`tenancy.conversations.ConversationStore`).

    Args:
        sealer: seals and opens what is kept.
        wall: seconds since the epoch.
    """

    def __init__(self, engine: SqlConnections, sealer: ResponseSealer, wall: WallClock) -> None:
        self._engine = engine
        self._sealer = sealer
        self._wall = wall

    # --- conversations ------------------------------------------------------------------------------------------------

    async def create(self, new: Conversation, items: Sequence[ConversationItem], max_bytes: int) -> None:
        sealed = self._sealer.sealed(new.tenant, new.id, new.metadata, b"")
        added = AddedItems(conversation=new.id, tenant=new.tenant, created_unix=new.created_unix, end_user=new.end_user, items=items)
        rows = self._rows_of(added, 0)
        item_bytes = sum(row["bytes"] for row in rows)
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            if await erased(connection, added):
                return
            await self._take_room(connection, new.tenant, len(sealed) + item_bytes, max_bytes)
            same = {name: getattr(new, name) for name in _SAME}
            counts = {"next": len(rows), "item_count": len(rows), "item_bytes": item_bytes}
            kept = {"kid": self._sealer.kid, "bytes": len(sealed), "sealed": sealed}
            await connection.execute(sa.insert(conversation).values(same | counts | kept))
            await _insert(connection, rows)

    async def get(self, tenant: TenantId, conversation_id: str) -> Conversation | None:
        wanted = sa.select(conversation).where(self._is(tenant, conversation_id))
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            row = (await connection.execute(wanted)).mappings().first()
        if row is None:
            return None
        kept = self._opened(row["sealed"], row["kid"], tenant, conversation_id)
        return None if kept is None else Conversation(**{name: row[name] for name in _SAME}, metadata=kept)

    async def change(self, changed: Conversation, max_bytes: int) -> bool:
        sealed = self._sealer.sealed(changed.tenant, changed.id, changed.metadata, b"")
        here = self._is(changed.tenant, changed.id)
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            had = await connection.scalar(sa.select(conversation.c.bytes).where(here).with_for_update())
            if had is None:
                return False
            kept = {"kid": self._sealer.kid, "bytes": len(sealed), "sealed": sealed}
            await connection.execute(sa.update(conversation).where(here).values(kept))
            if len(sealed) <= had:
                await give_room(connection, {changed.tenant: had - len(sealed)})
            else:
                await self._take_room(connection, changed.tenant, len(sealed) - had, max_bytes)
        return True

    async def remove(self, tenant: TenantId, conversation_id: str) -> bool:
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            count, sums = await remove_conversations(connection, self._is(tenant, conversation_id))
            await give_room(connection, sums)
        return count > 0

    # --- reading items ------------------------------------------------------------------------------------------------

    async def read(self, tenant: TenantId, conversation_id: str) -> WholeConversation | None:
        column, item = conversation.c, conversation_item.c
        fits = (column.item_count <= MOST_CONVERSATION_ITEMS) & (column.item_bytes <= MAX_CHAIN_BYTES)
        both = conversation.outerjoin(conversation_item, (item.conversation == column.id) & (item.tenant == column.tenant) & fits)
        wanted = (column.item_count, column.item_bytes, item.place, item.id, item.kid, item.sealed)
        query = sa.select(*wanted).select_from(both).where(self._is(tenant, conversation_id)).order_by(item.place)
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        if not rows:
            return None
        size = rows[0]["item_bytes"]
        if rows[0]["item_count"] > MOST_CONVERSATION_ITEMS or size > MAX_CHAIN_BYTES:
            raise ConversationTooLong
        found = [row for row in rows if row["place"] is not None]
        items = [self._item(row, tenant, conversation_id) for row in found]
        known = [one for one in items if one is not None]
        return WholeConversation(known, size) if len(known) == len(items) else None

    async def page(self, tenant: TenantId, conversation_id: str, after: str, limit: int, *, newest_first: bool) -> ConversationPage | None:
        item = conversation_item.c
        wanted = items_in(tenant, conversation_id)
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            if await connection.scalar(sa.select(conversation.c.next).where(self._is(tenant, conversation_id))) is None:
                return None
            unknown = False
            if after:
                end = sa.func.min(item.place) if newest_first else sa.func.max(item.place)
                place = await connection.scalar(sa.select(end).where(wanted, item.id == after))
                unknown = place is None
                if not unknown:
                    wanted &= item.place < place if newest_first else item.place > place
            order = item.place.desc() if newest_first else item.place
            query = sa.select(conversation_item).where(wanted).order_by(order).limit(limit + 1)
            rows = [] if unknown else (await connection.execute(query)).mappings().all()
        if unknown:
            raise UnknownItem
        items = [self._item(row, tenant, conversation_id) for row in rows[:limit]]
        return ConversationPage([one for one in items if one is not None], len(rows) > limit)

    async def item(self, tenant: TenantId, conversation_id: str, item_id: str) -> ConversationItem | None:
        wanted = items_in(tenant, conversation_id) & (conversation_item.c.id == item_id)
        here = sa.exists().where(self._is(tenant, conversation_id))
        query = sa.select(conversation_item).where(wanted, here).order_by(conversation_item.c.place).limit(1)
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else self._item(row, tenant, conversation_id)

    # --- writing items ------------------------------------------------------------------------------------------------

    async def append(self, added: AddedItems, max_bytes: int) -> bool:
        there = ""
        item = conversation_item.c
        named = items_in(added.tenant, added.conversation) & item.id.in_([one.id for one in added.items])
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            if await erased(connection, added):
                return False
            size = await self._insert_behind(connection, added, named)
            if size is None:
                return False
            if size < 0:
                there = await connection.scalar(sa.select(item.id).where(named).limit(1)) or ""
            else:
                await self._take_room(connection, added.tenant, size, max_bytes)
        if there:
            raise ItemExists(there)
        return True

    async def append_answer(self, added: AddedItems, max_bytes: int, stored: StoredResponse | None) -> None:
        sealed = b"" if stored is None else self._sealer.seal(stored)
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            if await erased(connection, added):
                return
            size = await self._insert_behind(connection, added, None) or 0
            if size + len(sealed):
                await self._take_room(connection, added.tenant, size + len(sealed), max_bytes)
            if stored is not None:
                await insert_response(connection, stored, sealed, self._sealer.kid)

    async def _insert_behind(self, connection: AsyncConnection, added: AddedItems, taken: "sa.ColumnElement[bool] | None") -> int | None:
        """Insert items, whose bytes are still to be counted: their number is returned. None where the conversation is not there, and less
        than 0 where there are items that are `taken`; then nothing is inserted.

        The lock of the conversation's row is held from here to the end of the transaction.
        """
        column = conversation.c
        here = self._is(added.tenant, added.conversation)
        first = await connection.scalar(sa.select(column.next).where(here).with_for_update())
        if first is None:
            return None
        if taken is not None and await connection.scalar(sa.select(sa.exists().where(taken))):
            return -1
        rows = self._rows_of(added, first)
        size: int = sum(row["bytes"] for row in rows)
        more = {"next": column.next + len(rows), "item_count": column.item_count + len(rows), "item_bytes": column.item_bytes + size}
        await connection.execute(sa.update(conversation).where(here).values(more))
        await _insert(connection, rows)
        return size

    async def drop(self, tenant: TenantId, conversation_id: str, item_id: str) -> bool:
        column, item = conversation.c, conversation_item.c
        here = self._is(tenant, conversation_id)
        wanted = items_in(tenant, conversation_id) & (item.id == item_id)
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            if await connection.scalar(sa.select(column.next).where(here).with_for_update()) is None:
                return False
            gone = (await connection.execute(sa.delete(conversation_item).where(wanted).returning(item.bytes))).scalars().all()
            less = {"item_count": column.item_count - len(gone), "item_bytes": column.item_bytes - sum(gone)}
            await connection.execute(sa.update(conversation).where(here).values(less))
            await give_room(connection, {tenant: sum(gone)})
        return len(gone) > 0

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _is(self, tenant: TenantId, conversation_id: str) -> "sa.ColumnElement[bool]":
        column = conversation.c
        return conversation_is_of(tenant) & (column.id == conversation_id) & (column.expires_unix > self._wall())

    async def _take_room(self, connection: AsyncConnection, tenant: TenantId, size: int, max_bytes: int) -> None:
        """Count more bytes of a tenant; what is past its time makes room. Raises NoRoomForResponses."""
        if await take_room(connection, tenant, size, max_bytes):
            return
        await remove_past(connection, tenant, self._wall())
        if not await take_room(connection, tenant, size, max_bytes):
            raise NoRoomForResponses

    def _rows_of(self, added: AddedItems, first: int) -> list[dict[str, Any]]:
        rows = []
        for place, one in enumerate(added.items, first):
            sealed = self._sealer.sealed(added.tenant, _name_of(added.conversation, one.id), one.item, b"")
            rows.append(
                {
                    "conversation": added.conversation,
                    "tenant": added.tenant,
                    "place": place,
                    "id": one.id,
                    "created_unix": added.created_unix,
                    "end_user": added.end_user,
                    "kid": self._sealer.kid,
                    "bytes": len(sealed),
                    "sealed": sealed,
                }
            )
        return rows

    def _item(self, row: Any, tenant: TenantId, conversation_id: str) -> ConversationItem | None:
        kept = self._opened(row["sealed"], row["kid"], tenant, _name_of(conversation_id, row["id"]))
        return None if kept is None else ConversationItem(row["id"], kept)

    def _opened(self, sealed: bytes, kid: str, tenant: TenantId, name: str) -> bytes | None:
        kept = self._sealer.opened(sealed, kid, tenant, name)
        if kept is None:
            log.warning("a part of a conversation cannot be opened", tenant=tenant, conversation=name, pepper=kid)
            return None
        return kept[0]


def _name_of(conversation_id: str, item_id: str) -> str:
    """The name that an item is sealed under. No id has a slash."""
    return f"{conversation_id}/{item_id}"


async def _insert(connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
    if rows:
        await connection.execute(sa.insert(conversation_item), rows)
