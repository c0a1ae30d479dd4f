"""The settings of the two listeners: `DataSettings` and `AdminSettings`, and what they consist of.

`ConnectionLimits` bounds one caller's connection. `ProxySettings` are the proxies in front that tell the callers' addresses, and
`AddressSettings` the limits of one such address. Like all settings they read no file and no environment.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from domain.strict import Strict
from gateway.config.addresses import checked_host_header, checked_origin, split_address
from gateway.config.pools import checked_networks
from gateway.config.secrets import File

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Origin = Annotated[str, AfterValidator(checked_origin)]
HostHeader = Annotated[str, AfterValidator(checked_host_header)]


class Bound(Strict):
    """A listener."""

    bind: str = Field(description="Address and port to listen on; port 0 picks a free one.")

    @field_validator("bind")
    @classmethod
    def _parses(cls, bind: str) -> str:
        split_address(bind)
        return bind

    @property
    def bind_address(self) -> tuple[str, int]:
        """Host and port; the host of an IPv6 address is without brackets."""
        return split_address(self.bind)


class Tls(Strict):
    """TLS on the data port, 1.2 or newer. Both paths are absolute once settings are loaded."""

    certificate: File = Field(description="PEM file with the certificate chain, relative to the settings file.")
    private_key: File = Field(description="PEM file with the certificate's private key, not encrypted, relative to the settings file.")


class ConnectionLimits(Strict):
    """Bounds of one caller's connection; `gateway/http/edge/connections.py` gives the reasons."""

    max_body_bytes: int = Field(
        default=8 * 1024**2, ge=1024, le=1024**3, description="Largest request body where no policy allows more; larger ones are a 413."
    )
    largest_body_bytes: int = Field(
        default=65 * 1024**2,
        ge=1024,
        le=1024**3,
        description="Largest request body that a policy can allow (`caps.body_bytes`).",
    )
    large_bodies_total_bytes: int = Field(
        default=512 * 1024**2,
        ge=1024**2,
        le=1024**4,
        description="Bytes of a worker's bodies above `max_body_bytes`, half for one tenant; beyond it a 503.",
    )
    max_header_bytes: int = Field(
        default=16 * 1024, ge=1024, le=1024**2, description="Largest request head: target, names and values together."
    )
    max_headers: int = Field(default=64, ge=8, le=1000, description="Header lines of one request.")
    max_connections: int = Field(
        default=20_000, ge=1, le=1_000_000, description="Callers' connections per worker; beyond it the longest idle one is closed."
    )
    header_timeout_s: Seconds = Field(default=10.0, description="Longest time from a request's first byte to the end of its head.")
    body_timeout_s: Seconds = Field(default=30.0, description="Longest time from the end of the head to the end of the body.")
    min_body_rate_bytes_per_s: int = Field(default=1024, ge=0, description="Least average rate of a body after its first 5 s; 0 for none.")
    keepalive_s: Seconds = Field(default=75.0, description="How long a connection may be idle between requests.")
    reply_buffer_bytes: int = Field(
        default=256 * 1024, ge=4096, le=64 * 1024**2, description="Unsent bytes of one reply at which reading from the engine pauses."
    )
    reply_buffers_total_bytes: int = Field(
        default=512 * 1024**2,
        ge=1024**2,
        le=1024**4,
        description="Unsent reply bytes of all slow readers of a worker together; beyond it the readers that have been behind for "
        "longest are disconnected.",
    )
    slow_reader_s: Seconds = Field(default=30.0, description="How long a reply may stay paused before its caller is disconnected.")


class ProxySettings(Strict):
    """The proxies in front of the data port that tell the callers' addresses."""

    networks: Annotated[list[str], AfterValidator(checked_networks)] = Field(
        default=[], max_length=100, description="Networks of the proxies; a header counts only on connections from them. Empty for none."
    )
    header: Literal["x-forwarded-for", "forwarded"] = Field(
        default="x-forwarded-for", description="The header that the proxies set; any other one is the caller's own."
    )
    destination_endpoint: bool = Field(
        default=False,
        description="Whether `x-gateway-destination-endpoint` on connections from `networks` names the engine, as endpoint pickers of the "
        "Gateway API's inference extension set it. Only for proxies that let no caller's header of that name through.",
    )
    proxy_protocol: bool = Field(
        default=False,
        description="Whether every connection comes from one of `networks` and begins with a header of the PROXY protocol, version 1 or 2, "
        "before TLS; any other connection is closed.",
    )


class AddressSettings(Strict):
    """Limits of one caller's address in one worker, whatever its keys are; an IPv6 address counts with all of its /64."""

    connections: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Connections of one address at the same time, per worker; null for no limit. As many again are answered with a 429, "
        "further ones are closed.",
    )
    requests_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Requests of one address in a minute, per worker; null for no limit. Beyond it they are a 429.",
    )
    invalid_keys_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Requests of one address in a minute, per worker, whose key or token is not valid; null for no limit. Beyond it every "
        "request of the address is a 429.",
    )


class RealtimeSettings(Strict):
    """Bounds of realtime sessions (docs/reference/realtime.md)."""

    max_message_bytes: int = Field(
        default=1024**2,
        ge=4096,
        le=64 * 1024**2,
        description="Longest message of a session, each way; 1 MiB is 24 s of audio. A longer one ends the session.",
    )
    max_session_s: Seconds = Field(default=3600.0, description="How long a session may last.")
    idle_s: Seconds = Field(default=300.0, description="How long a session may be without an event.")
    ping_s: Seconds = Field(default=20.0, description="Time between two pings to each side; a side that answers none ends the session.")


class DataSettings(Bound):
    """The data port: inference only."""

    bind: str = Field(
        default="127.0.0.1:8080", description="Address and port of the data port: host:port or [v6]:port; port 0 picks a free one."
    )
    tls: Tls | None = Field(default=None, description="TLS certificate and key; without them, plain HTTP.")
    cors_origins: list[Origin] = Field(
        default=[], max_length=1000, description='Origins (CORS) whose pages may call, exact; ["*"] for any; empty for none.'
    )
    hosts: list[HostHeader] = Field(
        default=[],
        max_length=1000,
        description="`Host` header values that are served (with the port, where callers send one); empty for any.",
    )
    trusted_proxies: ProxySettings = Field(default=ProxySettings(), description="Proxies that tell the callers' addresses.")
    per_address: AddressSettings = Field(default=AddressSettings(), description="Limits of each caller's address, besides those of keys.")
    limits: ConnectionLimits = Field(default=ConnectionLimits(), description="Bounds of callers' connections.")
    realtime: RealtimeSettings = Field(default=RealtimeSettings(), description="Bounds of realtime sessions.")


class AdminSettings(Bound):
    """The admin port: probes, metrics, version."""

    bind: str = Field(default="127.0.0.1:8081", description="Address and port of the admin port; keep it away from callers.")
