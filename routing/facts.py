"""Values about one backend that go into and out of the load table: its configured facts, and its peak load."""

from typing import Final, NamedTuple

import msgspec


class Facts(msgspec.Struct, frozen=True, gc=False):
    """Configured facts about a backend, from the operator or the engine; they change only with its configuration."""

    in_flight_cap: int = 0
    """Requests that this process may have in flight there; 0: no cap."""
    context_tokens: int = 0
    """The longest prompt and answer together that it serves; 0: not known."""
    price: float = 0.0
    """Price of a token, relative to the other backends of the pool."""
    region: str = ""
    """The backend's region, by the operator's name for it."""


NO_FACTS: Final = Facts()


class Peak(NamedTuple):
    """The highest load of a backend since the last reading, so that short peaks between two readings are seen (routers no. 18)."""

    requests: float
    queue_tokens: float
    kv_share: float
    """Share of its KV cache; 0 while its size is not known."""
