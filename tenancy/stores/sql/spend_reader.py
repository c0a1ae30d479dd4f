"""Usage that counts towards limits, read from totals: one query for a whole level, however many limits there are."""

import asyncio
import datetime as dt
from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.drift import added
from tenancy.limits import Amounts, Level
from tenancy.periods import DAY_S, HOUR_S
from tenancy.stores.sql.schema import AUDIO_AMOUNTS, usage_event, usage_quarter, usage_total
from tenancy.stores.sql.transaction import reading
from tenancy.usage import MAX_SPENT, MAX_SPENT_HOURS, LedgerAway, Spent

NAMED_AT_MOST: Final = 500
"""Scopes that are named in a query; above it, reading all scopes is cheaper than selecting those that were asked for."""
EPOCH: Final = dt.date(1970, 1, 1)
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
        days = [usage_total.c.day >= since] if since is not None else []
        if before is not None:
            days.append(usage_total.c.day < before)
        return await self._of_level(level, names, usage_total, days, most)

    async def spent_since(self, level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT) -> list[Spent]:
        day, into_day_s = divmod(since_s, DAY_S)
        first = EPOCH + dt.timedelta(days=day)
        if not into_day_s:
            return await self.spent_by(level, names, first, most=most)
        rest_of_day = [usage_quarter.c.day == first, usage_quarter.c.begins_s >= since_s]
        earlier = await self._of_level(level, names, usage_quarter, rest_of_day, most)
        return await asyncio.to_thread(added, earlier, await self.spent_by(level, names, first + dt.timedelta(days=1), most=most))

    async def spent_per_hour(self, level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT_HOURS) -> list[Spent]:
        since = [usage_quarter.c.day >= EPOCH + dt.timedelta(days=since_s // DAY_S), usage_quarter.c.begins_s >= since_s]
        return await self._of_level(level, names, usage_quarter, since, most, per_hour=True)

    async def booked(self, request_ids: Collection[str]) -> set[str]:
        booked: set[str] = set()
        wanted = list(request_ids)
        for start in range(0, len(wanted), NAMED_AT_MOST):
            some = usage_event.c.request_id.in_(wanted[start : start + NAMED_AT_MOST])
            booked |= {row[0] for row in await self._rows(sa.select(usage_event.c.request_id).where(some))}
        return booked

    async def _of_level(
        self,
        level: Level,
        names: Collection[str],
        counted: sa.Table,
        when: Sequence[sa.ColumnElement[bool]],
        most: int,
        *,
        per_hour: bool = False,
    ) -> list[Spent]:
        async def read(columns: tuple[str, ...], some: Collection[str]) -> list[Spent]:
            query, by = _sums_of(columns, some, counted, when)
            if per_hour:
                hour = (counted.c.begins_s // sa.literal_column(f"{HOUR_S}", sa.BigInteger)).label("hour")
                query = query.add_columns(hour).order_by(None).order_by(hour.desc()).group_by(*by, hour).limit(most)
            elif by:
                query = query.group_by(*by).limit(most)
            scoped = len([name for name in columns if name != "end_user"])
            return await asyncio.to_thread(_spent, await self._rows(query), scoped, len(columns))

        if level is not Level.USER:
            return await read(_COLUMNS[level], names)
        # end users of a whole tenant and those of one project are different scopes
        tenants = [name for name in names if "/" not in name]
        projects = [name for name in names if "/" in name]
        spent = await read(("tenant", "end_user"), tenants) if tenants else []
        return spent + (await read(("tenant", "project", "end_user"), projects) if projects else [])

    async def _rows(self, query: sa.Select[Any]) -> list[Any]:
        try:
            async with reading(self._engine) as connection:
                return list((await connection.execute(query)).all())
        except (SQLAlchemyError, OSError) as error:
            raise LedgerAway(f"{type(error).__name__}: {error}"[:500]) from error


def _sums_of(
    columns: tuple[str, ...], names: Collection[str], counted: sa.Table, when: Sequence[sa.ColumnElement[bool]]
) -> tuple[sa.Select[Any], list[sa.ColumnElement[Any]]]:
    """The question for sums of `counted`, whose rows have the labels of the totals of their day, over the rows of `when`; and the columns
    that it is to be grouped by."""
    total = usage_total.c
    sums = counted.c
    by: list[sa.ColumnElement[Any]] = [total[name] for name in columns]
    input_, output, cost = (sa.func.sum(sums[name]) for name in ("prompt_tokens", "completion_tokens", "cost_nanousd"))
    counts = [sa.func.sum(sums.units), cost, sa.func.sum(sums.requests - sums.free_requests)]
    query = sa.select(*by, input_, output, *counts, *(sa.func.sum(sums[name]) for name in AUDIO_AMOUNTS)).where(*when)
    if counted is not usage_total:
        query = query.select_from(counted.join(usage_total, (sums.day == total.day) & (sums.bucket == total.bucket)))
    if "end_user" in columns:
        query = query.where(total.end_user != "").order_by(cost.desc(), input_.desc())
    if by:
        first = {name.partition("/")[0] for name in names}
        if len(first) <= NAMED_AT_MOST:
            query = query.where(by[0].in_(sorted(first)))
    return query, by


def _spent(rows: list[Any], scoped: int, columns: int) -> list[Spent]:
    amounts = slice(columns, columns + len(Amounts.__struct_fields__))
    return [
        Spent(
            "/".join(row[:scoped]),
            row[scoped] if scoped < columns else "",
            Amounts(*(int(value or 0) for value in row[amounts])),
            *(int(hour) for hour in row[amounts.stop :]),
        )
        for row in rows
    ]
