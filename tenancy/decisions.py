"""The report of a decision on limits: how every limit stands, and why one refuses. Pure, and the same for every store: a store returns
the position of each line (`here`: microseconds ahead for a rate, else how much is counted), and this module works out the rest.
"""

from collections.abc import Mapping, Sequence

from tenancy.hold import LimitStatus, LimitUsage, Refused
from tenancy.limits import MINUTE_US, Level, Meter
from tenancy.rates import EVER, NOW, RATE, CompiledGroup, CompiledLimit, cost_us, left_of_rate

_NEVER, _SPENT, _WAIT, _SLOT = 3, 2, 1, 0
"""Order of refusals, the one reported first: no wait helps, spent for ever, the longest wait, a slot."""

_OF_ALL_TENANTS = frozenset((Level.GLOBAL, Level.MODEL))
"""Levels whose limits are used up by all tenants together."""

Ends = Mapping[int, int]
"""By kind, the end of the period around now, or of the time for which usage of now counts; 0 where it never ends."""


def limit_statuses(
    plan: CompiledGroup, vector: Sequence[int], afters: Sequence[int], now_us: int, ends_us: Ends
) -> tuple[LimitStatus, ...]:
    """How the lines of a plan stand at `afters`, which include the `vector` of this decision."""
    statuses: list[LimitStatus] = []
    for ready, after in zip(plan.lines, afters, strict=True):
        kind, amount, soft = ready.kind, ready.amount, ready.soft
        if kind == RATE:
            left_us, each_us = ready.burst_us - after, ready.each_us
            remaining = 0 if left_us <= 0 else left_us // each_us if each_us else left_us * amount // MINUTE_US
            if remaining > ready.burst:
                remaining = ready.burst
            crossed = soft > 0 and _crossed(ready, vector[ready.meter], remaining, after)
            statuses.append(LimitStatus(ready.line, remaining, after, crossed))
        else:
            end_us = ends_us[kind]
            reset_us = end_us - now_us if end_us and after else 0
            crossed = after >= soft > after - vector[ready.meter]
            statuses.append(LimitStatus(ready.line, amount - after if after < amount else 0, reset_us, crossed))
    return tuple(statuses)


def over_soft_limit(statuses: Sequence[LimitStatus]) -> bool:
    """Whether a limit of the caller's own, its tenant's or its organisation's stands at its soft threshold or above."""
    for status in statuses:
        line = status.line
        if line.soft and (line.burst or line.amount) - status.remaining >= line.soft and line.limit.scope.level not in _OF_ALL_TENANTS:
            return True
    return False


def refusal(
    plan: CompiledGroup, vector: Sequence[int], heres: Sequence[int], now_us: int, ends_us: Ends, fits_us: Sequence[int] = ()
) -> Refused:
    """The refusal of a decision at `heres`: of the lines that refuse, the one whose refusal lasts longest.

    Args:
        fits_us: of each rolling window, the last lines of a plan, when it has room for the request; without them, when usage of now ends to
            count, which is later.
    """
    whys = []
    rolling_from = len(plan.lines) - len(fits_us)
    for place, (line, here) in enumerate(zip(plan.lines, heres, strict=True)):
        end_us = fits_us[place - rolling_from] if place >= rolling_from else 0 if line.kind == RATE else ends_us[line.kind]
        why = _why(line, vector[line.meter], here, now_us, end_us)
        if why is not None:
            whys.append((why, line, here))
    (lasts, wait_us), line, here = max(whys, key=lambda refusing: refusing[0])
    remaining = left_of_rate(line, here) if line.kind == RATE else max(line.amount - here, 0)
    return Refused(line.line, remaining, wait_us if lasts == _WAIT else None, never=lasts == _NEVER)


def line_states(plan: CompiledGroup, counted: Sequence[tuple[int, int]], now_us: int, ends_us: Ends) -> list[LimitUsage]:
    """How lines stand, for operators. `counted` has the settled and held amount of each line; of a rate the microseconds ahead and 0."""
    nothing = (0,) * len(Meter)
    heres = [settled + held for settled, held in counted]
    states = []
    for line, (settled, held), shown in zip(plan.lines, counted, limit_statuses(plan, nothing, heres, now_us, ends_us), strict=True):
        used = line.burst - shown.remaining if line.kind == RATE else settled + held
        states.append(LimitUsage(line.line, used, held, shown.remaining, shown.reset_us))
    return states


def _why(line: CompiledLimit, n: int, here: int, now_us: int, end_us: int) -> tuple[int, int] | None:
    if not line.amount or n > (line.burst if line.kind == RATE else line.amount):
        return _NEVER, 0
    if not n and line.kind != NOW:
        return None
    if line.kind == RATE:
        over_us = here + cost_us(n, line.amount) - line.burst_us
        return (_WAIT, over_us) if over_us > 0 else None
    if here + n <= line.amount:
        return None
    if line.kind == NOW:
        return _SLOT, 0
    return (_SPENT, 0) if line.kind == EVER else (_WAIT, end_us - now_us)


def _crossed(line: CompiledLimit, n: int, remaining: int, after_us: int) -> bool:
    # in microseconds the soft threshold has no exact place, so both sides are counted in what is left
    before = left_of_rate(line, max(after_us - cost_us(n, line.amount), 0)) if line.amount else 0
    return line.burst - remaining >= line.soft > line.burst - before
