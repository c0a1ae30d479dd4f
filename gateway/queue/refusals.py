"""The faults of requests that are refused by the queue or leave it unserved, and the words by which metrics count these ends. Pure;
chance is handed in."""

from typing import Final

from domain.faults import Fault, Kind, Retry

SERVED: Final = "served"
TOO_LONG: Final = "too_long"
"""Refused at once: the predicted wait is longer than the request may wait."""
TIMED_OUT: Final = "timed_out"
"""The request waited as long as it may."""
DISPLACED: Final = "displaced"
"""The request gave its place in the queue to a more urgent one, or to a tenant with fewer waiting."""
GONE: Final = "gone"
"""The caller left."""
NOBODY: Final = "nobody"
"""No backend is left that could ever serve the request."""
STOPPED: Final = "stopped"
"""The gateway shuts down."""
BOUNDS: Final = {
    "count": "Too many requests wait for this model",
    "size_bytes": "The requests that wait for this model take too much memory",
    "tenant_count": "Too many of your requests wait for this model",
    "tenant_bytes": "Your requests that wait for this model take too much memory",
}
"""The beginning of the message, by the bound of `tenancy.fair_queue.QueueBounds` that was reached."""
REFUSALS: Final = (TOO_LONG, *BOUNDS, TIMED_OUT, DISPLACED, GONE, NOBODY, STOPPED)
"""Every way in which a wait ends without an engine, or does not begin."""
SOON_S: Final = (1.0, 5.0)
"""The range of Retry-After in seconds where no better value is known; also its least value."""
MOST_S: Final = 60.0
"""The largest Retry-After in seconds, before the jitter: official clients heed up to 120 s."""
JITTER: Final = 0.5
"""Share of Retry-After that is added at random: callers that were refused together come back spread over half as long again."""


def full(bound: str, wait_s: float, dice: float) -> Fault:
    """The queue is full.

    Args:
        wait_s: seconds until the queued work is done; 0 while unknown.
        dice: a random number from 0 to 1.
    """
    return _overloaded(f"{BOUNDS[bound]} already.", wait_s, dice, bound)


def too_long(wait_s: float, may_s: float, dice: float) -> Fault:
    """The request would wait in vain: `wait_s` is predicted, and it may wait `may_s`."""
    if may_s <= 0:
        return _overloaded("No engine has room for this request now, and it may not wait.", wait_s, dice, f"{TOO_LONG}: it may not wait")
    message = f"This model is overloaded: your turn would come in about {wait_s:,.0f} s, and this request may wait {may_s:g} s."
    return _overloaded(message, wait_s - may_s, dice, f"{TOO_LONG}: {wait_s:.1f} s, may wait {may_s:g} s")


def timed_out(may_s: float, wait_s: float, dice: float) -> Fault:
    """The request has waited as long as it may."""
    return _overloaded(f"No engine became free within the {may_s:g} s that this request may wait.", wait_s, dice, TIMED_OUT)


def displaced(wait_s: float, dice: float) -> Fault:
    """The request was displaced from a full queue."""
    return _overloaded("This model is overloaded, and others went before this request.", wait_s, dice, DISPLACED)


def stopping() -> Fault:
    """The gateway shuts down before the request was dispatched."""
    return Fault(Kind.SHUTTING_DOWN, "The gateway is shutting down. Send the request again.", retry=Retry(should=True, after_s=1.0))


def nobody(dice: float, detail: str) -> Fault:
    """No backend can serve the request, and waiting would not help."""
    message = "No engine can serve this model right now. Try again shortly."
    return Fault(Kind.NO_BACKEND, message, retry=Retry(should=True, after_s=_soon(dice)), detail=detail)


def _overloaded(message: str, wait_s: float, dice: float, detail: str) -> Fault:
    after_s = max(_soon(dice), min(MOST_S, wait_s) * (1.0 + JITTER * dice))
    return Fault(Kind.OVERLOADED, f"{message} Try again in {after_s:.0f} s.", retry=Retry(should=True, after_s=after_s), detail=detail)


def _soon(dice: float) -> float:
    return SOON_S[0] + (SOON_S[1] - SOON_S[0]) * dice
