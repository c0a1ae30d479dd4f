"""The address of one backend, and the connection limits that every adapter keeps towards it.

`EngineEndpoint` is the address with the connection policy. `tune` sets TCP keep-alive, the same for every adapter: how soon a peer that
vanished without a FIN is noticed. `addresses_of` gives the IP addresses to connect to, and `dial` connects: the host is resolved once per
connection, every address is checked, and only checked addresses are dialled. The name is not resolved again between check and connect, so a
name that changes its answer (DNS rebinding) gains nothing.
"""

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from backends.ports import EngineTls
from backends.reach import Reach

KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3), (socket.TCP_USER_TIMEOUT, 30_000))
"""TCP keep-alive after 15 s, every 5 s, 3 times; unacknowledged data for 30 s (in ms). So a peer that vanished without a FIN
is noticed within about 30 s even while nothing is sent."""


def tune(sock: socket.socket) -> None:
    """Switch TCP keep-alive on."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class EngineEndpoint(msgspec.Struct, frozen=True):
    """An engine's address, split once at start-up, with the connection policy towards it."""

    host: str
    port: int
    tls: EngineTls | None
    prefix: str
    """Path in front of every route, without a trailing slash; usually empty."""
    authorization: bytes | None
    """Whole value of the Authorization header for this engine, or None."""
    connect_timeout_s: float
    idle_s: float
    """Age at which an idle connection is not used again. Must lie below the engine's own keep-alive time-out (uvicorn's, which
    vLLM and SGLang use, is 5 s), or requests race with the engine's close."""
    max_connections: int
    """Most connections open at once, busy ones included; a call that would need one more is refused with `Loss.CAPACITY`."""

    address: str = ""
    """The IP address to connect to where it is known already; the host is then only a name, for TLS and the Host header."""
    reach: Reach | None = None
    """The addresses that may be connected to, checked at every connect; None for endpoints from operators' own files."""

    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers of every call; ASCII."""

    @property
    def host_header(self) -> str:
        """The Host header's value: with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def endpoint(
    url: str,
    *,
    authorization: str | None = None,
    connect_timeout_s: float = 2.0,
    idle_s: float = 4.0,
    max_connections: int = 1024,
    tls: EngineTls | None = None,
    address: str = "",
    reach: Reach | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> EngineEndpoint:
    """Split `url` (`http` or `https`, host, optional port and path prefix); an https URL without `tls` trusts the system's CAs.

    Raises:
        ValueError: the URL has another scheme or no host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http:// or https:// address")
    secure = parts.scheme == "https"
    return EngineEndpoint(
        host=parts.hostname,
        port=parts.port or (443 if secure else 80),
        tls=(tls or system_trust()) if secure else None,
        prefix=parts.path.rstrip("/"),
        authorization=authorization.encode("ascii") if authorization else None,
        connect_timeout_s=connect_timeout_s,
        idle_s=idle_s,
        max_connections=max_connections,
        address=address,
        reach=reach,
        headers=headers,
    )


@functools.cache
def system_trust() -> EngineTls:
    """TLS with the system's CAs, one for all backends: reading the CAs holds the event loop for tens of milliseconds."""
    return EngineTls(ssl.create_default_context())


class RefusedAddress(OSError):
    """The address must not be connected to; the message names it and says why."""


async def addresses_of(target: EngineEndpoint, loop: asyncio.AbstractEventLoop) -> list[str]:
    """The addresses to connect to, in the resolver's order; for an endpoint without `reach` its unresolved host, which the loop resolves.

    Raises:
        RefusedAddress: one of the addresses is out of reach; then none is used, even if others are allowed.
        OSError: the name does not resolve.
    """
    if target.reach is None:
        return [target.address or target.host]
    addresses = [target.address] if target.address else await resolved(target.host, target.port, loop)
    for address in addresses:
        refusal = target.reach.refusal(address, target.port)
        if refusal:
            raise RefusedAddress(f"address {address} {refusal}")
    return addresses


async def dial(target: EngineEndpoint, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol]) -> None:
    """Connect to the first of the endpoint's addresses that answers.

    Raises:
        OSError: none of them answers, one is out of reach, or TLS fails (`ssl.SSLError`).
        ValueError: the name cannot be encoded.
    """
    addresses = await addresses_of(target, loop)
    name = target.host if target.tls else None
    tls = target.tls.context if target.tls else None
    for address in addresses:
        try:
            await loop.create_connection(protocol, address, target.port, ssl=tls, server_hostname=name)
        except OSError:
            if address == addresses[-1]:
                raise
        else:
            return


def is_literal(host: str) -> bool:
    """Whether the host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def resolved(host: str, port: int, loop: asyncio.AbstractEventLoop) -> list[str]:
    """The addresses of a host, without duplicates. Raises OSError when there are none."""
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def is_local(address: str) -> bool:
    """Whether `address` is this machine's, found by binding to it."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
