"""Which end users have totals of their own on a day, so that callers, who choose labels, cannot fill the database with totals.

A process remembers the labels of the days and tenants that it books, read from the totals when a day and tenant first come. Each
process that books remembers its own, so that with several hosts there may be as many labels as hosts times the bound.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tenancy.limits import OTHER_LABEL
from tenancy.stores.sql.usage_schema import usage_total

KEPT: Final = 300_000
"""Labels of all days and tenants that are remembered; beyond it the oldest are dropped, and read again when needed."""

Place = tuple[dt.date, str]


class DayLabels:
    """The labels that have totals of their own, by day and tenant. One per process that books.

    Args:
        most: labels of a tenant on a day.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Place, set[str]] = {}

    async def crowded(self, connection: AsyncConnection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows, of those to be booked, whose end user is beyond the bound. Labels of a transaction that fails stay known, which
        only takes up part of the bound."""
        labelled = [row for row in rows if row["end_user"] not in ("", OTHER_LABEL)]
        await self._learn(connection, {(row["day"], row["tenant"]) for row in labelled})
        beyond = []
        for row in labelled:
            known = self._known[row["day"], row["tenant"]]
            if row["end_user"] in known:
                continue
            if len(known) < self._most:
                known.add(row["end_user"])
            else:
                beyond.append(row)
        return beyond

    async def _learn(self, connection: AsyncConnection, places: set[Place]) -> None:
        new = places - self._known.keys()
        if not new:
            return
        while self._known and sum(map(len, self._known.values())) > KEPT:
            del self._known[next(iter(self._known))]
        new = places - self._known.keys()
        self._known |= {place: set() for place in new}
        total = usage_total.c
        for day in sorted({day for day, _ in new}):
            tenants = sorted(tenant for its_day, tenant in new if its_day == day)
            query = sa.select(total.tenant, total.end_user).distinct().where(total.day == day, total.tenant.in_(tenants))
            for tenant, label in await connection.execute(query):
                if label not in ("", OTHER_LABEL):
                    self._known[day, tenant].add(label)
