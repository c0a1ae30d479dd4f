"""The body of `GET /v1/key`: what a caller may know of its own key, its limits and its spending. Pure.

A limit that is shared with other tenants is not in it: how much of it is left would tell what the other tenants have used.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from tenancy.hold import LimitUsage
from tenancy.limits import UTC as UTC_NAME
from tenancy.limits import ZONED, LimitLine, Meter, meter_name
from tenancy.money import dollars_of

Shown = int | str | None
"""An amount: dollars as decimal text for the meter of money, else a whole number; None where it is not known."""


class KeyFacts(msgspec.Struct, frozen=True):
    """A caller and its rights."""

    tenant: str
    project: str
    key_id: str
    label: str
    """Empty for a caller with a token."""
    expires_unix: float | None
    models: Sequence[str]
    """The models that the caller may use, in the order to show."""


class MonthSpend(msgspec.Struct, frozen=True):
    """Money that the ledger has for the current month, UTC, in nano-dollars."""

    month: str
    """`2026-11`."""
    tenant_nanousd: int
    key_nanousd: int | None
    """None for a caller with a token."""


class _OwnLimit(msgspec.Struct, frozen=True):
    scope: str
    name: str
    meter: str
    window: str
    zone: str | None
    """The time zone of a calendar window."""
    limit: Shown
    burst: int | None
    soft: Shown
    used: Shown
    held: Shown
    left: Shown
    resets_at: datetime | None


class _OwnSpend(msgspec.Struct, frozen=True):
    month: str
    tenant_usd: str
    key_usd: str | None


class _OwnKey(msgspec.Struct, frozen=True):
    tenant: str
    project: str
    id: str
    label: str
    expires_at: datetime | None
    models: tuple[str, ...]
    limits: tuple[_OwnLimit, ...]
    spend: _OwnSpend | None
    object: str = "key"


def render_own_key(
    facts: KeyFacts, lines: Iterable[LimitLine], usages: Sequence[LimitUsage] | None, spend: MonthSpend | None, now_unix: float
) -> bytes:
    """The body of `GET /v1/key`.

    Args:
        lines: the limits that only the caller's tenant has.
        usages: how these limits stand; None while the counter store is away, and then the amounts alone are shown.
        spend: None where the ledger cannot say it.
        now_unix: when `usages` were read.
    """
    if usages is None:
        limits = tuple(_limit(line, None, now_unix) for line in lines)
    else:
        limits = tuple(_limit(usage.line, usage, now_unix) for usage in usages)
    money = None
    if spend is not None:
        of_key = None if spend.key_nanousd is None else dollars_of(spend.key_nanousd)
        money = _OwnSpend(spend.month, dollars_of(spend.tenant_nanousd), of_key)
    expires = None if facts.expires_unix is None else datetime.fromtimestamp(facts.expires_unix, UTC)
    return msgspec.json.encode(_OwnKey(facts.tenant, facts.project, facts.key_id, facts.label, expires, tuple(facts.models), limits, money))


def _limit(line: LimitLine, usage: LimitUsage | None, now_unix: float) -> _OwnLimit:
    meter = Meter(line.meter)

    def shown(amount: int | None) -> Shown:
        return amount if amount is None or meter is not Meter.COST_NANOUSD else dollars_of(amount)

    return _OwnLimit(
        scope=line.limit.scope.level.value,
        name=line.limit.scope.name,
        meter=meter_name(meter),
        window=line.window.value,
        zone=(line.limit.zone or UTC_NAME) if line.window in ZONED else None,
        limit=shown(line.amount),
        burst=line.burst or None,
        soft=shown(line.soft or None),
        used=shown(usage.used) if usage is not None else None,
        held=shown(usage.held) if usage is not None else None,
        left=shown(usage.remaining) if usage is not None else None,
        resets_at=_moment(now_unix + usage.reset_us / 1e6) if usage is not None and usage.reset_us else None,
    )


def _moment(unix: float) -> datetime:
    """To the nearest second: the time between the store's answer and the look at our clock would show as a fraction."""
    return datetime.fromtimestamp(round(unix), UTC)
