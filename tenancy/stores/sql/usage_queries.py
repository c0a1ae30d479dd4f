"""Queries for usage, read from totals, and for single events. A page starts after the last key of the page before, so any page costs
the same."""

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.usage import Usage
from tenancy.limits import Level, Scope
from tenancy.stores.sql.schema import usage_event, usage_total
from tenancy.stores.sql.transaction import reading
from tenancy.usage import (
    MAX_PAGE_ROWS,
    PAGE_ROWS,
    SUMS,
    By,
    EventPage,
    Filter,
    LedgerAway,
    Page,
    UsageAnswerRow,
    UsageEvent,
    UsageSums,
    columns,
    from_cursor,
    to_cursor,
)

COLUMN: Final = {"key": "key_id", "user": "end_user"}
"""Columns whose name differs from the label's."""


class SqlUsageQueries:
    """Usage in SQL, for readers (`tenancy.usage.UsageQueries`)."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def totals(self, by: Sequence[By], where: Filter, after: str | None = None, limit: int = PAGE_ROWS) -> Page:
        names = columns(by)
        limit = min(max(limit, 1), MAX_PAGE_ROWS)
        keys = [_column(usage_total, name) for name in names]
        query = sa.select(*keys, *_sums()).where(*_conditions(usage_total, where))
        if keys:
            query = query.group_by(*keys).order_by(*keys).limit(limit + 1)
        place: Sequence[Any] = ()
        if after is not None:
            place = from_cursor(after, [dt.date if name == "day" else str for name in names])
            query = query.where(sa.tuple_(*keys) > sa.tuple_(*(sa.literal(v, k.type) for v, k in zip(place, keys, strict=True))))
        if names[:1] == ("tenant",) and msgspec.structs.replace(where, first_day=None, last_day=None) == Filter():
            tenants = await self._tenants(where, place, limit)
            if not tenants:
                return Page((), None)
            query = query.where(usage_total.c.tenant.between(tenants[0], tenants[-1]))
        fetched = await self._rows(query)
        shown = fetched[:limit]
        rows = tuple(UsageAnswerRow(tuple(str(value) for value in row[: len(names)]), _sums_of(row[len(names) :])) for row in shown)
        return Page(rows, to_cursor(shown[-1][: len(names)]) if len(fetched) > limit else None)

    async def _tenants(self, where: Filter, place: Sequence[Any], limit: int) -> list[str]:
        """The tenants of one page of totals by tenant, and one or two more. A database would add up the usage of every tenant, page after
        page; of these, which it finds by an index, it need not read others."""
        tenant = usage_total.c.tenant
        query = sa.select(tenant).where(*_conditions(usage_total, where)).group_by(tenant).order_by(tenant).limit(limit + 2)
        query = query.where(tenant >= (place[0] if place else ""))  # without it, SQLite reads every tenant
        return [row[0] for row in await self._rows(query)]

    async def spent(self, scope: Scope, since: dt.date | None, label: str = "") -> UsageSums:
        where = [usage_total.c[name] == value for name, value in _of_scope(scope, label).items()]
        if since is not None:
            where.append(usage_total.c.day >= since)
        (row,) = await self._rows(sa.select(*_sums()).where(*where))
        return _sums_of(row)

    async def events(self, where: Filter, after: str | None = None, limit: int = PAGE_ROWS) -> EventPage:
        limit = min(max(limit, 1), MAX_PAGE_ROWS)
        query = sa.select(usage_event).where(*_conditions(usage_event, where)).order_by(usage_event.c.seq).limit(limit + 1)
        if after is not None:
            (seq,) = from_cursor(after, [int])
            query = query.where(usage_event.c.seq > seq)
        fetched = await self._rows(query)
        shown = fetched[:limit]
        return EventPage(tuple(_event(row) for row in shown), to_cursor([shown[-1].seq]) if len(fetched) > limit else None)

    async def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        try:
            async with reading(self._engine) as connection:
                rows: Sequence[Any] = (await connection.execute(query)).all()
        except (SQLAlchemyError, OSError) as error:
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error
        return rows


def _column(table: sa.Table, name: str) -> sa.Column[Any]:
    return table.c[COLUMN.get(name, name)]


def _sums() -> list[sa.ColumnElement[Any]]:
    # Postgres adds integers up to a decimal number, which is exact too
    return [sa.func.coalesce(sa.func.sum(usage_total.c[name]), 0) for name in SUMS]


def _sums_of(values: Sequence[Any]) -> UsageSums:
    return UsageSums(*(int(value) for value in values))  # Postgres adds integers up to a decimal number, which is as exact


def _conditions(table: sa.Table, where: Filter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if where.first_day is not None:
        conditions.append(table.c.day >= where.first_day)
    if where.last_day is not None:
        conditions.append(table.c.day <= where.last_day)
    for name in ("organisation", "tenant", "project", "key", "user", "model", "lora"):
        value = getattr(where, name)
        if value is not None:
            conditions.append(_column(table, name) == value)
    return conditions


def _of_scope(scope: Scope, label: str) -> dict[str, str]:
    """The columns, with their values, that select what counts towards a scope."""
    if scope.level is Level.GLOBAL:
        return {}
    if scope.level in (Level.MODEL, Level.ORGANISATION, Level.TENANT):
        return {scope.level.value: scope.name}
    if scope.level is Level.KEY:
        return {"key_id": scope.name}
    tenant, _, project = scope.name.partition("/")
    labels = {"tenant": tenant}
    if project:
        labels["project"] = project
    if scope.level is Level.USER:
        labels["end_user"] = label
    return labels


def _event(row: Any) -> UsageEvent:
    return UsageEvent(
        request_id=row.request_id,
        at_unix_ms=row.at_unix_ms,
        tenant=row.tenant,
        project=row.project,
        key_id=row.key_id,
        user=row.end_user,
        endpoint=row.endpoint,
        model=row.model,
        pool=row.pool,
        revision=row.revision,
        lora=row.lora,
        outcome=row.outcome,
        closing=row.closing,
        usage=Usage(row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reasoning_tokens, row.audio_seconds, row.audio_bytes),
        units=row.units,
        cost_nanousd=row.cost_nanousd,
        price_id=row.price_id,
        duration_ms=row.duration_ms,
        organisation=row.organisation,
        priority_class=row.priority_class,
        asked_model=row.asked_model,
        steps=row.steps,
        reported=row.reported,
    )
