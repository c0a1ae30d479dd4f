"""Diagnoses: an engine's failure in one sentence for the operator, with the symptom and the remedy. Pure.

Technical detail stays at the end in brackets. Engines are not trusted: only a few bytes of their replies are repeated, escaped.
"""

from collections.abc import Mapping
from typing import Final

from backends.fetch import FetchError, FetchTimeout
from backends.ports import Loss

MAX_DETAIL: Final = 160

_CLIENT_CERTIFICATE: Final = (
    (
        "CERTIFICATE_REQUIRED",
        "demands a client certificate, and none was shown; write the pool's tls.certificate and tls.private_key",
    ),
    (
        "ALERT_UNKNOWN_CA",
        "does not trust the client certificate that was shown: it does not know its CA; show one of a CA that the engine was started "
        "with, or start the engine with that CA too",
    ),
    ("ALERT_CERTIFICATE_EXPIRED", "refuses the client certificate that was shown: it has expired; renew it"),
    (
        "ALERT_BAD_CERTIFICATE",
        "refuses the client certificate that was shown; look at its chain, and at its dates and uses",
    ),
)
"""Substrings that mark an engine that demands a client certificate (mTLS). With TLS 1.3 its refusal comes after the request was sent."""

_CONNECT: Final = (
    *_CLIENT_CERTIFICATE,
    (
        "self-signed certificate",
        "speaks TLS, but its certificate is not trusted: it is self-signed; name it as the pool's tls.ca, add it to the system's trust "
        "store (or SSL_CERT_FILE), or give the engine a certificate of a trusted CA",
    ),
    (
        "unable to get local issuer",
        "speaks TLS, but its certificate is not trusted: nobody here knows its CA; name that CA as the pool's tls.ca, add it to the "
        "system's trust store (or SSL_CERT_FILE), or give the engine a certificate of a trusted CA",
    ),
    (
        "certificate has expired",
        "speaks TLS, but its certificate is not trusted: it has expired; renew it",
    ),
    ("mismatch", "speaks TLS, but its certificate is for another name; use the name in the certificate as the host of the URL"),
    ("CERTIFICATE_VERIFY_FAILED", "speaks TLS, but its certificate is not trusted; look at the certificate's chain"),
    ("WRONG_VERSION_NUMBER", "does not speak TLS on this port, and the URL says https; write http://, or name the engine's TLS port"),
    ("RECORD_LAYER_FAILURE", "does not speak TLS on this port, and the URL says https; write http://, or name the engine's TLS port"),
    ("RefusedAddress", "is at an address that must not be connected to"),
    ("gaierror", "has a host name that does not resolve; look for a typing mistake, or at the name servers"),
    ("ConnectionRefusedError", "refuses connections: nothing listens there; start the engine, or mend host and port of the URL"),
    ("Network is unreachable", "cannot be reached from here: there is no route; look at networks and firewalls"),
    ("No route to host", "cannot be reached from here: there is no route; look at networks and firewalls"),
    ("no connection within", "does not take connections in time; look at the host, the port and the firewalls between"),
    ("SSL", "speaks TLS in a way that cannot be used; look at its versions and certificates"),
)
"""Substrings that mark a failed connection, the most specific first, each with its sentence."""

_GARBLED: Final = (
    ("b'\\x15\\x03", "answers with TLS; write https:// in its URL"),
    ("b'\\x16\\x03", "answers with TLS; write https:// in its URL"),
    # the words of h11 for an answer whose first byte is below 0x21: the records of TLS begin with 0x14 to 0x17
    ("illegal request line", "answers with TLS; write https:// in its URL"),
    ("b'SSH-", "answers like an SSH server, not an engine; mend the port in its URL"),
)

