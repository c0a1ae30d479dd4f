"""Blocks by guard rules, written to the audit chain in the transaction that books the usage of their requests.

A request is booked once, so its block is in the chain once. The numbers of blocks per tenant and minute stand in `audit_blocks` for as
long as they are needed, and change in the same transactions. The callers hold the lock of `usage_mark`.
"""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tenancy.audit import Entry
from tenancy.guard_blocks import MAX_ROWS, MINUTE_MS, block_entry, ended_ms, further_entry, last_over, minute_of
from tenancy.stores.sql.journal import append_entries
from tenancy.stores.sql.schema import audit_blocks
from tenancy.usage import UsageEvent

MAX_SUMS: Final = 500
"""Rows that are summed up in one transaction; the next run takes further ones."""


async def note_blocks(connection: AsyncConnection, events: Sequence[UsageEvent]) -> None:
    """Append a row for each block, as far as its tenant has rows left in its minute, and count the others.

    Raises:
        JournalAway: the audit chain has no end to append to.
    """
    if not events:
        return
    column = audit_blocks.c
    tenants, minutes = sorted({event.tenant for event in events}), sorted({minute_of(event) for event in events})
    wanted = sa.select(audit_blocks).where(column.tenant.in_(tenants), column.minute.in_(minutes))
    known = {(row.tenant, row.minute): (row.written, row.further) for row in await connection.execute(wanted)}
    counts = dict(known)
    entries: list[tuple[int, Entry]] = []
    for event in events:
        place = (event.tenant, minute_of(event))
        written, further = counts.get(place, (0, 0))
        if written < MAX_ROWS:
            entries.append((ended_ms(event), block_entry(event)))
            counts[place] = written + 1, further
        else:
            counts[place] = written, further + 1
    await append_entries(connection, entries)
    for (tenant, minute), (written, further) in counts.items():
        values = {"written": written, "further": further}
        if (tenant, minute) not in known:
            await connection.execute(sa.insert(audit_blocks).values(tenant=tenant, minute=minute, **values))
        elif known[tenant, minute] != (written, further):
            place_of = (column.tenant == tenant) & (column.minute == minute)
            await connection.execute(sa.update(audit_blocks).where(place_of).values(**values))


async def sum_up_blocks(connection: AsyncConnection, now_unix: float) -> int:
    """Append a row for each tenant and minute that is over and had further blocks, and forget their numbers. Returns how many rows.

    Raises:
        JournalAway: the audit chain has no end to append to.
    """
    column = audit_blocks.c
    over = sa.select(audit_blocks).where(column.minute <= last_over(now_unix)).order_by(column.minute, column.tenant).limit(MAX_SUMS)
    rows = (await connection.execute(over)).all()
    sums = [((row.minute + 1) * MINUTE_MS, further_entry(row.tenant, row.minute, row.further)) for row in rows if row.further]
    if sums:
        await append_entries(connection, sums)
    for row in rows:
        await connection.execute(sa.delete(audit_blocks).where((column.tenant == row.tenant) & (column.minute == row.minute)))
    return len(sums)
