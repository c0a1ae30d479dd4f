"""The address of a caller behind trusted proxies, from the one header that these set. Pure.

Anybody can send `X-Forwarded-For`, so that a header counts only where the connection comes from a trusted proxy. Each proxy adds the
address that it sees to the end of the list: read from the end, the first address that is no trusted proxy's is the caller's.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal

import msgspec

MOST_PROXIES: Final = 16
"""Entries of the list that are read, from its end: more proxies than anybody has."""

_PAIR: Final = re.compile(r"""[ \t]*+(?:([!#$%&'*+.^_`|~0-9A-Za-z-]++)=(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|([^\s;,"]*+)))?+[ \t]*+([;,]|\Z)""")
"""One pair of `Forwarded`, or none, and the separator behind it. A value without quotes may have a colon, because proxies write so.

Its repetitions give nothing back (`*+`): two that may share a run of blanks would try every way to divide it.
"""


class TrustedProxies(msgspec.Struct, frozen=True):
    """The proxies in front, and the header in which they tell the caller's address."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"

    @classmethod
    def of(cls, networks: list[str], header: Literal["x-forwarded-for", "forwarded"]) -> "TrustedProxies":
        """The proxies in networks that are given as text. Raises ValueError for text that is no network."""
        return cls(tuple(ip_network(network) for network in networks), header)

    def client(self, peer: str, headers: Mapping[bytes, bytes]) -> str:
        """The caller's address.

        Args:
            peer: the address that the connection comes from.
            headers: of the request, names in lower case, repeated ones joined by a comma.
        """
        nearest = _address(peer)
        listed = headers.get(self.header.encode("ascii"))
        if listed is None or nearest is None or not self._trusted(nearest):
            return peer
        text = listed.decode("latin-1")
        entries = forwarded_for(text) if self.header == "forwarded" else text.split(",")
        for entry in reversed(entries[-MOST_PROXIES:]):
            told = _address(entry.strip())
            if told is None:
                break  # an odd entry, such as `unknown`: the caller of the proxy behind it is not known
            nearest = told
            if not self._trusted(told):
                break
        return str(nearest)

    def trusts(self, peer: str) -> bool:
        """Whether the address, as text, is a trusted proxy's."""
        address = _address(peer)
        return address is not None and self._trusted(address)

    def _trusted(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self.networks if network.version == address.version)


def forwarded_for(text: str) -> list[str]:
    """The node that each element of `Forwarded` (RFC 7239) says its proxy was called by; empty for an element that says none, or two.

    Separators in quotes are text. Where the header is not of the grammar, nobody can say where an element begins: its callers may have
    written quotes around the addresses that the proxies added, so the only node is an empty one.
    """
    nodes: list[str] = []
    found: list[str] = []
    any_pair, at = False, 0
    while (pair := _PAIR.match(text, at)) is not None:
        name, quoted, plain, separator = pair.groups()
        if name is not None:
            any_pair = True
            if name.lower() == "for":
                found.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        if separator != ";":
            if any_pair:
                nodes.append(found[0] if len(found) == 1 else "")
            any_pair, found = False, []
            if not separator:
                return nodes
        at = pair.end()
    return [""]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address that is written as `1.2.3.4`, `1.2.3.4:80`, `::1` or `[::1]:80`; None for anything else. An IPv4 address inside an IPv6
    one is the IPv4 address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
