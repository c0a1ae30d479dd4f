"""The faults that end an attempt on an engine, each with its one wording."""

from typing import Final

from backends.ports import Loss
from domain import retry_after
from domain.faults import NEVER, Fault, Kind, Retry

NO_ENGINE: Final = "No engine can serve this request right now. Try again."

_LOSSES: Final = {
    Loss.CONNECT: Kind.CONNECT_FAILED,
    Loss.CAPACITY: Kind.ENGINE_BUSY,
    Loss.NO_REPLY: Kind.RESET_BEFORE_REPLY,
    Loss.CUT: Kind.BROKEN_STREAM,
    Loss.GARBLED: Kind.INVALID_REPLY,
}


def lost_reply(loss: Loss, detail: str, *, stream: bool) -> Fault:
    """The fault of a call that was lost on the way.

    Args:
        stream: whether the reply is handed on while it comes; of any other reply that was cut, nothing has reached the caller.
    """
    kind = Kind.RESET_BEFORE_REPLY if loss is Loss.CUT and not stream else _LOSSES[loss]
    return Fault(kind, "The engine serving this request could not answer it. Try again.", retry=retry_after.SOON, detail=detail)


def unusable_reply(detail: str) -> Fault:
    """The fault of a reply that is not what was asked for."""
    return Fault(Kind.INVALID_REPLY, "The engine sent no usable answer. Try again.", retry=retry_after.SOON, detail=detail)


def stopped_working(detail: str) -> Fault:
    """The fault of an engine that was taken out of rotation while a request waited for it."""
    return Fault(Kind.BACKEND_LOST, "The engine serving this request stopped working. Try again.", retry=retry_after.SOON, detail=detail)


def no_engine(detail: str) -> Fault:
    """The fault of a request that no engine is left for."""
    return Fault(Kind.BACKEND_LOST, NO_ENGINE, retry=retry_after.SOON, detail=detail)


def backend_drained(detail: str, retry: Retry = NEVER) -> Fault:
    """The fault of a call to a backend that has left the fleet, or is about to."""
    return Fault(Kind.BACKEND_DRAINED, "The engine was taken out of service. Try again.", retry=retry, detail=detail)


def caller_gone() -> Fault:
    """The fault of a request whose caller has left."""
    return Fault(Kind.CLIENT_GONE, "The caller closed the connection before the answer was complete.")
