"""`picker` of `tidegate.yaml`: Tidegate as the endpoint picker of a proxy that speaks Envoy's external processing (ext_proc).

The picker routes and nothing else: it checks no key and counts no limit, so it has a listener of its own and is off by default.
"""

from ipaddress import ip_address
from typing import Annotated, Final, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from domain.strict import Strict
from gateway.config.addresses import split_address
from gateway.config.secrets import File

MOST_CONNECTIONS: Final = 512
"""Connections of proxies that a worker takes, and descriptors that it keeps for them: a proxy has one for each of its threads."""


class PickerTls(Strict):
    """TLS of the picker's listener."""

    certificate: File = Field(description="PEM file with the certificate chain, relative to the settings file.")
    private_key: File = Field(description="PEM file with the certificate's private key, not encrypted, relative to the settings file.")
    client_ca: File | None = Field(
        default=None,
        description="PEM file with the CAs of proxies' certificates (mTLS): others are not served. Null: proxies show no certificate.",
    )


class PickerSettings(Strict):
    """Where proxies ask which engine a request is to go to (ext_proc over gRPC). Whoever reaches it is served, without a key."""

    bind: str = Field(
        default="127.0.0.1:9002",
        description="Address and port: host:port or [v6]:port. All workers listen on it, so the port cannot be 0.",
    )
    tenant: Annotated[str, StringConstraints(min_length=1, max_length=63)] = Field(
        description="The tenant whose policy says which models there are, and how engines are chosen. All requests count as its own."
    )
    tls: PickerTls | None = Field(default=None, description="TLS; needed on an address that other hosts reach.")
    plain_text: bool = Field(
        default=False,
        description="Whether the picker may listen without TLS on an address that other hosts reach: where a mesh encrypts, for instance.",
    )
    fallbacks: int = Field(
        default=0,
        ge=0,
        le=8,
        description="Further endpoints named after the first one, for proxies that read a list and retry. Envoy's own cluster type "
        "`ORIGINAL_DST` takes one only.",
    )
    max_body_bytes: int = Field(default=8 * 1024**2, ge=1024, le=1024**3, description="Largest request body; larger ones are a 413.")
    max_requests: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Requests under way at the same time, per worker; the proxy's calls beyond fail."
    )
    held_bytes: int = Field(
        default=512 * 1024**2, ge=1024**2, le=1024**4, description="Bytes of a worker's request bodies together; beyond it a 503."
    )

    @field_validator("bind")
    @classmethod
    def _parses(cls, bind: str) -> str:
        if split_address(bind)[1] == 0:
            raise ValueError("has port 0; name the port, because every worker has to listen on the same one")
        return bind

    @model_validator(mode="after")
    def _is_encrypted(self) -> Self:
        host = split_address(self.bind)[0]
        try:
            local = ip_address(host).is_loopback
        except ValueError:
            local = host == "localhost"
        if not local and self.tls is None and not self.plain_text:
            raise ValueError("listens where other hosts reach it, without TLS; set tls, or plain_text: true where something else encrypts")
        return self

    @property
    def tls_files(self) -> dict[str, str]:
        """The files of TLS by setting, as written."""
        if self.tls is None:
            return {}
        return {name: file for name, file in self.tls.model_dump().items() if file is not None}