_STATUS: Final[dict[int, str]] = {
    401: "it wants a key; write the pool's api_key, or mend it",
    403: "it does not let us in; look at the pool's api_key and at proxies between",
    404: "there is no such path; look at the pool's dialect and at the path prefix of the URL",
    405: "it takes no GET there; look at the pool's dialect",
    407: "a proxy between wants a password; name the engine's own address",
    500: "it has failed; look at the engine's log",
    502: "a proxy answers for an engine that is gone; look at the engine behind it",
    503: "it says that it is not ready: it starts, drains or is unhealthy; look at the engine's log",
    504: "a proxy answers for an engine that is silent; look at the engine behind it",
}


def of_failure(path: str, error: FetchError) -> str:
    """Why no usable reply to `GET path` came."""
    if error.loss is Loss.CONNECT:
        return _first(_CONNECT, error.detail, "cannot be connected to; look at host, port and network")
    if error.loss is Loss.GARBLED:
        return _first(_GARBLED, error.detail, "does not answer with HTTP; look whether the port in its URL is the engine's")
    if error.loss is Loss.NO_REPLY:
        if any(mark in error.detail for mark, _ in _CLIENT_CERTIFICATE):
            return _first(_CLIENT_CERTIFICATE, error.detail, "")
        hint = (
            "closes the connection without an answer; write https:// if it speaks TLS, write the pool's tls.certificate if it demands a "
            "client certificate (or renew it), else look whether the port is the engine's"
        )
        return f"{hint} ({path}: {_clean(error.detail)})"
    if error.loss is Loss.CUT:
        return f"ends its answer half-way; look at the engine's log and at proxies between ({path}: {_clean(error.detail)})"
    if isinstance(error, FetchTimeout):
        symptom = "sends its answer too slowly" if error.received else "takes connections but does not answer"
        return f"{symptom}: {path} was not complete in time; it is starting, overloaded, frozen, or no engine at all ({_clean(str(error))})"
    return f"{path}: {_clean(str(error))}"


def of_status(path: str, status: int, headers: Mapping[bytes, bytes], body: bytes) -> str:
    """The meaning of a status other than 200 to `GET path`."""
    if b"sent to HTTPS port" in body[:2048] or b"HTTP request to an HTTPS server" in body[:2048]:
        return f"answers with TLS; write https:// in its URL ({path}: {status})"
    if 300 <= status < 400:
        to = _clean(headers.get(b"location", b"").decode("latin-1").partition("?")[0]) or "elsewhere"
        return f"{path} answers {status}: it redirects to {to}, and redirects are never followed; name the engine's own address"
    meaning = _STATUS.get(status, "it has failed" if status >= 500 else "it does not know the question; look at the pool's dialect")
    page = "; the answer is an HTML page, so this may be no engine" if is_html(headers, body) else ""
    return f"{path} answers {status}: {meaning}{page}"


def of_list(path: str, headers: Mapping[bytes, bytes], body: bytes) -> str:
    """Why a 200 to `GET path` is no model list."""
    if is_html(headers, body):
        return f"{path} answers HTML, not an engine's JSON; is the URL the engine's own address, and not a web page's or a login's?"
    if not body:
        return f"{path} does not answer with a model list but with nothing; look whether the URL is the engine's, and the pool's dialect"
    begins = _clean(ascii(body[:24])[2:-1])
    hint = "look whether the URL is the engine's, and the pool's dialect"
    return f"{path} does not answer with a model list; {hint} (it begins with {begins})"


def is_html(headers: Mapping[bytes, bytes], body: bytes) -> bool:
    """Whether a reply is an HTML page, by its content type or its first bytes."""
    begins = body[:64].lstrip().lower()
    return b"html" in headers.get(b"content-type", b"").lower() or begins.startswith((b"<!doctype", b"<html"))


def _first(known: tuple[tuple[str, str], ...], detail: str, otherwise: str) -> str:
    diagnosis = next((sentence for mark, sentence in known if mark in detail), otherwise)
    return f"{diagnosis} ({_clean(detail)})"


def _clean(text: str) -> str:
    """The text as one printable line of at most `MAX_DETAIL` characters."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable if len(printable) <= MAX_DETAIL else printable[: MAX_DETAIL - 1] + "…"
