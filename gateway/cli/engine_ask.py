"""How `tidegate engine check` asks an engine: one blocking question, and what went wrong in the words of the discovery's sentences."""

import http.client
import socket
from typing import Final
from urllib.parse import urlsplit

from backends.fetch import Fetched, FetchError, FetchTimeout
from backends.ports import Loss

WITHIN_S: Final = 10.0
MAX_REPLY_BYTES: Final = 8 * 1024 * 1024
"""Largest reply read; vLLM's metrics are 100 KB, its /server_info 60 KB."""


def checked_url(url: str) -> str:
    """The URL of an engine, as it came. Raises ValueError with a sentence when it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is no address of an engine; write http://host:port")
    return url


def ask(url: str, path: str, key: str | None, body: bytes | None = None) -> Fetched:
    """GET `path`, or POST a body there; at most MAX_REPLY_BYTES of the answer.

    Raises:
        FetchTimeout: it was silent for WITHIN_S.
        FetchError: there was no usable reply; `loss` and `detail` are what `diagnose` reads.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    connection = kind(parts.hostname or "", parts.port, timeout=WITHIN_S)
    try:
        _connect(connection)
        return _exchange(connection, parts.path.rstrip("/") + path, body, headers)
    finally:
        connection.close()


def _connect(connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except TimeoutError:
        raise _lost(Loss.CONNECT, f"no connection within {WITHIN_S:g} s") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA has no form for
        name = "gaierror" if isinstance(error, socket.gaierror | UnicodeError) else type(error).__name__
        raise _lost(Loss.CONNECT, f"{name}: {error}") from None


def _exchange(connection: http.client.HTTPConnection, path: str, body: bytes | None, headers: dict[str, str]) -> Fetched:
    received = False
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        reply = connection.getresponse()
        received = True
        told = {name.lower().encode("latin-1"): value.encode("latin-1", "replace") for name, value in reply.getheaders()}
        whole = reply.read(MAX_REPLY_BYTES)
        if not reply.length or len(whole) == MAX_REPLY_BYTES:
            return Fetched(reply.status, told, whole)
        fault: FetchError = _lost(Loss.CUT, f"{reply.length} bytes are missing")
    except TimeoutError:
        fault = FetchTimeout(f"no answer within {WITHIN_S:g} s", received=received)
    except http.client.IncompleteRead as error:
        fault = _lost(Loss.CUT, f"{len(error.partial)} bytes came")
    except OSError as error:
        # RemoteDisconnected is one too
        fault = _lost(Loss.CUT if received else Loss.NO_REPLY, f"{type(error).__name__}: {error}")
    except http.client.BadStatusLine as error:
        fault = _lost(Loss.GARBLED, repr(str(error.args[0]).strip().encode("latin-1", "replace")))
    except http.client.HTTPException as error:
        fault = _lost(Loss.GARBLED, f"{type(error).__name__}: {error}")
    raise fault


def _lost(loss: Loss, detail: str) -> FetchError:
    return FetchError(f"{loss.value}: {detail}"[:200], loss=loss, detail=detail)
