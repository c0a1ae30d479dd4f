"""Checks of addresses in settings: listeners, engines, issuers, webhooks, origins. Pure; nothing is resolved.

One parser (`urllib.parse.urlsplit`, the same that `backends.clients.endpoint` uses) and a small alphabet ensure that no
second reader of the same text arrives at another host.
"""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from backends.reach import METADATA_NETWORKS

METADATA_NAMES: Final = frozenset({"metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"})
"""Host names of cloud-metadata services."""

CALLBACK: Final = "/console/callback"
"""The path to which an identity provider sends a person back who signs in to the console."""

ANY_HOST: Final = frozenset({"0.0.0.0", "::"})

UNIX_PATH_BYTES: Final = 107
"""Longest path of a unix socket on Linux (`sun_path`, 108 with its end)."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*\.?")
_NUMBERS: Final = re.compile(r"(0[xX][0-9A-Fa-f]*|[0-9]+)(\.(0[xX][0-9A-Fa-f]*|[0-9]+))*\.?")
_BIND: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,5})")
_URL: Final = re.compile(r"[A-Za-z0-9._~:/\[\]-]+")
_KEY_URL: Final = re.compile(r"https?://[A-Za-z0-9._~:/?&=%+,;\[\]-]+")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_HOST_HEADER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def split_address(bind: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as host and port; the port may be 0.

    Raises:
        ValueError: the text is neither.
    """
    match = _BIND.fullmatch(bind)
    if match is None or int(match[3]) > 65_535:
        raise ValueError("is no address; write host:port, for instance 127.0.0.1:8080 or [::1]:8080")
    host = match[1] or match[2]
    if match[1]:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("has no IPv6 address between its brackets; write for instance [::1]:8080") from None
    else:
        checked_host(host)
    return host, int(match[3])


def checked_host(host: str) -> str:
    """The host itself, if it is a host name, an IPv4 address of four decimal numbers or an IPv6 address.

    Raises:
        ValueError: the text is none of them; numbers that only some resolvers read as an address are refused too.
    """
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("has no usable IPv6 address; write it in brackets, for instance [2001:db8::1]") from None
    elif _NUMBERS.fullmatch(host):
        # 2130706433, 0x7f.1 and 127.1 are 127.0.0.1 to some resolvers, and would evade checks of the address
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError("has no usable IPv4 address; write four decimal numbers, for instance 10.0.0.10") from None
    elif len(host) > 253 or not _NAME.fullmatch(host):
        raise ValueError("has no usable host name; write letters, digits, dashes and dots")
    return host


def checked_engine_url(url: str) -> str:
    """The text itself, if it is the URL of an engine: `http(s)://host[:port][/prefix]`.

    Raises:
        ValueError: it is something else, or leads to a link-local or cloud-metadata address. Never repeats the URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
    except ValueError:
        raise ValueError("has no usable host or port; write http://host:port") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("is no address of an engine; write http://host:port or https://host:port")
    if "@" in parts.netloc:
        raise ValueError("holds credentials; write the pool's api_key as {file: path} or {env: NAME}")
    if "?" in url or "#" in url:
        raise ValueError("has a query or a fragment; end it after the path prefix")
    if not _URL.fullmatch(url):
        raise ValueError("has characters that readers disagree about; write plain ASCII without spaces, backslashes and escapes")
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError("has no usable port; write 1 to 65535")
    segments = parts.path.rstrip("/").split("/")[1:]
    if any(segment in ("", ".", "..") for segment in segments):
        raise ValueError("has a path with empty or dotted steps; write a plain prefix, for instance /engines/a")
    if segments and segments[-1] == "v1":
        raise ValueError("ends in /v1; leave that away, routes are added to it")
    if "[" in parts.netloc and ":" not in host:
        raise ValueError("has something else than an IPv6 address in brackets; write for instance http://[2001:db8::1]:8000")
    _refuse_metadata(checked_host(host))
    return url


def checked_key_url(url: str) -> str:
    """The text itself, if it is the URL of an issuer of tokens or of its keys: https, or http to this machine.

    Raises:
        ValueError: it is something else, or leads to a link-local or cloud-metadata address. Never repeats the URL.
    """
    scheme, host = _scheme_and_host(url, "an issuer")
    if scheme != "https" and not (scheme == "http" and is_loopback(host)):
        raise ValueError("could be changed on its way; write https:// (http:// only to this machine)")
    _refuse_metadata(checked_host(host))
    return url


def checked_redirect_url(url: str) -> str:
    """The text itself, if an identity provider may send a browser back to it: `https://host/console/callback`, or `http` here.

    Raises:
        ValueError: it is something else. Never repeats the URL.
    """
    checked_key_url(url)
    if not url.endswith(CALLBACK) or urlsplit(url).path != CALLBACK:
        raise ValueError(f"is no address of the console's; write https://HOST{CALLBACK}, with the host by which people open the console")
    return url


def checked_hook_url(url: str) -> str:
    """The text itself, if it is the URL of a webhook: `http(s)://host[:port]/path`, with or without a query.

    Raises:
        ValueError: it is something else, or leads to a link-local or cloud-metadata address. Never repeats the URL.
    """
    _, host = _scheme_and_host(url, "a webhook")
    _refuse_metadata(checked_host(host))
    return url


def checked_otlp_url(url: str) -> str:
    """The text itself, if it is the URL of an OTLP receiver: `http(s)://host[:port]/path`.

    Raises:
        ValueError: it is something else, or leads to a link-local or cloud-metadata address. Never repeats the URL.
    """
    _, host = _scheme_and_host(url, "an OTLP receiver")
    _refuse_metadata(checked_host(host))
    if not urlsplit(url).path.rstrip("/"):
        raise ValueError("has no path; write the whole URL, for instance http://collector:4318/v1/traces")
    return url


def checked_store_url(url: str) -> str:
    """The text itself, if it is the URL of an object store: `http(s)://host[:port]`.

    Raises:
        ValueError: it is something else, or leads to a link-local or cloud-metadata address. Never repeats the URL.
    """
    _, host = _scheme_and_host(url, "an object store")
    _refuse_metadata(checked_host(host))
    return url


DOCS_VARIABLE: Final = "TIDEGATE_DOCS_URL"
"""The variable of the same meaning as the setting `docs_url`, for commands that read no settings too."""


def checked_docs_url(url: str) -> str:
    """The text itself, if it is an address below which pages may be: `http(s)://host[:port]/path`. Raises ValueError for another text."""
    _, host = _scheme_and_host(url, "a page")
    checked_host(host)
    return url


def checked_prometheus_url(url: str) -> str:
    """The address without a slash at its end: `http(s)://host[:port]/path`. Raises ValueError for another text."""
    _, host = _scheme_and_host(url, "a Prometheus")
    checked_host(host)
    return url.rstrip("/")


def _scheme_and_host(url: str, what: str) -> tuple[str, str]:
    """Scheme and host of `http(s)://host[:port]/path`. Raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
    except ValueError:
        raise ValueError("has no usable host or port; write https://host/path") from None
    if not host or not _KEY_URL.fullmatch(url) or "@" in parts.netloc or port == 0 or parts.netloc.endswith(":"):
        raise ValueError(f"is no address of {what}; write https://host/path, without credentials and fragment")
    return parts.scheme, host


