"""`image_urls` of a policy file: the hosts from which the gateway fetches images that chats name by URL.

Engines fetch such a URL themselves, from inside their network, so without this field it is refused. The gateway fetches it only from a host
of this list, and never from an address that is not public (`backends.reach.is_public`), whatever the host's name leads to.
"""

import re
from typing import Annotated, Final

from pydantic import Field, StringConstraints, field_validator

from domain.strict import Strict

PORTS: Final = {"http": 80, "https": 443}
"""The schemes that images are fetched by, and their usual ports."""

_HOST: Final = re.compile(r"^(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(:[0-9]{1,5})?$")
MAX_SHOWN_CHARS: Final = 60

HostPattern = Annotated[str, StringConstraints(pattern=_HOST.pattern, max_length=253)]


def _wrong_with(host: str) -> str:
    """What is wrong with a host, and what to write instead."""
    name = host.partition("://")[2] if "://" in host else host
    bare = name.partition("/")[0]
    if bare != host:
        instead = f", as {bare}" if _HOST.fullmatch(bare) else ""
        return f"which has a scheme or a path; write a host name without scheme or path{instead}"
    if host != host.lower() and _HOST.fullmatch(host.lower()):
        return f"which has capital letters; write {host.lower()}"
    return "which is no name of a host; write a name with a dot, as images.example.com or *.cdn.example.com"


class ImageUrls(Strict):
    """The images that the gateway fetches for requests."""

    hosts: list[HostPattern] = Field(
        min_length=1,
        max_length=100,
        description="Hosts in lower case: `images.example.com`, `*.cdn.example.com` for every name below it, `images.example.com:8443` for "
        "another port than the scheme's own. No addresses.",
    )
    max_bytes: int = Field(default=8 * 1024**2, ge=1024, le=64 * 1024**2, description="Size of one image.")
    max_images: int = Field(default=16, ge=1, le=128, description="Images of one request that are fetched.")
    within_s: float = Field(default=10.0, gt=0, le=60, description="Time for all images of one request.")

    @field_validator("hosts", mode="before")
    @classmethod
    def _are_hosts(cls, hosts: object) -> object:
        # before the patterns of the items, whose own message is the regular expression
        for host in hosts if isinstance(hosts, list) else ():
            if isinstance(host, str) and not _HOST.fullmatch(host):
                raise ValueError(f"has {host[:MAX_SHOWN_CHARS]!r}, {_wrong_with(host)}")
        return hosts

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            name, _, port = host.partition(":")
            if not any(letter.isalpha() for letter in name.rpartition(".")[2]):
                raise ValueError(f"has {host}, which is an address; write the name of a host")
            if port and not 0 < int(port) < 2**16:
                raise ValueError(f"has {host}, whose port is not between 1 and 65535")
        return hosts

    def allows(self, scheme: str, host: str, port: int) -> bool:
        """Whether images may be fetched from this host and port."""
        ending = "" if port == PORTS.get(scheme) else f":{port}"
        at = host + ending
        _, dot, above = at.partition(".")
        while dot:
            if f"*.{above}" in self.hosts:
                return scheme in PORTS
            _, dot, above = above.partition(".")
        return scheme in PORTS and at in self.hosts
