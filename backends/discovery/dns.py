"""Backends behind a DNS name: A and AAAA with one port, or SRV, which says host and port.

A time-out or a failing server keeps the last good answer for ten minutes. An answer that says "nobody" is believed only at
the third time in a row, because a name server that has just been restarted says it too.

Name servers are asked from the event loop, not through libc: its look-ups run in a handful of threads that everything shares, and
two that hang would stop every other one.
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
"""Answers of nobody in a row that are believed."""

LOOKUP_WITHIN_S: Final = 4.0
"""Longest wait for one answer; below the 5 s at which names are resolved."""

MAX_FOUND: Final = 256
"""Addresses taken from one answer."""

MAX_TARGETS: Final = 200
"""Targets of one SRV answer that are looked up."""

MAX_AT_ONCE: Final = 8
"""Questions of one source under way at once."""

MAX_ID: Final = 64

LOCALHOST: Final = ("127.0.0.1", "::1")

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
        self._empty = 0
        self._asking = False

    async def read(self) -> Sequence[Member]:
        """Resolve once; one at a time.

        Raises:
            SourceError: there is no answer, or one of nobody that is not believed yet.
        """
        if self._asking:
            raise SourceError(f"{self._host} is still being resolved")
        self._asking = True
        try:
            found = await self._found()
        finally:
            self._asking = False
        self._empty = 0 if found else self._empty + 1
        if not found and self._empty < EMPTY_BELIEVED:
            raise SourceError(f"{self._host} has no address, it is said ({self._empty} of {EMPTY_BELIEVED} times before it is believed)")
        return [self._member(one) for one in found]

    async def _found(self) -> list[Found]:
        try:
            async with asyncio.timeout(LOOKUP_WITHIN_S):
                return sorted(set(await self._lookup()))[:MAX_FOUND]
        except TimeoutError:
            raise SourceError(f"{self._host} is not resolved within {LOOKUP_WITHIN_S:g} s; look at the name servers") from None
        except OSError as error:
            raise SourceError(f"{self._host} is not resolved ({error}); look at the name servers") from None

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
    """Asks the name servers of `/etc/resolv.conf`: for A and AAAA when `port` is given, else for SRV."""
    return _Addresses(host, port) if port is not None else _Srv(host)


class _Addresses:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def __call__(self) -> Sequence[Found]:
        return [Found(address, self._port) for address in await _resolved(self._host)]


class _Srv:
    def __init__(self, host: str) -> None:
        self._host = host

    async def __call__(self) -> Sequence[Found]:
        records = await _asked(lambda resolver: resolver.resolve(self._host, "SRV", lifetime=LOOKUP_WITHIN_S))
        targets = [(str(record.target).rstrip("."), int(record.port)) for record in records][:MAX_TARGETS]
        if odd := [host for host, _ in targets if host and not _HOST.fullmatch(host)]:
            raise OSError(f"its target {ascii(odd[0])[:80]} is no host name")
        targets = [target for target in targets if target[0]]
        at_once = asyncio.Semaphore(MAX_AT_ONCE)

        async def resolved(host: str) -> list[str]:
            async with at_once:
                return await _resolved(host)

        lists = await asyncio.gather(*(resolved(host) for host, _ in targets))
        return [Found(address, port, host) for (host, port), found in zip(targets, lists, strict=True) for address in found]


async def _resolved(host: str) -> list[str]:
    """The addresses of a name; none for one that does not exist. Raises OSError when there is no answer."""
    if host.rstrip(".").lower() == "localhost":
        return list(LOCALHOST)  # name servers are not asked for it (RFC 6761)
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    # search: a name may be short, as it may for libc
    answers = await _asked(lambda resolver: resolver.resolve_name(host, lifetime=LOOKUP_WITHIN_S, search=True))
    return list(dict.fromkeys(answers.addresses())) if answers else []


async def _asked(ask: Callable[[Any], Awaitable[Any]]) -> Any:
    """What a resolver answers; an empty list for a name that does not exist or has nothing of the kind."""
    # imported only here: nobody else needs it
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
