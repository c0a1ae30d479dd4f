"""Blocks by guard rules in the audit: which of them have a row of their own, and what stands in it. Pure.

Each request that a rule of the mode `block` refuses, and each answer that such a rule cuts, has a row: tenant, key, request, rule, kinds
of findings, direction and version of the rules, and no text. Where another model answered in place of the refused one, both are named. A
caller decides how many requests it sends, so the rows are bounded: `MAX_ROWS` of a tenant in a minute, and one more that says how many
blocks there were beyond them.
"""

from typing import Final

from tenancy.audit import Entry, canonical
from tenancy.usage import UsageEvent

BLOCK: Final = "guard.block"
FURTHER: Final = "guard.further_blocks"

MAX_ROWS: Final = 10
"""Rows of their own that blocks of one tenant in one minute get: at most 15,840 rows of a tenant in a day, with the sums. The audit is
never cut, and 10 rows show what is going on."""
LATE_MINUTES: Final = 2
"""Minutes after which a minute is summed up. Usage is booked within seconds; what is booked later still, after an outage, begins the minute
again and is summed up in a further row."""
MINUTE_MS: Final = 60_000

GUARDS: Final = "guards"
"""The actor of the rows that sum up."""


def ended_ms(event: UsageEvent) -> int:
    """When the request ended, in milliseconds since 1970: the moment of its row."""
    return event.at_unix_ms + event.duration_ms


def minute_of(event: UsageEvent) -> int:
    """The minute since 1970 that a block counts in."""
    return ended_ms(event) // MINUTE_MS


def last_over(now_unix: float) -> int:
    """The last minute that may be summed up."""
    return int(now_unix * 1000) // MINUTE_MS - LATE_MINUTES


def block_entry(event: UsageEvent) -> Entry:
    """The row of one block. `event.blocked` must be there."""
    block = event.blocked
    assert block is not None
    after = {
        "request_id": event.request_id,
        "model": block.model or event.model,
        **({"answered_by": event.model} if block.model else {}),
        "rule": block.rule,
        "kinds": [kind for kind in block.kinds.split(",") if kind],
        "direction": block.direction,
        "late": block.late,
        "version": block.version,
    }
    actor, target = f"key {event.key_id}@{event.tenant}", f"tenant/{event.tenant}/guard/{block.rule}"
    return Entry(actor[:80], "", "", BLOCK, target[:512], event.tenant[:63], after=canonical(after))


def further_entry(tenant: str, minute: int, blocks: int) -> Entry:
    """The row that counts the blocks of a tenant in a minute that have none of their own."""
    after = {"blocks": blocks, "minute_unix": minute * MINUTE_MS // 1000}
    return Entry(GUARDS, "", "", FURTHER, f"tenant/{tenant}/guards"[:512], tenant[:63], after=canonical(after))
