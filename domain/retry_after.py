"""Retry-After: how long a caller is asked to wait before it sends a refused request again, one function per cause. Pure.

`gateway/http/faults.py` writes the result into the headers `retry-after` and `retry-after-ms`. The wait for a rate limit is computed with
the decision (`tenancy/decisions.py`), the wait for an overloaded model from the queue (`gateway/queue/estimate.py`); all others are decided
here. A `draw` is a random number from 0 to 1: it spreads callers that were refused together, so that they do not come back together.
"""

from typing import Final

from domain.faults import NEVER, Retry

SOON_S: Final = 1.0
SPREAD_S: Final = 4.0
"""The range that a wait of no better value is drawn from begins at `SOON_S` and is `SPREAD_S` long; `SOON_S` is also the least wait."""

SLOT_S: Final = 1.0
"""Middle of the waits for a slot of concurrent requests: nobody knows when a running request ends."""

UNKNOWN_SPEND_S: Final = 5.0
"""The least wait, and its spread, where a budget cannot be checked: a counter store or a full disk needs some time to come back."""

OVERLOAD_MOST_S: Final = 60.0
"""The longest wait for an overloaded model, before the jitter: official clients heed up to 120 s."""

OVERLOAD_JITTER: Final = 0.5
"""Share of that wait that is added at random: callers that were refused together come back spread over half as long again."""

ENGINE_MOST_S: Final = 120.0
"""The longest `retry-after` taken from an engine; official clients give up on longer ones."""

ROOM_MOST_S: Final = 120.0
"""The longest wait for room in a rolling window that a retry is advised after: official clients would not heed a longer one, and come back
too early."""

IDENTITY_S: Final = 5.0
"""The wait while the keys of a token's issuer cannot be read; the gateway itself tries again as soon (`gateway/auth/jwks.py`)."""

SOON: Final = Retry(should=True, after_s=SOON_S)
"""An attempt failed, or was cut by a drain or a preemption: another engine, or the same one, may answer at once."""


def of_rate_limit(wait_us: int) -> Retry:
    """A limit per minute: when the bucket holds enough again."""
    return Retry(should=True, after_s=wait_us / 1e6)


def of_rolling_window(wait_us: int | None) -> Retry:
    """A limit over rolling days: when there is room for the request, if that is soon.

    Args:
        wait_us: None while unknown.
    """
    if wait_us is None or wait_us > ROOM_MOST_S * 1e6:
        return NEVER
    return Retry(should=True, after_s=wait_us / 1e6)


def of_concurrency_limit(draw: float) -> Retry:
    """A limit on concurrent requests."""
    return Retry(should=True, after_s=SLOT_S * (0.5 + draw))


def of_unknown_spend(draw: float) -> Retry:
    """A budget that cannot be checked, or whose spending cannot be made durable."""
    return Retry(should=True, after_s=UNKNOWN_SPEND_S * (1.0 + draw))


def of_missing_engine(draw: float) -> Retry:
    """No engine can serve the model, or load the adapter, right now."""
    return Retry(should=True, after_s=SOON_S + SPREAD_S * draw)


def of_waking(left_s: float, draw: float) -> Retry:
    """An engine that starts because of this request or of one before: when it is expected, and a little later for some, since they all come
    back then.

    Args:
        left_s: seconds until it is expected.
    """
    return Retry(should=True, after_s=max(SOON_S, left_s) + SPREAD_S * draw)


def of_overload(wait_s: float, draw: float) -> Retry:
    """A full queue, a wait that would be too long, or one that was.

    Args:
        wait_s: seconds until there is room, as far as predicted; 0 while unknown.
    """
    return Retry(should=True, after_s=max(SOON_S + SPREAD_S * draw, min(OVERLOAD_MOST_S, wait_s) * (1.0 + OVERLOAD_JITTER * draw)))


def of_busy_engine(header: bytes | None) -> Retry:
    """An engine that answered that it is busy: the seconds of its own `retry-after` header, bounded; `SOON` without a usable one."""
    try:
        seconds = float(header or b"")
    except ValueError:
        return SOON
    return Retry(should=True, after_s=min(seconds, ENGINE_MOST_S)) if seconds > 0 else SOON  # NaN compares false


def of_unread_keys() -> Retry:
    """The keys of a token's issuer could never be read."""
    return Retry(should=True, after_s=IDENTITY_S)
