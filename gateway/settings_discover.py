"""The settings of discovery: the file or DNS name that lists a pool's backends, and the networks that such backends may be in."""

import re
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from backends.reach import networks_of
from domain.strict import Strict
from gateway.addresses import checked_host

_SERVICE: Final = re.compile(r"(^|\.)_")
"""The underscore that begins labels of SRV names: `_http._tcp.engines.example`."""


def checked_networks(texts: list[str]) -> list[str]:
    """The texts themselves, if each is a network as address/bits.

    Raises:
        ValueError: one of them is no network.
    """
    try:
        networks_of(texts)
    except ValueError:
        raise ValueError("has something that is no network; write address/bits without host bits, for instance 10.0.0.0/8") from None
    return texts


class DiscoverSettings(Strict):
    """The source of a pool's backends while the gateway runs: a file or a DNS name."""

    file: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A YAML file with `backends`, relative to the settings file; read whenever it changes.",
    )
    dns: str | None = Field(default=None, max_length=253, description="A DNS name whose addresses are the backends.")
    record: Literal["a", "srv"] = Field(default="a", description="`a`: A and AAAA, with `port`; `srv`: SRV, which says host and port.")
    port: int | None = Field(default=None, ge=1, le=65_535, description="Port of every backend, with `record: a`.")
    scheme: Literal["http", "https"] = Field(default="http", description="How backends found by DNS speak.")
    every_s: float = Field(default=5.0, ge=0.5, le=3600, description="How often the name is resolved.")

    @field_validator("dns")
    @classmethod
    def _name(cls, dns: str | None) -> str | None:
        if dns is not None:
            checked_host(_SERVICE.sub(r"\1", dns))
        return dns

    @model_validator(mode="after")
    def _one(self) -> "DiscoverSettings":
        if (self.file is None) == (self.dns is None):
            raise ValueError("names no place, or two; write either {file: backends.yaml} or {dns: name, port: 8000}")
        if self.dns is not None and (self.port is None) != (self.record == "srv"):
            raise ValueError("does not say which port; write port with record: a, and none with record: srv, whose answer has it")
        return self
