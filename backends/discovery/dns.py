"""Backends behind a DNS name: A and AAAA with one port, or SRV, which says host and port.

A time-out or a failing server keeps the last good answer for ten minutes. An answer that says "nobody" is believed only at
the third time in a row, because a name server that has just been restarted says it too.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from domain.membership import Member, SourceError

KEEP_S: Final = 600.0
"""How long the last good answer holds while DNS fails (reliability, engine faults: "DNS change")."""

EMPTY_BELIEVED: Final = 3
"""Answers of nobody in a row that are believed."""

LOOKUP_WITHIN_S: Final = 4.0
"""Longest wait for one answer; below the 5 s at which names are resolved."""

MAX_FOUND: Final = 1000
"""Addresses taken from one answer."""

MAX_TARGETS: Final = 200
"""Targets of one SRV answer that are looked up."""

MAX_ID: Final = 64

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""What may stand in a URL; a name server is not trusted with more."""


class Found(msgspec.Struct, frozen=True, order=True):
    """One address a name stands for."""

    address: str
    port: int
    host: str = ""
    """The name to ask for by TLS and the Host header, where it is another than the one looked up (an SRV target)."""


Lookup = Callable[[], Awaitable[Sequence[Found]]]
"""Asks once; nothing for a name that does not exist. Raises OSError or TimeoutError when there is no answer."""


class DnsSource:
    """See `domain.membership.MemberSource`."""

    owner: Final = "dns"
    keep_s = KEEP_S

    def __init__(self, pool: str, host: str, scheme: str, every_s: float, lookup: Lookup) -> None:
        self.name = f"DNS {host}"
        self.pool = pool
        self.every_s = every_s
        self._host = host
        self._scheme = scheme
        self._lookup = lookup
        self._last: list[Member] = []
        self._empty = 0

    async def read(self) -> Sequence[Member]:
        """Resolve once."""
        try:
            async with asyncio.timeout(LOOKUP_WITHIN_S):
                found = sorted(set(await self._lookup()))[:MAX_FOUND]
        except TimeoutError:
            raise SourceError(f"{self._host} is not resolved within {LOOKUP_WITHIN_S:g} s; look at the name servers") from None
        except OSError as error:
            raise SourceError(f"{self._host} is not resolved ({error}); look at the name servers") from None
        self._empty = 0 if found else self._empty + 1
        if found or self._empty >= EMPTY_BELIEVED:
            self._last = [self._member(one) for one in found]
        return self._last

    def _member(self, found: Found) -> Member:
        host = found.host or self._host
        return Member(self.pool, member_id(self.pool, found), f"{self._scheme}://{host}:{found.port}", self.owner, found.address)


def member_id(pool: str, found: Found) -> str:
    """The same id for the same address in the same pool, for ever: `chat-10.0.0.5-8000`."""
    tail = f"-{found.address.replace(':', '-')}-{found.port}"
    if len(pool) + len(tail) <= MAX_ID:
        return pool + tail
    mark = sha256(pool.encode()).hexdigest()[:8]
    return pool[: MAX_ID - len(tail) - len(mark)] + mark + tail


def system_lookup(host: str, port: int | None) -> Lookup:
    """Resolves over the system: the resolver of libc for A and AAAA when `port` is given, else SRV by dnspython."""
    return _Addresses(host, port) if port is not None else _Srv(host)


class _Addresses:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def __call__(self) -> Sequence[Found]:
        return [Found(address, self._port) for address in await _resolved(self._host, self._port)]


class _Srv:
    def __init__(self, host: str) -> None:
        self._host = host

    async def __call__(self) -> Sequence[Found]:
        # imported only here: nobody else needs it
        import dns.asyncresolver
        import dns.exception
        import dns.resolver

        try:
            answer = await dns.asyncresolver.resolve(self._host, "SRV", lifetime=LOOKUP_WITHIN_S)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except dns.exception.DNSException as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
        targets = [(str(record.target).rstrip("."), int(record.port)) for record in answer][:MAX_TARGETS]
        if odd := [host for host, _ in targets if host and not _HOST.fullmatch(host)]:
            raise OSError(f"its target {ascii(odd[0])[:80]} is no host name")
        lists = await asyncio.gather(*(_resolved(host, port) for host, port in targets if host))
        return [
            Found(address, port, host) for (host, port), found in zip([t for t in targets if t[0]], lists, strict=True) for address in found
        ]


async def _resolved(host: str, port: int) -> list[str]:
    """The addresses of a name; none for one that does not exist. Raises OSError when there is no answer."""
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return []
        raise
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
