"""The faults of requests that are refused by the queue or leave it unserved, and the words by which metrics count these ends. Pure;
chance is handed in."""

from math import ceil
from typing import Final

from domain import retry_after
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
"""The beginning of the message, by the bound of `routing.fair_queue.QueueBounds` that was reached."""
REFUSALS: Final = (TOO_LONG, *BOUNDS, TIMED_OUT, DISPLACED, GONE, NOBODY, STOPPED)
"""Every way in which a wait ends without an engine, or does not begin."""


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


def not_back(may_s: float, dice: float) -> Fault:
    """The request has waited as long as it may, and no engine of the pool can be reached."""
    fault = nobody(dice, f"{TIMED_OUT}: no engine was back within the {may_s:g} s that the request may wait")
    fault.message = f"No engine for this model was back within the {may_s:g} s that this request may wait. Try again shortly."
    return fault


def displaced(wait_s: float, dice: float) -> Fault:
    """The request was displaced from a full queue."""
    return _overloaded("This model is overloaded, and others went before this request.", wait_s, dice, DISPLACED)


def stopping() -> Fault:
    """The gateway shuts down before the request was dispatched."""
    return Fault(Kind.SHUTTING_DOWN, "The gateway is shutting down. Send the request again.", retry=retry_after.SOON)


def nobody(dice: float, detail: str) -> Fault:
    """No backend can serve the request, and waiting would not help."""
    message = "No engine can serve this model right now. Try again shortly."
    return Fault(Kind.NO_BACKEND, message, retry=retry_after.of_missing_engine(dice), detail=detail)


def asleep(said: str, left_s: float, dice: float, detail: str) -> Fault:
    """The pool has no engine while nobody asks for it, and the request is not held until one has started.

    Args:
        said: why, without its full stop.
        left_s: seconds until an engine is expected.
    """
    retry = retry_after.of_waking(left_s, dice)
    return Fault(Kind.NO_BACKEND, f"{said}. {_again(retry)}", retry=retry, detail=f"waking, {left_s:.0f} s left: {detail}")


def _overloaded(message: str, wait_s: float, dice: float, detail: str) -> Fault:
    retry = retry_after.of_overload(wait_s, dice)
    return Fault(Kind.OVERLOADED, f"{message} {_again(retry)}", retry=retry, detail=detail)


def _again(retry: Retry) -> str:
    """When to send it again, in the whole seconds of `retry-after`."""
    return f"Try again in {ceil(retry.after_s or 0.0)} s."
