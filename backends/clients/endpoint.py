"""The address of one backend, and the connection limits that every adapter keeps towards it."""

import functools
import ssl
from urllib.parse import urlsplit

import msgspec

from backends.reach import Reach


class Endpoint(msgspec.Struct, frozen=True):
    """An engine's address, split once at start-up, with the connection policy towards it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    """Path in front of every route, without a trailing slash; usually empty."""
    authorization: bytes | None
    """Whole value of the Authorization header for this engine, or None."""
    connect_timeout_s: float
    idle_s: float
    """Age at which an idle connection is not used again. Must lie below the engine's own keep-alive time-out (uvicorn's, which
    vLLM and SGLang use, is 5 s), or requests race with the engine's close."""
    max_connections: int
    """Most connections open at once, busy ones included; a call that would need one more is refused with `Loss.CAPACITY`."""

    address: str = ""
    """The IP address to connect to where it is known already; the host is then only a name, for TLS and the Host header."""
    reach: Reach | None = None
    """The addresses that may be connected to, checked at every connect; None for endpoints from operators' own files."""

    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers of every call; ASCII."""

    @property
    def host_header(self) -> str:
        """The Host header's value: with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def endpoint(
    url: str,
    *,
    authorization: str | None = None,
    connect_timeout_s: float = 2.0,
    idle_s: float = 4.0,
    max_connections: int = 1024,
    tls: ssl.SSLContext | None = None,
    address: str = "",
    reach: Reach | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> Endpoint:
    """Split `url` (`http` or `https`, host, optional port and path prefix); an https URL without `tls` trusts the system's CAs.

    Raises:
        ValueError: the URL has another scheme or no host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http:// or https:// address")
    secure = parts.scheme == "https"
    return Endpoint(
        host=parts.hostname,
        port=parts.port or (443 if secure else 80),
        tls=(tls or system_trust()) if secure else None,
        prefix=parts.path.rstrip("/"),
        authorization=authorization.encode("ascii") if authorization else None,
        connect_timeout_s=connect_timeout_s,
        idle_s=idle_s,
        max_connections=max_connections,
        address=address,
        reach=reach,
        headers=headers,
    )


@functools.cache
def system_trust() -> ssl.SSLContext:
    """The TLS context with the system's CAs, one for all backends: reading the CAs holds the event loop for tens of milliseconds."""
    return ssl.create_default_context()
