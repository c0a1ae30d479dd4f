"""What the ledger has, read from its database by its own pages."""

from tenancy.limits import Level, Scope
from tenancy.stores.sql import SqlUsageQueries, open_engine
from tenancy.usage import Filter


async def booked(url: str) -> tuple[list[str], int]:
    """The request id of every row, and how many requests the totals say there are."""
    engine = open_engine(url)
    queries = SqlUsageQueries(engine)
    ids: list[str] = []
    after = None
    while True:
        page = await queries.events(Filter(), after, 5000)
        ids += (event.request_id for event in page.events)
        if (after := page.next) is None:
            break
    totals = await queries.spent(Scope(Level.GLOBAL, ""), None)
    await engine.dispose()
    return ids, totals.requests
