"""What a request is told that does not get its turn, and the words these ends are counted by. Pure; chance is handed in."""

from typing import Final

from domain.faults import Fault, Kind, Retry

SERVED: Final = "served"
TOO_LONG: Final = "too_long"
"""Refused at once: its wait would be longer than it may wait."""
TIMED_OUT: Final = "timed_out"
"""It waited as long as it may."""
DISPLACED: Final = "displaced"
"""It gave its place to a more urgent one, or to a tenant with fewer waiting."""
GONE: Final = "gone"
"""Its caller left."""
NOBODY: Final = "nobody"
"""No backend is left that could ever serve it."""
STOPPED: Final = "stopped"
"""The gateway ends."""
BOUNDS: Final = {
    "count": "Too many requests wait for this model",
    "size_bytes": "The requests that wait for this model take too much memory",
    "tenant_count": "Too many of your requests wait for this model",
    "tenant_bytes": "Your requests that wait for this model take too much memory",
}
"""By the bound of `tenancy.fairness.Bounds`, how the sentence begins."""
REFUSALS: Final = (TOO_LONG, *BOUNDS, TIMED_OUT, DISPLACED, GONE, NOBODY, STOPPED)
"""Every way in which a wait ends without an engine, or does not begin."""
SOON_S: Final = (1.0, 5.0)
"""Between which a caller is told to come back where nobody knows better, or where it would be sooner."""
MOST_S: Final = 60.0
"""Of what a caller is told to wait, before the jitter: official clients heed up to 120 s."""
JITTER: Final = 0.5
"""Callers that were refused together come back spread over half as long again."""


def full(bound: str, wait_s: float, dice: float) -> Fault:
    """No room in the line.

    Args:
        wait_s: until what waits now has been worked off; 0 where nobody knows.
        dice: 0 to 1.
    """
    return _overloaded(f"{BOUNDS[bound]} already.", wait_s, dice, bound)


def too_long(wait_s: float, may_s: float, dice: float) -> Fault:
    """It would wait in vain."""
    if may_s <= 0:
        return _overloaded("No engine has room for this request now, and it may not wait.", wait_s, dice, f"{TOO_LONG}: it may not wait")
    message = f"This model is overloaded: your turn would come in about {wait_s:,.0f} s, and this request may wait {may_s:g} s."
    return _overloaded(message, wait_s - may_s, dice, f"{TOO_LONG}: {wait_s:.1f} s, may wait {may_s:g} s")


def timed_out(may_s: float, wait_s: float, dice: float) -> Fault:
    """It has waited in vain."""
    return _overloaded(f"No engine became free within the {may_s:g} s that this request may wait.", wait_s, dice, TIMED_OUT)


def displaced(wait_s: float, dice: float) -> Fault:
    """It gave way."""
    return _overloaded("This model is overloaded, and others went before this request.", wait_s, dice, DISPLACED)


def stopping() -> Fault:
    """The gateway ends before its turn came."""
    return Fault(Kind.SHUTTING_DOWN, "The gateway is shutting down. Send the request again.", retry=Retry(should=True, after_s=1.0))


def nobody(dice: float, detail: str) -> Fault:
    """Nobody can serve it, and waiting would not help."""
    message = "No engine can serve this model right now. Try again shortly."
    return Fault(Kind.NO_BACKEND, message, retry=Retry(should=True, after_s=_soon(dice)), detail=detail)


def _overloaded(message: str, wait_s: float, dice: float, detail: str) -> Fault:
    after_s = max(_soon(dice), min(MOST_S, wait_s) * (1.0 + JITTER * dice))
    return Fault(Kind.OVERLOADED, f"{message} Try again in {after_s:.0f} s.", retry=Retry(should=True, after_s=after_s), detail=detail)


def _soon(dice: float) -> float:
    return SOON_S[0] + (SOON_S[1] - SOON_S[0]) * dice