def is_loopback(host: str) -> bool:
    """Whether the host of a URL is this machine, judged by its text alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_events_endpoint(endpoint: str) -> str:
    """The text itself, if KV events can be published or replayed there: `tcp://host:port` or `ipc:///path`.

    Raises:
        ValueError: it is something else, or leads to a link-local or cloud-metadata address.
    """
    if endpoint.startswith("ipc://"):
        path = endpoint[6:]
        if not path.startswith("/") or len(path.encode()) > UNIX_PATH_BYTES or not path.isprintable():
            raise ValueError(f"has no usable path; write ipc:///folder/file with at most {UNIX_PATH_BYTES} bytes of path")
        return endpoint
    if not endpoint.startswith("tcp://"):
        raise ValueError("is no address of KV events; write tcp://host:port or ipc:///path")
    if "*" in endpoint:
        raise ValueError("has a wildcard, which only the engine's own setting may have; write the host to connect to or listen on")
    host, port = split_address(endpoint[6:])
    if not port:
        raise ValueError("has no usable port; write 1 to 65535")
    _refuse_metadata(host)
    return endpoint


def checked_load_endpoint(endpoint: str) -> str:
    """The text itself, if the first rank can push its load there: `tcp://host:port`.

    Raises:
        ValueError: it is something else, or leads to a link-local or cloud-metadata address.
    """
    if not endpoint.startswith("tcp://"):
        raise ValueError("is no address of a load push; write tcp://host:port, with the port of the first rank")
    return checked_events_endpoint(endpoint)


def _refuse_metadata(host: str) -> None:
    if host.lower().rstrip(".") in METADATA_NAMES:
        raise ValueError("is a cloud-metadata address; no engine lives there, name the engine's own")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or _behind_nat64(address) or address
    if any(address in network for network in METADATA_NETWORKS):
        raise ValueError("is a link-local or cloud-metadata address; no engine lives there, name the engine's own")


def _behind_nat64(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that 64:ff9b::/96 stands for (RFC 6052)."""
    return ipaddress.IPv4Address(address.packed[12:]) if address in ipaddress.IPv6Network("64:ff9b::/96") else None


def checked_origin(origin: str) -> str:
    """The text itself, if it is an origin as browsers send it, or `*`.

    Raises:
        ValueError: no browser would send it.
    """
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise ValueError("is no origin; write scheme://host or scheme://host:port in lower case, without a path, or *")
    return origin


def checked_host_header(host: str) -> str:
    """The text itself, if it can be the value of a Host header: host, and port where callers send one.

    Raises:
        ValueError: no caller would send it.
    """
    if not _HOST_HEADER.fullmatch(host):
        raise ValueError("is no Host value; write host or host:port")
    return host


def clash(first: tuple[str, int], second: tuple[str, int]) -> bool:
    """Whether two listeners would use the same socket; free ports (0) never clash."""
    if first[1] != second[1] or first[1] == 0:
        return False
    hosts = {_normalised(first[0]), _normalised(second[0])}
    return len(hosts) == 1 or bool(hosts & ANY_HOST)


def leads_to(url: str, bind: tuple[str, int]) -> bool:
    """Whether a URL of an engine leads to a listener of this machine, judged by their texts alone; for other texts False."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
    except ValueError:
        return False
    if port != bind[1]:
        return False
    # a listener on every address is reached by this machine's own ones; of those only loopback can be told by its text
    return _normalised(host) == _normalised(bind[0]) or (bind[0] in ANY_HOST and (is_loopback(host) or host in ANY_HOST))


def _normalised(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "127.0.0.1" if host.lower() == "localhost" else host.lower()


def sqlite_file(url: str) -> str | None:
    """The file of `sqlite:///file`; "" when the URL names none, None for another kind of database."""
    return url[10:] if url.startswith("sqlite:///") else "" if url == "sqlite://" else None
