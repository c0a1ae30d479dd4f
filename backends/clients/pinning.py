"""The IP addresses to connect to for an endpoint: the host is resolved once per connection, every address is checked, and only checked
addresses are dialled.

The name is not resolved again between check and connect, so a name that changes its answer (DNS rebinding) gains nothing.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable

from backends.clients.endpoint import Endpoint


class RefusedAddress(OSError):
    """The address must not be connected to; the message names it and says why."""


async def addresses_of(target: Endpoint, loop: asyncio.AbstractEventLoop) -> list[str]:
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


async def dial(target: Endpoint, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol]) -> None:
    """Connect to the first of the endpoint's addresses that answers.

    Raises:
        OSError: none of them answers, one is out of reach, or TLS fails (`ssl.SSLError`).
        ValueError: the name cannot be encoded.
    """
    addresses = await addresses_of(target, loop)
    name = target.host if target.tls else None
    for address in addresses:
        try:
            await loop.create_connection(protocol, address, target.port, ssl=target.tls, server_hostname=name)
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
