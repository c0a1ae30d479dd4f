"""`image_urls` of a policy file: the hosts from which the gateway fetches images that chats name by URL.

Engines fetch such a URL themselves, from inside their network, so without this field it is refused. The gateway fetches it only from a host
of this list, and never from an address that is not public (`backends.reach.is_public`), whatever the host's name leads to.
"""

from typing import Annotated, Final

from pydantic import Field, StringConstraints, field_validator

from domain.strict import Strict

PORTS: Final = {"http": 80, "https": 443}
"""The schemes that images are fetched by, and their usual ports."""

HostPattern = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(:[0-9]{1,5})?$", max_length=253
    ),
]


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
