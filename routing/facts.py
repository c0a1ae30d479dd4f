"""What is said of a backend from outside the Board: by an operator, and to somebody who asks for its peak. Values only."""

from typing import Final, NamedTuple

import msgspec


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What an operator says of a backend, or it of itself; it changes with its configuration only."""

    in_flight_cap: int = 0
    """Requests this process may have there at a time; 0: no cap."""
    context_tokens: int = 0
    """The longest prompt and answer together that it serves; 0: not known."""
    price: float = 0.0
    """What a token costs there, relative to the other backends of the pool."""
    region: str = ""
    """Where it stands, in the operator's words."""


NO_FACTS: Final = Facts()


class Peak(NamedTuple):
    """The most there was on a backend since somebody last asked; what comes and goes between two looks is not lost (routers no. 18)."""

    requests: float
    queue_tokens: float
    kv_share: float
    """Of its KV cache; 0 while its size is not known."""
