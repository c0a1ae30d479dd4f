"""The networks that a key may be used from, pure: their checked text, and whether an address is in one of them."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

MAX_NETWORKS: Final = 64
"""Networks of one key. A caller has a few offices and clouds; what needs more belongs into a firewall."""
MAX_NETWORK_CHARS: Final = 49
"""The longest text of an IPv6 network, which ends with an IPv4 address."""
_MAPPED: Final = IPv6Network("::ffff:0:0/96")

Networks = tuple[str, ...]
"""Networks as address/bits, sorted; empty for a key that may be used from everywhere."""


class BadNetworks(ValueError):
    """Networks that no key can have; the message says which and what to write."""


def key_networks_of(texts: Iterable[str]) -> Networks:
    """The networks as stored. An address alone is the network of that address; an IPv4 network inside IPv6 is the IPv4 network.

    Raises:
        BadNetworks: a text that is no network, or too many of them.
    """
    found = set()
    for text in texts:
        try:
            found.add(str(_network(text)))
        except ValueError:
            shown = ascii(text)[:64]
            hint = "write address/bits without host bits, for instance 203.0.113.0/24 or 2001:db8::/32"
            raise BadNetworks(f"{shown} is no network; {hint}") from None
    if len(found) > MAX_NETWORKS:
        raise BadNetworks(f"{len(found)} networks; at most {MAX_NETWORKS} are kept")
    return tuple(sorted(found))


def _network(text: str) -> IPv4Network | IPv6Network:
    if "%" in text:
        raise ValueError("a zone is no part of a network")
    network = ip_network(text)
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def may_come_from(networks: Networks, address: str) -> bool:
    """Whether a key with these networks may be used from the address. Text that is no address, as of a Unix socket, is in no network; an
    IPv4 address inside an IPv6 one is the IPv4 address."""
    if not networks:
        return True
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in _parsed(networks) if network.version == found.version)


@lru_cache(maxsize=4096)
def _parsed(networks: Networks) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks to compare with; kept by their text, so that the many keys of one place share them."""
    return tuple(map(ip_network, networks))
