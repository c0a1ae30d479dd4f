"""Limits in replies: the `x-ratelimit-*` headers, and the words of a refusal. Pure.

Only scopes that the caller belongs to appear with their name; a limit on all tenants is "the gateway". Of a limit that is shared with
other tenants no number appears: its remainder would tell what the other tenants have used.
"""

from collections.abc import Iterable
from typing import Final

from domain import retry_after
from domain.faults import NEVER, Fault, Kind
from tenancy.hold import LimitStatus, Refused
from tenancy.limits import MINUTE_US, UTC, Amounts, Level, Limit, LimitLine, LimitWindow, Meter, Rolling, Window, public_id, state_key
from tenancy.money import shown_dollars
from tenancy.shares import closed_for_money

MAX_WARNING_CHARS: Final = 500
"""Longest value of `x-tidegate-limit-warning`."""

SHARED: Final = frozenset({Level.GLOBAL, Level.MODEL, Level.ORGANISATION})
"""Levels of which one limit counts several tenants together."""

_UNITS: Final = {
    Meter.REQUESTS: "requests",
    Meter.INPUT_TOKENS: "input tokens",
    Meter.OUTPUT_TOKENS: "output tokens",
    Meter.TOKENS: "tokens",
    Meter.UNITS: "units",
    Meter.CONCURRENT_REQUESTS: "concurrent requests",
    Meter.AUDIO_SECONDS: "seconds of audio",
    Meter.AUDIO_BYTES: "bytes of audio",
}
AUDIO: Final = frozenset({Meter.AUDIO_SECONDS, Meter.AUDIO_BYTES})
"""Meters of sound: OpenAI's error types know requests and tokens, and these are no tokens."""
_RESETS: Final[dict[LimitWindow, str]] = {
    Window.HOUR: " It starts anew at the full hour.",
    Window.DAY: " It starts anew at 00:00 {zone}.",
    Window.WEEK: " It starts anew on Monday at 00:00 {zone}.",
    Window.MONTH: " It starts anew on the first of the month, {zone}.",
    Window.EVER: " It does not start anew.",
}
_NAMES: Final = tuple(
    (b"x-ratelimit-limit-%b" % kind, b"x-ratelimit-remaining-%b" % kind, b"x-ratelimit-reset-%b" % kind)
    for kind in (b"requests", b"tokens")
)
_KIND_OF: Final = tuple(
    {Meter.REQUESTS: 0, Meter.INPUT_TOKENS: 1, Meter.OUTPUT_TOKENS: 1, Meter.TOKENS: 1}.get(meter) for meter in sorted(Meter)
)
"""By meter: the index in `_NAMES`; None for a meter without a header."""


def amount_words(meter: Meter, amount: int) -> str:
    """An amount with its unit: `100 requests`, `$1.50`."""
    if meter is Meter.COST_NANOUSD:
        return shown_dollars(amount)
    return f"{amount} {_UNITS[meter]}"


def limit_words(limit: Limit, amount: int) -> str:
    """A limit as a phrase, for operators: `tenant acme: 10000 tokens per minute`."""
    return _phrase(limit, amount_words(limit.meter, amount))


def told_words(limit: Limit, amount: int) -> str:
    """A limit as a phrase, for callers: without the amount where other tenants share it, `model llama: tokens per minute`."""
    if limit.scope.level not in SHARED:
        return limit_words(limit, amount)
    return _phrase(limit, "dollars" if limit.meter is Meter.COST_NANOUSD else _UNITS[limit.meter])


def _phrase(limit: Limit, amount: str) -> str:
    scope = "the gateway" if limit.scope.level is Level.GLOBAL else str(limit.scope)
    if limit.scope.level is Level.USER:
        scope = f"each end user of {limit.scope.name}"
    return f"{scope}: {amount}{_per(limit.window)}"


def _per(window: LimitWindow) -> str:
    if isinstance(window, Rolling):
        return f" in any {window.days} days" if window.days > 1 else " in any 24 hours"
    return {Window.NOW: "", Window.EVER: " in all"}.get(window, f" per {window.value}")


def _anew(limit: Limit, wait_us: int | None) -> str:
    """When a spent quota has room again."""
    if isinstance(limit.window, Rolling):
        return "" if wait_us is None else f" There is room for this request in {duration(wait_us)}."
    return _RESETS[limit.window].format(zone=limit.zone or UTC)


