"""The directory in SQL (`SqlDirectory`), and its prices (`SqlPrices`): no statement here changes the row of a price.

Every statement is built by SQLAlchemy with bound values; no text is ever joined into one. Writers wait for each other: the first write of a
transaction raises the change counter, whose row the transaction then locks until it ends. So what a writer has looked up stays true, and
processes that poll the counter see a change together with its data.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.identity import KeyId
from tenancy.accounts import Contents
from tenancy.directory_ports import DirectoryChange, NotFound
from tenancy.prices import Price, TokenRates
from tenancy.stores import rules
from tenancy.stores.sql.accounts import SqlOrganisations, SqlProjects, SqlTenants, organisation_of, project_of, tenant_of
from tenancy.stores.sql.keys import SqlKeys, key_of
from tenancy.stores.sql.limits import SqlLimits, limit_of
from tenancy.stores.sql.schema import api_key, change, organisation, price, project, tenant, usage_limit
from tenancy.stores.sql.transaction import COUNTER, SqlConnections, Writer, reading
from tenancy.stores.sql.unchanged import CachedRead

PRICE_KINDS: Final = TokenRates.__struct_fields__


class SqlPrices:
    """Prices of a directory in SQL (`tenancy.directory_ports.Prices`)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def page(self, model: str, after: str, limit: int) -> list[Price]:
        wanted = sa.select(price).where(price.c.model == model) if model else sa.select(price)
        return list(map(price_of, await self._writer.page(wanted, price.c.id, after, limit)))

    async def get(self, price_id: str) -> Price:
        row = await self._writer.first(sa.select(price).where(price.c.id == price_id))
        if row is None:
            raise NotFound(f"no price {price_id!r}")
        return price_of(row)

    async def add(self, new: Price) -> None:
        await self._writer.begin()
        if await self._writer.count(price, price.c.id == new.id):
            raise rules.taken(f"price {new.id!r}")
        begins = (price.c.model == new.model) & (price.c.revision == new.revision) & (price.c.effective_unix == new.effective_unix)
        if await self._writer.count(price, begins):
            raise rules.taken(f"a price of model {new.model!r}, revision {new.revision!r}, from that moment on")
        names = ("id", "model", "revision", "effective_unix", "zeros_stated")
        place = {name: getattr(new, name) for name in names}
        await self._writer.run(sa.insert(price).values(**place, **_rates("nanousd", new.nanousd_per_mtok), **_rates("units", new.units)))


def price_of(row: Any) -> Price:
    """The price in a row."""
    return Price(
        id=row["id"],
        model=row["model"],
        revision=row["revision"],
        effective_unix=row["effective_unix"],
        nanousd_per_mtok=TokenRates(**{kind: row[f"nanousd_{kind}"] for kind in PRICE_KINDS}),
        units=TokenRates(**{kind: row[f"units_{kind}"] for kind in PRICE_KINDS}),
        zeros_stated=row["zeros_stated"],
    )


def _rates(unit: str, rates: TokenRates) -> dict[str, int]:
    return {f"{unit}_{kind}": getattr(rates, kind) for kind in PRICE_KINDS}


LOAD_WITHIN_S: Final = 45.0
"""The longest wait for all contents, which take 4 s for 100,000 tenants with a key and a limit (`python -m bench.tenants`), more on a busy
machine. It ends before admin keys are refused because the directory is old (60 s)."""
ROWS_AT_ONCE: Final = 200
"""Rows read between two turns of the event loop: a few milliseconds."""

R = TypeVar("R")


class SqlDirectoryChange:
    """One transaction on a directory in SQL (`tenancy.directory_ports.DirectoryChange`)."""

    def __init__(self, connection: AsyncConnection) -> None:
        writer = Writer(connection)
        self.organisations = SqlOrganisations(writer)
        self.tenants = SqlTenants(writer)
        self.projects = SqlProjects(writer)
        self.keys = SqlKeys(writer)
        self.limits = SqlLimits(writer)
        self.prices = SqlPrices(writer)


class SqlDirectory:
    """A directory in SQL (`tenancy.directory_ports.DirectoryStore`).

    Args:
        connections: an engine, or the one connection of a transaction that is open already.
    """

    def __init__(self, connections: SqlConnections) -> None:
        self._connections = connections
        self._version = CachedRead(connections, self._read_version)

    async def version(self) -> int:
        return await self._version()

    async def _read_version(self) -> int:
        # not `reading`: a commit that is in the log and not yet to be seen has to be waited for (`CachedRead`)
        async with self._connections.connect() as connection:
            return await _version(connection)

    async def peppers(self) -> frozenset[str]:
        """The ids of the peppers that keys which are not revoked were made with."""
        async with reading(self._connections) as connection:
            kids = await connection.scalars(sa.select(api_key.c.kid).where(api_key.c.revoked_unix.is_(None)).distinct())
            return frozenset(kids)

    async def revocations(self) -> dict[KeyId, float]:
        key = api_key.c
        query = sa.select(key.id, key.revoked_unix).where(key.revoked_unix.is_not(None))
        async with reading(self._connections) as connection:
            return dict(await _all(connection, query, lambda row: (KeyId(row["id"]), row["revoked_unix"])))

    async def load(self) -> Contents:
        async with asyncio.timeout(LOAD_WITHIN_S), reading(self._connections) as connection:
            if connection.dialect.name == "postgresql" and not connection.in_transaction():
                await connection.execution_options(isolation_level="REPEATABLE READ")  # all tables of one moment
            return Contents(
                version=await _version(connection),
                organisations=await _all(connection, sa.select(organisation), organisation_of),
                tenants=await _all(connection, sa.select(tenant), tenant_of),
                projects=await _all(connection, sa.select(project), project_of),
                keys=await _all(connection, sa.select(api_key), key_of),
                limits=tuple(record.limit for record in await _all(connection, sa.select(usage_limit), limit_of)),
                prices=await _all(connection, sa.select(price), price_of),
            )

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[DirectoryChange]:
        async with self._connections.begin() as connection:
            yield SqlDirectoryChange(connection)


async def _version(connection: AsyncConnection) -> int:
    return await connection.scalar(sa.select(change.c.version).where(change.c.what == COUNTER)) or 0


async def _all(connection: AsyncConnection, query: "sa.Select[Any]", record_of: Callable[[Any], R]) -> tuple[R, ...]:
    records: list[R] = []
    async with connection.stream(query) as result:
        async for rows in result.mappings().partitions(ROWS_AT_ONCE):
            records.extend(map(record_of, rows))
            await asyncio.sleep(0)  # requests go on between two batches of rows
    return tuple(records)
