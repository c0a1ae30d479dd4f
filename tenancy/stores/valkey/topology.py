"""Finds the servers that own the counters: one address, the primary that Sentinels name, or a cluster's own map.

`topology_of` chooses among them by URL. redis-py asks Sentinels and clusters: seldom, and off the request path, so its knowledge of both
protocols is worth more than its speed. It is imported on first use, because a single server does not need it.

`slot_of` is a key's hash slot as the server computes it. Source: the cluster specification: CRC16 (XMODEM) of the part between the first
`{` and the next `}`, of the whole key when there is none, modulo 16,384.
"""

import asyncio
from binascii import crc_hqx
from typing import Final, Protocol

import msgspec

from tenancy.counter_url import Address, CounterUrl, StoreKind
from tenancy.ports import CountersAway

SLOTS: Final = 16_384


def slot_of(key: bytes) -> int:
    """The slot of a key."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def tag_in(part: int, parts: int) -> bytes:
    """A short hash tag whose slot lies in one of `parts` equal parts of all slots: the first number for which it does."""
    width = SLOTS // parts
    number = 0
    while not part * width <= slot_of(b"%d" % number) < (part + 1) * width:
        number += 1
    return b"%d" % number


ASK_S: Final = 1.0
"""Longest wait for one Sentinel, or for one node that is asked for the map."""


class Map(msgspec.Struct, frozen=True):
    """The owners of the slots: the upper ends of ranges, in order, and the owner of each range; one range where there is no cluster."""

    ends: tuple[int, ...]
    owners: tuple[Address, ...]


class Topology(Protocol):
    """Finds the owners of the slots."""

    every_s: float | None
    """How often to look again without a reason; None for never."""

    async def find(self) -> Map:
        """The owners now. Raises CountersAway."""
        ...


def topology_of(url: CounterUrl) -> Topology:
    """The topology of this URL's store."""
    if url.kind is StoreKind.SENTINEL:
        return _Sentinels(url)
    if url.kind is StoreKind.CLUSTER:
        return _Cluster(url)
    return _One(url)


class _One:
    every_s: float | None = None

    def __init__(self, url: CounterUrl) -> None:
        self._map = Map((16_383,), url.addresses[:1])

    async def find(self) -> Map:
        return self._map


class _Sentinels:
    every_s: float | None = 1.0
    """A primary that only this process still reaches is left a second after the Sentinels have named another."""

    def __init__(self, url: CounterUrl) -> None:
        self._url = url

    async def find(self) -> Map:
        from redis.asyncio.sentinel import Sentinel
        from redis.exceptions import RedisError

        hosts = [(address.host, address.port) for address in self._url.addresses]
        sentinel = Sentinel(hosts, socket_timeout=ASK_S, socket_connect_timeout=ASK_S)  # type: ignore[no-untyped-call]  # redis-py's own
        try:
            async with asyncio.timeout(ASK_S * 2):
                host, port = await sentinel.discover_master(self._url.service)
        except (RedisError, OSError, TimeoutError) as error:
            raise CountersAway(f"no Sentinel names a primary of {self._url.service}: {error or type(error).__name__}") from None
        finally:
            for client in sentinel.sentinels:
                await client.aclose()
        return Map((16_383,), (Address(str(host), int(port)),))


class _Cluster:
    every_s: float | None = 5.0
    """MOVED replies report a slot that moves; looking again finds nodes that came or went without any reply."""

    def __init__(self, url: CounterUrl) -> None:
        self._url = url
        self._known: tuple[Address, ...] = ()

    async def find(self) -> Map:
        why = "no node"
        for address in dict.fromkeys((*self._known, *self._url.addresses)):
            try:
                slot_map = await self._ask(address)
            except (OSError, TimeoutError, CountersAway) as error:
                why = f"{address}: {str(error) or type(error).__name__}"
                continue
            self._known = tuple(dict.fromkeys(slot_map.owners))
            return slot_map
        raise CountersAway(f"no node of the cluster tells its map; the last was {why}")

    async def _ask(self, address: Address) -> Map:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        url = self._url
        login = {"username": url.username or None, "password": url.password or None}
        patience = {"socket_timeout": ASK_S, "socket_connect_timeout": ASK_S}
        client = Redis(host=address.host, port=address.port, ssl=url.tls, **login, **patience)  # type: ignore[arg-type]  # one table for all
        try:
            async with asyncio.timeout(ASK_S):
                slots = await client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]  # redis-py's own
        except RedisError as error:
            raise CountersAway(str(error)) from None
        finally:
            await client.aclose()
        try:
            # [begin, end, [host, port, ...] of the primary, ...]; a node that has no name for itself leaves the host empty
            ranges = sorted((int(end), (owner[0] or b"").decode(), int(owner[1])) for _, end, owner, *_ in slots)
        except (TypeError, ValueError, IndexError, AttributeError):
            raise CountersAway("its answer to CLUSTER SLOTS has an unknown form") from None
        if not ranges:
            raise CountersAway("it owns no slots")
        return Map(tuple(end for end, _, _ in ranges), tuple(Address(host or address.host, port) for _, host, port in ranges))
