"""Responses in the background in SQL: a row for the state of each, sealed, and rows of sealed events behind it.

Whoever changes a row locks it first, so of a worker that goes on and a caller who cancels, one is first and the other finds out. A
worker's write is one transaction: the events, the state, the bytes of the tenant, and at the end the stored Response.
"""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.clock import WallClock
from domain.identity import TenantId
from tenancy.background import OPEN, Advance, BackgroundBounds, BackgroundResponse, End, EventBatch, TooManyInBackground
from tenancy.responses import NoRoomForResponses, ResponseSealer
from tenancy.stores.sql.responses import READ_WITHIN_S, WRITE_WITHIN_S, away, erased, give_room, insert_response, log, take_room
from tenancy.stores.sql.schema_background import background_events, background_response, remove_background
from tenancy.stores.sql.transaction import SqlConnections

BATCHES_AT_ONCE = 16
"""Batches of events that one read brings: a second of a fast stream is two of them, some ten KiB."""


class SqlBackgroundResponses:
    """Responses in the background in SQL (`tenancy.background.BackgroundStore`).

    Args:
        sealer: seals and opens what is kept.
        wall: seconds since the epoch.
    """

    def __init__(self, engine: SqlConnections, sealer: ResponseSealer, wall: WallClock) -> None:
        self._engine = engine
        self._sealer = sealer
        self._wall = wall

    # --- the worker's side --------------------------------------------------------------------------------------------

    async def create(self, new: BackgroundResponse, worker: str, told: EventBatch, bounds: BackgroundBounds) -> None:
        sealed, events = self._sealed(new), self._sealed_events(new.tenant, new.id, told)
        size = len(sealed) + len(events)
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            if await erased(connection, new):
                return
            if not await take_room(connection, new.tenant, size, bounds.bytes):  # of two at once, the second one waits here
                raise NoRoomForResponses
            column = background_response.c
            running = sa.select(sa.func.count()).where(column.tenant == new.tenant, column.lease_until_unix >= self._wall())
            if (await connection.scalar(running) or 0) >= bounds.responses:
                raise TooManyInBackground
            values = {name: getattr(new, name) for name in _SAME}
            row = sa.insert(background_response).values(**values, worker=worker, bytes=size, kid=self._sealer.kid, sealed=sealed)
            await connection.execute(row)
            await self._insert(connection, new.tenant, new.id, told, events)

    async def advance(self, tenant: TenantId, response_id: str, worker: str, added: Advance, max_bytes: int) -> bool:
        events = self._sealed_events(tenant, response_id, added.batch)
        final = self._sealer.seal(added.final) if added.final is not None else b""
        column = background_response.c
        mine = _is(tenant, response_id) & (column.worker == worker) & column.status.in_(OPEN)
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            row = await _locked(connection, mine)
            if row is None:
                return False
            changed: dict[str, object] = {"status": added.status, "last": added.batch.last}
            more = len(events)
            if added.response is not None:
                opened = self._opened(row)
                if opened is None:
                    return False
                sealed = self._sealer.sealed(tenant, _row_name(response_id), added.response, opened[1])
                more += len(sealed) - len(row["sealed"])
                changed |= {"sealed": sealed, "kid": self._sealer.kid}
            if added.status not in OPEN:
                changed |= {"lease_until_unix": 0.0}
            await connection.execute(sa.update(background_response).where(mine).values(**changed, bytes=column.bytes + more))
            await self._insert(connection, tenant, response_id, added.batch, events)
            if not await take_room(connection, tenant, more + len(final), max_bytes):
                raise NoRoomForResponses
            if added.final is not None:
                await insert_response(connection, added.final, final, self._sealer.kid)
        return True

    async def renew(self, worker: str, until_unix: float) -> frozenset[tuple[TenantId, str]]:
        column = background_response.c
        mine = sa.update(background_response).where(column.lease_until_unix > 0, column.worker == worker)
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            rows = (await connection.execute(mine.values(lease_until_unix=until_unix).returning(column.tenant, column.id))).all()
        return frozenset((TenantId(tenant), name) for tenant, name in rows)

    # --- the callers' side --------------------------------------------------------------------------------------------

    async def find(self, tenant: TenantId, response_id: str) -> BackgroundResponse | None:
        wanted = sa.select(background_response).where(_is(tenant, response_id), background_response.c.expires_unix > self._wall())
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            row = (await connection.execute(wanted)).mappings().first()
        opened = None if row is None else self._opened(row)
        return None if row is None or opened is None else _state_of(row, opened)

    async def events(self, tenant: TenantId, response_id: str, after: int) -> list[EventBatch]:
        column = background_events.c
        wanted = sa.select(background_events).where(column.response == response_id, column.tenant == tenant, column.last > after)
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            rows = (await connection.execute(wanted.order_by(column.first).limit(BATCHES_AT_ONCE))).mappings().all()
        batches = []
        for row in rows:
            opened = self._sealer.opened(row["sealed"], row["kid"], tenant, _batch_name(response_id, row["first"]))
            if opened is None:
                log.warning("events of a Response cannot be opened", tenant=tenant, response=response_id, pepper=row["kid"])
                return []
            batches.append(EventBatch(row["first"], row["last"], opened[0]))
        return batches

    async def end(self, tenant: TenantId, response_id: str, ends: End) -> BackgroundResponse | None:
        column, now = background_response.c, self._wall()
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            row = await _locked(connection, _is(tenant, response_id) & (column.expires_unix > now))
            opened = None if row is None else self._opened(row)
            if row is None or opened is None:
                return None
            seen = _state_of(row, opened)
            if seen.is_over or (end := ends(seen)) is None:
                return seen
            ended, told = end
            batch = EventBatch(ended.last, ended.last, told)
            sealed, events = self._sealed(ended), self._sealed_events(tenant, response_id, batch)
            more = len(events) + len(sealed) - len(row["sealed"])
            values = {"status": ended.status, "last": ended.last, "lease_until_unix": 0.0, "kid": self._sealer.kid, "sealed": sealed}
            changed = sa.update(background_response).where(_is(tenant, response_id)).values(**values, bytes=column.bytes + more)
            await connection.execute(changed)
            await self._insert(connection, tenant, response_id, batch, events)
            await give_room(connection, {tenant: -more})  # an end is told even where there is no room for it
        return ended

    async def discard(self, tenant: TenantId, response_id: str) -> bool:
        there = _is(tenant, response_id) & (background_response.c.expires_unix > self._wall())
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            _, sums = await remove_background(connection, there)
            await give_room(connection, sums)
        return bool(sums)

    # --- rows ---------------------------------------------------------------------------------------------------------

    async def _insert(self, connection: AsyncConnection, tenant: TenantId, response_id: str, batch: EventBatch, sealed: bytes) -> None:
        values = {"response": response_id, "tenant": tenant, "first": batch.first, "last": batch.last}
        await connection.execute(sa.insert(background_events).values(**values, kid=self._sealer.kid, sealed=sealed))

    def _sealed(self, state: BackgroundResponse) -> bytes:
        return self._sealer.sealed(state.tenant, _row_name(state.id), state.response, state.items)

    def _sealed_events(self, tenant: TenantId, response_id: str, batch: EventBatch) -> bytes:
        return self._sealer.sealed(tenant, _batch_name(response_id, batch.first), batch.events, b"")

    def _opened(self, row: "sa.RowMapping") -> tuple[bytes, bytes] | None:
        opened = self._sealer.opened(row["sealed"], row["kid"], row["tenant"], _row_name(row["id"]))
        if opened is None:
            log.warning("a Response in the background cannot be opened", tenant=row["tenant"], response=row["id"], pepper=row["kid"])
        return opened


_SAME = tuple(name for name in BackgroundResponse.__struct_fields__ if name not in ("response", "items"))


def _is(tenant: TenantId, response_id: str) -> "sa.ColumnElement[bool]":
    return (background_response.c.id == response_id) & (background_response.c.tenant == tenant)


async def _locked(connection: AsyncConnection, where: "sa.ColumnElement[bool]") -> "sa.RowMapping | None":
    """A row that nobody else changes until the transaction is over; None where there is none."""
    return (await connection.execute(sa.select(background_response).where(where).with_for_update())).mappings().first()


def _state_of(row: "sa.RowMapping", opened: tuple[bytes, bytes]) -> BackgroundResponse:
    return BackgroundResponse(**{name: row[name] for name in _SAME}, response=opened[0], items=opened[1])


def _row_name(response_id: str) -> str:
    """What a row's sealed bytes are bound to; no id of a Response has a slash."""
    return f"{response_id}/background"


def _batch_name(response_id: str, first: int) -> str:
    """What a batch's sealed bytes are bound to."""
    return f"{response_id}/{first}"
