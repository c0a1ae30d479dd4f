"""Budget alerts in SQL (`tenancy.alerts.AlertStore`): one row for each, so that of several processes one writes it and one posts it."""

import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenancy.alerts import AlertsAway, BudgetAlert, Result
from tenancy.stores.sql.schema import budget_alert
from tenancy.stores.sql.upsert import insert_into

_FIELDS = BudgetAlert.__struct_fields__


class SqlAlerts:
    """Alerts in SQL."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._dialect = engine.dialect.name

    async def add(self, alerts: Sequence[BudgetAlert]) -> int:
        rows = [{name: getattr(alert, name) for name in _FIELDS} for alert in alerts]
        async with self._transaction() as connection:
            new = 0
            for row in rows:  # one by one: a driver does not count the rows of a statement for many
                new += (await connection.execute(insert_into(budget_alert, self._dialect).values(**row).on_conflict_do_nothing())).rowcount
            return new

    async def claim(self, now_unix: float, lease_s: float, most: int) -> list[BudgetAlert]:
        table = budget_alert.c
        due = sa.select(budget_alert).where(table.next_try_unix <= now_unix).order_by(table.next_try_unix, table.id).limit(most)
        async with self._transaction() as connection:
            found = [_alert(row) for row in (await connection.execute(due)).mappings()]
            claimed = []
            for alert in found:
                same = (table.id == alert.id) & (table.next_try_unix == alert.next_try_unix)
                taken = await connection.execute(sa.update(budget_alert).where(same).values(next_try_unix=now_unix + lease_s))
                if taken.rowcount:
                    claimed.append(alert)
            return claimed

    async def note(self, alert_id: str, result: Result, attempts: int, next_try_unix: float | None) -> None:
        values = {"result": result, "attempts": attempts, "next_try_unix": next_try_unix}
        async with self._transaction() as connection:
            await connection.execute(sa.update(budget_alert).where(budget_alert.c.id == alert_id).values(**values))

    async def rearm(self, alert_ids: Collection[str]) -> set[str]:
        these = budget_alert.c.id.in_(sorted(alert_ids))
        async with self._transaction() as connection:
            await connection.execute(sa.delete(budget_alert).where(these, budget_alert.c.next_try_unix.is_(None)))
            return set((await connection.execute(sa.select(budget_alert.c.id).where(these))).scalars())

    async def newest(self, limit: int, limit_id_begins: str = "") -> list[BudgetAlert]:
        query = sa.select(budget_alert).order_by(budget_alert.c.at_unix.desc(), budget_alert.c.id).limit(limit)
        if limit_id_begins:
            query = query.where(budget_alert.c.limit_id.startswith(limit_id_begins, autoescape=True))
        async with self._transaction() as connection:
            return [_alert(row) for row in (await connection.execute(query)).mappings()]

    async def forget(self, before_unix: float) -> int:
        old = (budget_alert.c.at_unix < before_unix) & budget_alert.c.next_try_unix.is_(None)
        async with self._transaction() as connection:
            return (await connection.execute(sa.delete(budget_alert).where(old))).rowcount

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise AlertsAway(f"{type(error).__name__}: {error}"[:300]) from error


def _alert(row: "sa.RowMapping | Any") -> BudgetAlert:
    return BudgetAlert(**{name: row[name] for name in _FIELDS})
