"""Limits of each caller's address, whatever its keys are: connections, requests, and requests whose key is not valid. Pure.

`AddressLimits` holds the counts of one worker. A caller of IPv6 has a whole /64 and can take any address of it, so one /64 counts as one
address. Memory is bounded: `AddressBuckets` forgets the addresses that were not seen for longest, and connections are bounded elsewhere.
"""

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

import msgspec

from domain import retry_after
from domain.clock import Clock
from domain.faults import Fault, Kind

MOST_ADDRESSES: Final = 32_768
"""Addresses with a bucket, for each of the two limits per minute: about 6 MiB of a worker's memory when full. Who uses more addresses than
these in a minute is not held by any limit per address."""

_ROUNDING_S: Final = 1e-6
"""Shorter waits come from adding fractions of a minute up."""

_PREFIX_BITS: Final = 64
"""Of IPv6, the part that networks give to one site at least (RFC 6177)."""


@lru_cache(maxsize=4096)
def _ipv6_site(address: str) -> str:
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    shift = 128 - _PREFIX_BITS
    return f"{IPv6Address(int(found) >> shift << shift)}/{_PREFIX_BITS}"


def counted_as(address: str) -> str:
    """The text under which an address is counted: itself for IPv4, also inside an IPv6 address, and its /64 for IPv6."""
    return _ipv6_site(address) if ":" in address else address


class AddressBuckets:
    """A token bucket for each address: a minute's tokens at most, refilled evenly. A full bucket takes no memory.

    Args:
        per_minute: the size of a bucket, and the tokens that it gets in a minute.
        most: the buckets that are kept.
    """

    __slots__ = ("_full_at", "_interval_s", "_most")

    def __init__(self, per_minute: int, most: int = MOST_ADDRESSES) -> None:
        self._interval_s = 60 / per_minute
        self._most = most
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When each bucket will be full again, the one used last at the end."""

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_s(self, address: str, now: float) -> float:
        """Seconds until the bucket has a token; 0 when it has one."""
        wait_s = self._full_at.get(address, now) - now - (60 - self._interval_s)
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, address: str, now: float) -> None:
        """Take a token; from an empty bucket nothing is taken."""
        full_at = self._full_at
        full_at[address] = min(max(full_at.get(address, now), now) + self._interval_s, now + 60)
        full_at.move_to_end(address)
        oldest = next(iter(full_at))
        if full_at[oldest] <= now or len(full_at) > self._most:
            del full_at[oldest]


class AddressBounds(msgspec.Struct, frozen=True):
    """What one address may do; None for no limit. Filled from `data.per_address` of tidegate.yaml, where all three are off: callers of one
    office or cloud share an address, and behind a proxy that is not named in `data.trusted_proxies` all callers do."""

    connections: int | None = None
    requests_per_minute: int | None = None
    invalid_keys_per_minute: int | None = None


class AddressConnection:
    """One connection in the count of its address, until it is lost."""

    __slots__ = ("_counted_as", "_open", "refusal")

    def __init__(self, open_connections: dict[str, int], name: str, refusal: Fault | None) -> None:
        self._open: dict[str, int] | None = open_connections
        self._counted_as = name
        self.refusal = refusal
        """What the connection is answered with before it is closed; None for one within the limit."""
        open_connections[name] = open_connections.get(name, 0) + 1

    def lost(self) -> None:
        """Count the connection no longer; may be called again."""
        counts, self._open = self._open, None
        if counts is None:
            return
        left = counts[self._counted_as] - 1
        if left:
            counts[self._counted_as] = left
        else:
            del counts[self._counted_as]


NOT_COUNTED: Final = AddressConnection({}, "", None)
"""A connection without a limit."""


class AddressLimits:
    """The counts of each address in one worker. A connection without an address, as of a Unix socket, has no limit.

    Args:
        clock: in seconds, monotonic.
    """

    def __init__(self, bounds: AddressBounds, clock: Clock) -> None:
        self._clock = clock
        self._most_open = bounds.connections
        self._open: dict[str, int] = {}
        self._requests = AddressBuckets(bounds.requests_per_minute) if bounds.requests_per_minute else None
        self._invalid_keys = AddressBuckets(bounds.invalid_keys_per_minute) if bounds.invalid_keys_per_minute else None

    @property
    def open_addresses(self) -> int:
        """Addresses with an open connection."""
        return len(self._open)

    @property
    def bounds_connections(self) -> bool:
        """Whether connections are counted at all."""
        return self._most_open is not None

    @property
    def bounds_requests(self) -> bool:
        """Whether requests are counted, or those with keys that are not valid."""
        return self._requests is not None or self._invalid_keys is not None

    def connected(self, address: str) -> AddressConnection | None:
        """Count a new connection; None where it has to be closed without an answer.

        As many connections as are allowed are answered with a refusal beside those that are served. Each of them takes a descriptor until
        its caller has read the refusal, so that further ones get none.
        """
        most, name = self._most_open, counted_as(address)
        if most is None or not address:
            return NOT_COUNTED
        count = self._open.get(name, 0)
        if count >= 2 * most:
            return None
        refusal = None
        if count >= most:
            message = f"Too many connections from your address ({name}): {most} are allowed. Close one, or use those that are open."
            refusal = Fault(
                Kind.ADDRESS_LIMIT, message, retry=retry_after.of_concurrency_limit(0.5), detail=f"connections of the address {name}"
            )
        return AddressConnection(self._open, name, refusal)

    def request(self, address: str) -> Fault | None:
        """Count a request; the Fault of one that has to be refused, which is not counted."""
        if not address:
            return None
        now, name = self._clock(), counted_as(address)
        invalid_keys = self._invalid_keys
        if invalid_keys is not None and (wait_s := invalid_keys.wait_s(name, now)):
            return _too_many("with keys that are not valid ", "invalid keys", name, wait_s)
        requests = self._requests
        if requests is None:
            return None
        if wait_s := requests.wait_s(name, now):
            return _too_many("", "requests", name, wait_s)
        requests.take(name, now)
        return None

    def invalid_key(self, address: str) -> None:
        """Count a request whose key or token was not valid."""
        if self._invalid_keys is not None and address:
            self._invalid_keys.take(counted_as(address), self._clock())


def _too_many(which: str, counted: str, name: str, wait_s: float) -> Fault:
    message = f"Too many requests {which}came from your address ({name}). Try again in {wait_s:.1f} s."
    return Fault(
        Kind.ADDRESS_LIMIT, message, retry=retry_after.of_rate_limit(round(wait_s * 1e6)), detail=f"{counted} of the address {name}"
    )
