"""Prices in memory."""

from tenancy.directory_ports import NotFound
from tenancy.prices import Price
from tenancy.stores import rules
from tenancy.stores.memory.state import State, page_of


class MemoryPrices:
    """Prices of a directory in memory (`tenancy.directory_ports.Prices`)."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def page(self, model: str, after: str, limit: int) -> list[Price]:
        return page_of({key: price for key, price in self._state.prices.items() if model in ("", price.model)}, after, limit)

    async def get(self, price_id: str) -> Price:
        price = self._state.prices.get(price_id)
        if price is None:
            raise NotFound(f"no price {price_id!r}")
        return price

    async def add(self, price: Price) -> None:
        begins = (price.model, price.revision, price.effective_unix)
        if price.id in self._state.prices:
            raise rules.taken(f"price {price.id!r}")
        if any((stored.model, stored.revision, stored.effective_unix) == begins for stored in self._state.prices.values()):
            raise rules.taken(f"a price of model {price.model!r}, revision {price.revision!r}, from that moment on")
        self._state.prices[price.id] = price
        self._state.dirty = True
