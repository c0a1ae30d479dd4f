"""From an endpoint to the IP addresses to connect to: resolved once per connection, every one judged, and only those dialled.

What is judged is what is connected to, so a name that answers otherwise the second time (rebinding) gains nothing.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable

from backends.clients.endpoint import Endpoint


class RefusedAddress(OSError):
    """An address that must not be connected to; the message says which and why."""


async def addresses_of(target: Endpoint, loop: asyncio.AbstractEventLoop) -> list[str]:
    """Where to connect, in the resolver's order; for an endpoint without `reach` its host as it is, for the loop to resolve.

    Raises:
        RefusedAddress: one of the addresses is out of reach; then none is used, whatever the others are.
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
        OSError: none does, or one is out of reach; of TLS too (`ssl.SSLError`).
        ValueError: a name that cannot be encoded.
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
    """Whether the host is an IP address already."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def resolved(host: str, port: int, loop: asyncio.AbstractEventLoop) -> list[str]:
    """The addresses of a host, without doubles. Raises OSError when there are none."""
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def is_local(address: str) -> bool:
    """Whether `address` is this machine's: only such ones can be bound."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
