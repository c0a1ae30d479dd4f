"""Prices in SQL. There is no statement here that changes a row."""

from typing import Any, Final

import sqlalchemy as sa

from tenancy.directory_ports import NotFound
from tenancy.prices import Price, Rates
from tenancy.stores import rules
from tenancy.stores.sql.schema import price
from tenancy.stores.sql.writer import Writer

KINDS: Final = Rates.__struct_fields__


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
        place = {"id": new.id, "model": new.model, "revision": new.revision, "effective_unix": new.effective_unix}
        await self._writer.run(sa.insert(price).values(**place, **_rates("nanousd", new.nanousd_per_mtok), **_rates("units", new.units)))


def price_of(row: Any) -> Price:
    """The price in a row."""
    return Price(
        id=row["id"],
        model=row["model"],
        revision=row["revision"],
        effective_unix=row["effective_unix"],
        nanousd_per_mtok=Rates(**{kind: row[f"nanousd_{kind}"] for kind in KINDS}),
        units=Rates(**{kind: row[f"units_{kind}"] for kind in KINDS}),
    )


def _rates(unit: str, rates: Rates) -> dict[str, int]:
    return {f"{unit}_{kind}": getattr(rates, kind) for kind in KINDS}
