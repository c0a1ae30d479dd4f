"""The size that a request body may have. The bytes above the usual size, `data.limits.max_body_bytes`, are a policy's to allow, and are
reserved from one total per worker, so that policies that allow a lot do not take the memory of all other requests."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from domain import retry_after
from domain.faults import Fault, Kind

if TYPE_CHECKING:
    from gateway.http.edge.connections import Connections
    from gateway.http.edge.exchange import Exchange

STREAM_ROOM_BYTES: Final = 24 * 1024 * 1024
"""Most memory of a body that is stored as it arrives: what has come before its caller was known, three pieces of 5 MiB on their way to the
storage, and the pieces between."""
REMEDY: Final = "Send less in one request, or ask the operator for more (caps.body_bytes of the policy, data.limits of the settings)."


def body_too_large(size: int | None, most: int) -> Fault:
    """The refusal of a body.

    Args:
        size: its size in bytes; None where it was cut off at `most`.
    """
    found = f"{size} bytes, and at most {most}" if size is not None else f"more than the {most}"
    return Fault(Kind.BODY_TOO_LARGE, f"The body has {found} bytes that are allowed. {REMEDY}")


def reserve_body(exchange: "Exchange", allowed: Collection[int | None], connections: "Connections") -> Fault | None:
    """Set the most bytes that a body may have (`EdgeLimits.body_most`), and reserve those of a large one until its exchange is over.

    Args:
        allowed: the sizes that the policy of its caller allows.

    Returns:
        The refusal of a body that is larger, or for which there is no room now; None for one that may come.
    """
    exchange.body_allowed = connections.limits.body_most(allowed)
    exchange.body_most = min(exchange.body_allowed, connections.limits.max_body_bytes)
    declared, received = exchange.head.content_length, len(exchange.received)
    coming = max(received, declared or 0)
    if coming > exchange.body_allowed:
        return body_too_large(coming if exchange.complete or coming == declared else None, exchange.body_allowed)
    if coming > exchange.body_most and declared is None and not exchange.complete:
        coming = exchange.body_allowed
    return reserve_size(exchange, coming, connections)


def reserve_stream(exchange: "Exchange", most: int, connections: "Connections") -> Fault | None:
    """Reserve what a body takes that is stored as it arrives: its own bytes, and no more than the buffers of its way to the storage.

    Returns:
        The refusal where there is no room now.
    """
    exchange.body_allowed = most
    coming = exchange.head.content_length
    return reserve_size(exchange, STREAM_ROOM_BYTES if coming is None else min(coming, STREAM_ROOM_BYTES), connections)


def reserve_growth(exchange: "Exchange", connections: "Connections") -> Fault | None:
    """The same for a body without a declared length that becomes larger than `Exchange.body_most`: room for the longest that it may
    become."""
    if exchange.body_most >= exchange.body_allowed:
        return body_too_large(None, exchange.body_most)
    return reserve_size(exchange, exchange.body_allowed, connections)


def reserve_size(exchange: "Exchange", size: int, connections: "Connections") -> Fault | None:
    """Reserve the bytes of a request of this size, where they are above the usual size; the refusal where there is no room.

    One tenant gets one request, and as many more as fit into half of the total: slow bodies of one tenant would else take all of it.
    """
    if size <= connections.limits.max_body_bytes:
        return None
    total, more = connections.limits.large_bodies_total_bytes, size - exchange.body_reserved
    of_tenant = connections.large_bodies_of.get(exchange.body_tenant, 0) if exchange.body_tenant else 0
    has_others = of_tenant > exchange.body_reserved
    if connections.large_bodies + more > total or (has_others and of_tenant + more > total // 2):
        return Fault(Kind.OVERLOADED, "Too many large requests are being read here. Try again shortly.", retry=retry_after.SOON)
    _count(exchange, more, connections)
    exchange.body_most = size
    return None


def free_body(exchange: "Exchange", connections: "Connections") -> None:
    """Give back what is reserved for a body."""
    _count(exchange, -exchange.body_reserved, connections)


def _count(exchange: "Exchange", more: int, connections: "Connections") -> None:
    exchange.body_reserved += more
    connections.large_bodies += more
    if exchange.body_tenant:
        of_tenant = connections.large_bodies_of
        of_tenant[exchange.body_tenant] = left = of_tenant.get(exchange.body_tenant, 0) + more
        if not left:
            del of_tenant[exchange.body_tenant]
