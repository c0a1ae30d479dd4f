"""One row of the ledger: what one request used and cost. Written once, never changed."""

from typing import Final

import msgspec

from domain.faults import SOURCE, Source
from domain.usage import NO_USAGE, Usage

FREE_CLOSING: Final = "release"
FREE_OUTCOMES: Final = frozenset(kind.value for kind, source in SOURCE.items() if source is not Source.CALLER)
"""A request that was closed with nothing and ended this way failed through no fault of its caller: limits on requests do not count
it (`gateway.open_holds.OpenHold.charged`)."""

LOST: Final = "lost"
"""Outcome and closing of a request whose process died meanwhile. It counts as a request, as it does where its hold was reaped."""


class UsageEvent(msgspec.Struct, frozen=True, array_like=True):
    """Tokens and money are integers; the request's id makes a row unique, however often it is replayed."""

    request_id: str
    """The gateway's own id, never the caller's."""
    at_unix_ms: int
    """When the request was admitted; its day (UTC) is the day it is billed to."""
    tenant: str
    project: str
    key_id: str
    user: str
    """The end-user label; empty for none."""
    endpoint: str
    model: str
    """Public name."""
    pool: str
    revision: str
    lora: str
    outcome: str
    closing: str
    """`settle`, `estimate` or `release` (`tenancy.hold.Word`), or `lost`."""
    usage: Usage = NO_USAGE
    units: int = 0
    """Weighted tokens."""
    cost_nanousd: int = 0
    price_id: str = ""
    """The version of the price it was charged at; empty for none."""
    duration_ms: int = 0
    organisation: str = ""
    priority_class: str = ""
    """Name of the class (`domain.priority`); empty for rows from before there were classes."""
    asked_model: str = ""
    """The model asked for, where it was overloaded and `model` answered instead."""
    steps: str = ""
    """The steps of its tenant's degradation ladder that were applied, comma-separated."""
