"""The engine that an endpoint picker in front has named: `x-gateway-destination-endpoint` of the Gateway API's inference extension.

The header is believed only where `data.trusted_proxies.destination_endpoint` says so and the connection comes from one of these proxies:
whoever may write it chooses engines. It changes the order of backends and nothing else: a backend that could not be chosen without the
header (not up, at its limit, of another pool, kept free for other tenants) is not chosen with it. It never goes to an engine, as no header
of callers does.
"""

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

from domain.membership import Member
from routing.fleet import Pool
from routing.schedule import ALONE, Route

HEADER: Final = b"x-gateway-destination-endpoint"

MOST: Final = 16
"""Endpoints of one header that are read; pickers name a few."""

DESTINATION: Final = "destination"
"""What decided where the picker's choice was followed (`Route.why`)."""

NOT_NAMED: Final = "the endpoint picker named others"

PORTS: Final = {"http": 80, "https": 443}


def endpoint_of(member: Member) -> str:
    """Where a member listens, as `address:port`; empty for one that is known by its host name alone."""
    url = urlsplit(member.url)
    return _endpoint(member.address or url.hostname or "", url.port or PORTS.get(url.scheme, 0))


def _endpoint(address: str, port: int) -> str:
    try:
        return f"{ip_address(address.partition('%')[0])}:{port}"
    except ValueError:
        return ""


def endpoints_named(value: bytes) -> list[str]:
    """The endpoints of the header in their order, as `endpoint_of` writes them; without what is none."""
    found = []
    for entry in value.decode("latin-1").split(",")[:MOST]:
        address, _, port = entry.strip().rpartition(":")
        if port.isascii() and port.isdecimal() and len(port) <= 5 and (endpoint := _endpoint(address.strip("[]"), int(port))):
            found.append(endpoint)
    return found


def backends_named(value: bytes, pool: Pool, endpoints: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of the pool's backends that the header names and that are up, in its order.

    Args:
        endpoints: where backends listen, by their id.
    """
    here = {endpoints.get(backend.id, ""): backend.id for backend in pool.up}
    return tuple(dict.fromkeys(here[endpoint] for endpoint in endpoints_named(value) if endpoint in here))


def others_shut(pool: Pool, named: Collection[str], shut: Mapping[str, str]) -> dict[str, str]:
    """The backends that a decision among the named ones leaves out, each with the reason."""
    return {**{backend.id: NOT_NAMED for backend in pool.up if backend.id not in named}, **shut}


def in_named_order(route: Route, named: tuple[str, ...]) -> Route:
    """The route with the named backends alone, in their order; empty where none of them can be chosen."""
    place_of = {backend.id: at for at, (backend, _) in enumerate(route.ranked)}
    order = [place_of[each] for each in named if each in place_of]
    return msgspec.structs.replace(
        route,
        ranked=tuple(route.ranked[at] for at in order),
        costs=tuple(route.costs[at] for at in order),
        matched=tuple(route.matched[at] for at in order),
        waiting=tuple(route.waiting[at] for at in order) if route.waiting else (),
        why=ALONE if route.why == ALONE else DESTINATION,
    )
