"""Usage that counts towards limits, read from totals: one query for a whole level, however many limits there are."""

import asyncio
import datetime as dt
from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.limits import Amounts, Level
from tenancy.stores.sql.schema import usage_event, usage_total
from tenancy.usage import MAX_SPENT, LedgerAway, Spent

NAMED_AT_MOST: Final = 500
"""Scopes that are named in a query; above it, reading all scopes is cheaper than selecting those that were asked for."""
_COLUMNS: Final[dict[Level, tuple[str, ...]]] = {
    Level.GLOBAL: (),
    Level.MODEL: ("model",),
    Level.ORGANISATION: ("organisation",),
    Level.TENANT: ("tenant",),
    Level.PROJECT: ("tenant", "project"),
    Level.KEY: ("key_id",),
}


class SqlSpendReader:
    """Reads usage per scope from SQL (`tenancy.usage.SpendReader`)."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def spent_by(
        self, level: Level, names: Collection[str], since: dt.date | None, before: dt.date | None = None, most: int = MAX_SPENT
    ) -> list[Spent]:
        if level is not Level.USER:
            return await self._read(_COLUMNS[level], names, since, before, most)
        # end users of a whole tenant and those of one project are different scopes
        tenants = [name for name in names if "/" not in name]
        projects = [name for name in names if "/" in name]
        spent = await self._read(("tenant", "end_user"), tenants, since, before, most) if tenants else []
        return spent + (await self._read(("tenant", "project", "end_user"), projects, since, before, most) if projects else [])

    async def booked(self, request_ids: Collection[str]) -> set[str]:
        booked: set[str] = set()
        wanted = list(request_ids)
        for start in range(0, len(wanted), NAMED_AT_MOST):
            some = usage_event.c.request_id.in_(wanted[start : start + NAMED_AT_MOST])
            booked |= {row[0] for row in await self._rows(sa.select(usage_event.c.request_id).where(some))}
        return booked

    async def _read(
        self, columns: tuple[str, ...], names: Collection[str], since: dt.date | None, before: dt.date | None, most: int
    ) -> list[Spent]:
        total = usage_total.c
        by = [total[name] for name in columns]
        input_, output, cost = (sa.func.sum(total[name]) for name in ("prompt_tokens", "completion_tokens", "cost_nanousd"))
        query = sa.select(*by, input_, output, sa.func.sum(total.units), cost, sa.func.sum(total.requests - total.free_requests))
        if since is not None:
            query = query.where(total.day >= since)
        if before is not None:
            query = query.where(total.day < before)
        if "end_user" in columns:
            query = query.where(total.end_user != "").order_by(cost.desc(), input_.desc())
        if by:
            query = query.group_by(*by).limit(most)
            first = {name.partition("/")[0] for name in names}
            if len(first) <= NAMED_AT_MOST:
                query = query.where(by[0].in_(sorted(first)))
        scoped = [name for name in columns if name != "end_user"]
        rows = await self._rows(query)
        return await asyncio.to_thread(_spent, rows, len(scoped), len(columns))

    async def _rows(self, query: sa.Select[Any]) -> list[Any]:
        try:
            async with self._engine.connect() as connection:
                return list((await connection.execute(query)).all())
        except (SQLAlchemyError, OSError) as error:
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error


def _spent(rows: list[Any], scoped: int, columns: int) -> list[Spent]:
    return [
        Spent("/".join(row[:scoped]), row[scoped] if scoped < columns else "", Amounts(*(int(value or 0) for value in row[columns:])))
        for row in rows
    ]
