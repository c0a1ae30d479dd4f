"""The allowlist of addresses that come from others: from DNS answers, and from callers that may register backends. Pure.

An address is checked as a number, never as text, and forms that carry another address inside (IPv4 in IPv6) are refused, so that no
address has a second reading (R40). Addresses from operators' own files are not checked here.
"""

import ipaddress
from collections.abc import Callable, Container, Sequence
from typing import Final

import msgspec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METADATA_NETWORKS: Final[tuple[Network, ...]] = tuple(
    map(
        ipaddress.ip_network,
        ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32"),
    )
)
"""Link-local ranges, and the addresses where AWS, Alibaba Cloud and Oracle Cloud serve machine credentials, and Azure the goal state of a
machine. No engine listens there, so such an address is a mistake or an attack."""

CARRIERS: Final[tuple[Network, ...]] = tuple(
    map(ipaddress.ip_network, ("::ffff:0:0/96", "::ffff:0:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
)
"""IPv6 ranges whose addresses stand for IPv4 ones: mapped, translated (RFC 2765), compatible, NAT64 (RFC 6052, 8215), 6to4, Teredo."""

NEVER: Final[tuple[Network, ...]] = tuple(map(ipaddress.ip_network, ("0.0.0.0/8", "240.0.0.0/4", "ff00::/8", "224.0.0.0/4", "::/128")))
"""IPv4 and IPv6 ranges that are never reached: this host, reserved and broadcast, multicast, unspecified."""

LOOPBACK: Final = ipaddress.IPv6Address("::1")
"""The one address of `::/96` that stands for no IPv4 address."""


UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""The only part of IPv6 from which addresses of the public internet are given out. Python counts most of the rest as global, such as
site-local addresses (`fec0::/10`) and segment ids (`5f00::/16`), which are of an operator's own network."""

SPECIAL: Final[tuple[Network, ...]] = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))
"""Ranges of protocols and documentation that Python 3.11 counts as global: IETF protocols, relays of 6to4, documentation (RFC 9637)."""


def networks_of(texts: Sequence[str]) -> tuple[Network, ...]:
    """Networks from their texts. Raises ValueError for a text that is no network, or that has host bits."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def is_public(text: str) -> bool:
    """Whether an IP address is one of the public internet, in its own form: no private, loopback, link-local, site-local, shared, multicast
    or reserved address, and no IPv6 form of an IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if "%" in text or not address.is_global or address.is_multicast or (address.version == 6 and address not in UNICAST):
        return False
    return not any(address in network for network in (*METADATA_NETWORKS, *CARRIERS, *NEVER, *SPECIAL))


PRIVATE: Final[tuple[Network, ...]] = tuple(
    map(
        ipaddress.ip_network,
        ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
    )
)
"""Loopback and the ranges of an operator's own networks (RFC 1918, 6598, 4193)."""


def is_private(text: str) -> bool:
    """Whether an IP address is this machine's loopback or one of an operator's own network, in its own form; never a link-local or
    cloud-metadata address, and no IPv6 form of an IPv4 address."""
    return not Reach(PRIVATE).refusal(text, 0)


class Reach(msgspec.Struct, frozen=True):
    """The addresses and ports that may be connected to."""

    networks: tuple[Network, ...]
    own_ports: Container[int] = frozenset()
    """Ports of the gateway's own listeners."""
    is_local: Callable[[str], bool] = lambda _address: True
    """Whether an address is this machine's; the default assumes that it is, because that cannot be told."""

    def refusal(self, text: str, port: int) -> str:
        """Why `text` (an IP address) and `port` must not be connected to, in words for an operator; empty when they may be."""
        if "%" in text:
            return "has a zone, and only link-local addresses need one"
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return "is no IP address"
        if any(address in network for network in METADATA_NETWORKS):
            return "is a link-local or cloud-metadata address; no engine lives there"
        if any(address in network for network in NEVER):
            return "is no address of one machine"
        if address != LOOPBACK and any(address in network for network in CARRIERS):
            return "is an IPv6 form of an IPv4 address; write the IPv4 address"
        if not any(address in network for network in self.networks):
            return "is outside engines.register_networks"
        if port in self.own_ports and self.is_local(text):
            return f"with port {port} is this gateway itself"
        return ""
