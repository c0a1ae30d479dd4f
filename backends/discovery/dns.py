"""Backends behind a DNS name: A and AAAA records with one port, or SRV records, which have host and port.

A time-out or a failing server keeps the last good answer for ten minutes. An empty answer is believed only at the third time in a row,
because a name server that has just been restarted gives it too.

Name servers are queried from the event loop, not through libc: its look-ups run in a few threads that the whole process shares, and two
that hang would block all others.
"""

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from domain.membership import Member, SourceError

KEEP_S: Final = 600.0
"""How long the last good answer holds while DNS fails (reliability, engine faults: "DNS change")."""

EMPTY_BELIEVED: Final = 3
"""Empty answers in a row after which the pool is believed to be empty."""

LOOKUP_WITHIN_S: Final = 4.0
"""Longest wait for one answer; below the interval of 5 s between look-ups."""

MAX_FOUND: Final = 256
"""Addresses taken from one answer."""

MAX_TARGETS: Final = 200
"""Targets of one SRV answer that are looked up."""

MAX_AT_ONCE: Final = 8
"""Most queries of one source in flight."""

MAX_ID: Final = 64

LOCALHOST: Final = ("127.0.0.1", "::1")

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""Host names that may stand in a URL; a name server is not trusted with others."""


class ResolvedAddresses(msgspec.Struct, frozen=True, order=True):
    """One address that a name resolves to."""

    address: str
    port: int
    host: str = ""
    """The name for TLS and the Host header, where it differs from the name looked up (an SRV target)."""


Lookup = Callable[[], Awaitable[Sequence[ResolvedAddresses]]]
"""Resolves once; empty for a name that does not exist. Raises OSError or TimeoutError when no answer comes."""


class DnsSource:
    """The members of one pool behind a DNS name (a `domain.membership.MemberSource`)."""

    owner: Final = "dns"
    keep_s = KEEP_S

    def __init__(self, pool: str, host: str, scheme: str, every_s: float, lookup: Lookup) -> None:
        self.name = f"DNS {host}"
        self.pool = pool
        self.every_s = every_s
        self._host = host
        self._scheme = scheme
        self._lookup = lookup
        self._empty = 0
        self._asking = False

    async def read(self) -> Sequence[Member]:
        """Resolve the name and return its members; one call at a time.

        Raises:
            SourceError: no answer came, an empty one is not believed yet, or another call is under way.
        """
        if self._asking:
            raise SourceError(f"{self._host} is still being resolved")
        self._asking = True
        try:
            addresses = await self._resolve()
        finally:
            self._asking = False
        self._empty = 0 if addresses else self._empty + 1
        if not addresses and self._empty < EMPTY_BELIEVED:
            raise SourceError(f"{self._host} has no address, it is said ({self._empty} of {EMPTY_BELIEVED} times before it is believed)")
        return [self._member(address) for address in addresses]

    async def _resolve(self) -> list[ResolvedAddresses]:
        try:
            async with asyncio.timeout(LOOKUP_WITHIN_S):
                return sorted(set(await self._lookup()))[:MAX_FOUND]
        except TimeoutError:
            raise SourceError(f"{self._host} is not resolved within {LOOKUP_WITHIN_S:g} s; look at the name servers") from None
        except OSError as error:
            raise SourceError(f"{self._host} is not resolved ({error}); look at the name servers") from None

    def _member(self, found: ResolvedAddresses) -> Member:
        host = found.host or self._host
        return Member(self.pool, member_id(self.pool, found), f"{self._scheme}://{host}:{found.port}", self.owner, found.address)


def member_id(pool: str, found: ResolvedAddresses) -> str:
    """The member's id, the same for ever for the same address in the same pool: `chat-10.0.0.5-8000`."""
    tail = f"-{found.address.replace(':', '-')}-{found.port}"
    if len(pool) + len(tail) <= MAX_ID:
        return pool + tail
    mark = sha256(pool.encode()).hexdigest()[:8]
    return pool[: MAX_ID - len(tail) - len(mark)] + mark + tail


def system_lookup(host: str, port: int | None) -> Lookup:
    """A look-up at the name servers of `/etc/resolv.conf`: of A and AAAA records when `port` is given, else of SRV records."""
    return _Addresses(host, port) if port is not None else _Srv(host)


class _Addresses:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def __call__(self) -> Sequence[ResolvedAddresses]:
        return [ResolvedAddresses(address, self._port) for address in await _resolved(self._host)]


class _Srv:
    def __init__(self, host: str) -> None:
        self._host = host

    async def __call__(self) -> Sequence[ResolvedAddresses]:
        records = await _query(lambda resolver: resolver.resolve(self._host, "SRV", lifetime=LOOKUP_WITHIN_S))
        targets = [(str(record.target).rstrip("."), int(record.port)) for record in records][:MAX_TARGETS]
        if odd := [host for host, _ in targets if host and not _HOST.fullmatch(host)]:
            raise OSError(f"its target {ascii(odd[0])[:80]} is no host name")
        targets = [target for target in targets if target[0]]
        at_once = asyncio.Semaphore(MAX_AT_ONCE)

        async def resolved(host: str) -> list[str]:
            async with at_once:
                return await _resolved(host)

        lists = await asyncio.gather(*(resolved(host) for host, _ in targets))
        return [
            ResolvedAddresses(address, port, host) for (host, port), addresses in zip(targets, lists, strict=True) for address in addresses
        ]


async def _resolved(host: str) -> list[str]:
    """The addresses of a name; empty for one that does not exist. Raises OSError when no answer comes."""
    if host.rstrip(".").lower() == "localhost":
        return list(LOCALHOST)  # never looked up at name servers (RFC 6761)
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    # search: short names are completed by the search domains, as libc does
    answers = await _query(lambda resolver: resolver.resolve_name(host, lifetime=LOOKUP_WITHIN_S, search=True))
    return list(dict.fromkeys(answers.addresses())) if answers else []


async def _query(ask: Callable[[Any], Awaitable[Any]]) -> Any:
    """The answer of a resolver; an empty list for a name that does not exist or has no such records."""
    # imported only here, because only pools with DNS need it
    import dns.asyncresolver
    import dns.exception
    import dns.resolver

    try:
        # a new one each time, because the file that it reads may change
        return await ask(dns.asyncresolver.Resolver())
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return []
    except dns.exception.DNSException as error:
        raise OSError(f"{type(error).__name__}: {error}") from None