def fault_of(refused: Refused, wanted: Amounts, draw: float) -> Fault:
    """The Fault of a refusal.

    Args:
        wanted: the amounts that the request asked for.
        draw: 0 to 1; spreads the callers that wait for a slot.
    """
    line = refused.line
    meter, limit = Meter(line.meter), line.limit
    name = told_words(limit, line.amount)
    # the public id, and behind it the zone and the end user's digest of the counted state
    counted = line.key.removeprefix(state_key(limit.scope, limit.meter, limit.window))
    detail = f"{public_id(limit.scope, limit.meter, limit.window)}{counted} remaining {amount_words(meter, refused.remaining)}"
    if closed_for_money(refused):
        why = "Spending cannot be checked right now, and what may be spent unchecked is used up. Try again shortly."
        return Fault(Kind.QUOTA_UNKNOWN, why, retry=retry_after.of_unknown_spend(draw), detail=detail)
    if refused.never and line.amount:
        most = amount_words(meter, wanted.vector()[meter])
        shorter = "Send a shorter recording or text." if meter in AUDIO else "Send a shorter prompt or a smaller 'max_tokens'."
        why = f"This request may need {most}, more than a whole limit holds ({name}). {shorter}"
        return Fault(Kind.EXCEEDS_LIMIT, why, detail=detail)
    if limit.window is Window.NOW:
        retry = retry_after.of_concurrency_limit(draw) if line.amount else NEVER
        return Fault(
            Kind.CONCURRENCY_LIMIT, f"Too many requests at once ({name}). Try again when one has ended.", retry=retry, detail=detail
        )
    if limit.window is Window.MINUTE:
        kind = Kind.REQUEST_LIMIT if meter is Meter.REQUESTS or meter in AUDIO else Kind.TOKEN_LIMIT
        if refused.wait_us is None:
            return Fault(kind, f"Rate limit reached ({name}).", detail=detail)
        return Fault(
            kind,
            f"Rate limit reached ({name}). Try again in {duration(refused.wait_us)}.",
            retry=retry_after.of_rate_limit(refused.wait_us),
            detail=detail,
        )
    retry = retry_after.of_rolling_window(refused.wait_us) if isinstance(limit.window, Rolling) and line.amount else NEVER
    why = f"Quota spent ({name}){_standing(refused, wanted)}.{_anew(limit, refused.wait_us)}"
    return Fault(Kind.QUOTA_SPENT, why, retry=retry, detail=detail)


def _standing(refused: Refused, wanted: Amounts) -> str:
    """How much of a quota is used, and what the request may need of the rest: a quota refuses while something of it is left. Empty where
    other tenants share the limit, whose use is not told, and where a request needs one of it."""
    line = refused.line
    meter = Meter(line.meter)
    if not line.amount or meter is Meter.REQUESTS or line.limit.scope.level in SHARED:
        return ""
    used = amount_words(meter, max(0, line.amount - refused.remaining))
    verb = "cost" if meter is Meter.COST_NANOUSD else "need"
    return f": {used} used or reserved, and this request may {verb} up to {amount_words(meter, wanted.vector()[meter])}"


def duration(us: int) -> str:
    """A time in the form of OpenAI's headers, `20ms`, `1.5s`, `6m0s`, `25h0m0s`; rounded up to a millisecond."""
    ms = -(-us // 1000)
    if ms < 1000:
        return f"{ms}ms"
    hours, rest = divmod(ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


_forms: dict[int, tuple[LimitLine, int | None, bytes]] = {}
"""By the id of a line, which is kept beside it so that its id stays taken: the index in `_NAMES` of its headers, None for none, and the
header lines but for what is left and when it is whole again."""
MAX_FORMS: Final = 8192
"""Lines whose form is kept; at the bound all are dropped."""


def _form_of(line: LimitLine) -> tuple[LimitLine, int | None, bytes]:
    """The form of the headers of a line: most lines are shown once for each request."""
    kind = _KIND_OF[line.meter]
    if kind is None or line.limit.scope.level in SHARED:
        form: tuple[LimitLine, int | None, bytes] = (line, None, b"")
    else:
        limit_name, remaining_name, reset_name = _NAMES[kind]
        form = (line, kind, b"%b: %d\r\n%b: %%d\r\n%b: %%b\r\n" % (limit_name, line.amount, remaining_name, reset_name))
    if len(_forms) >= MAX_FORMS:
        _forms.clear()
    _forms[id(line)] = form
    return form


def limit_header_lines(limit_statuses: Iterable[LimitStatus]) -> bytes:
    """The `x-ratelimit-*` headers, of the tightest limit on requests and the tightest on tokens that only this tenant has, and a warning
    for each soft threshold that is passed; as lines of a head."""
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None
    lines, warnings = b"", ""
    of_requests = of_tokens = b""
    for standing in limit_statuses:
        line = standing.line
        # the used part of a rate is what its burst lacks
        if line.soft and (line.burst or line.amount) - standing.remaining >= line.soft:
            warnings += f"; {told_words(line.limit, line.soft)}" if warnings else told_words(line.limit, line.soft)
        _, kind, form = _forms.get(id(line)) or _form_of(line)
        if kind == 0:
            if requests is None or standing.remaining < requests.remaining:
                requests, of_requests = standing, form
        elif kind == 1 and (tokens is None or standing.remaining < tokens.remaining):
            tokens, of_tokens = standing, form
    if requests is not None:
        lines = of_requests % (requests.remaining, duration(requests.reset_us).encode())
    if tokens is not None:
        lines += of_tokens % (tokens.remaining, duration(tokens.reset_us).encode())
    if warnings:
        lines += b"x-tidegate-limit-warning: %b\r\n" % warnings[:MAX_WARNING_CHARS].encode("ascii", "replace")
    return lines


def refused_standing(refused: Refused) -> LimitStatus:
    """The standing of the limit that refused, for the headers; the reset of a rate is the time until its burst is whole again."""
    line, reset_us = refused.line, refused.wait_us or 0
    if line.burst and line.amount and not refused.degraded:
        reset_us = max((line.burst - refused.remaining) * MINUTE_US // line.amount, reset_us)
    return LimitStatus(line, refused.remaining, reset_us)
