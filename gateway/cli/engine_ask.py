"""HTTP requests of `tidegate engine check` to an engine: one blocking request, with errors that `backends.discovery` can explain."""

import http.client
import socket
import threading
from typing import Final
from urllib.parse import urlsplit

from backends.fetch import FetchedReply, FetchError, FetchTimeout
from backends.ports import Loss

WITHIN_S: Final = 10.0
MAX_REPLY_BYTES: Final = 8 * 1024 * 1024
"""Largest reply read; vLLM's metrics are 100 KB, its /server_info 60 KB."""


def checked_url(url: str) -> str:
    """The text itself, if it is the URL of an engine. Raises ValueError with a sentence otherwise."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is no address of an engine; write http://host:port")
    return url


def ask(url: str, path: str, key: str | None, body: bytes | None = None) -> FetchedReply:
    """GET `path`, or POST a body there: at most MAX_REPLY_BYTES of the answer, and at most WITHIN_S for all of it.

    Raises:
        FetchTimeout: the whole answer did not arrive in time.
        FetchError: there was no usable reply; `diagnose` reads its `loss` and `detail`.
    """
    question = _Question(url, path, key, body)
    # A socket's own timeout begins anew with every byte, and name look-ups have none. A thread that is still waiting holds one
    # connection until the command ends.
    thread = threading.Thread(target=question.run, daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    if question.outcome is None:
        raise question.late()
    if isinstance(question.outcome, FetchedReply):
        return question.outcome
    raise question.outcome


class _Question:
    """One request, sent in a thread of its own."""

    def __init__(self, url: str, path: str, key: str | None, body: bytes | None) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=WITHIN_S)
        self._path = parts.path.rstrip("/") + path
        self._body = body
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        self._connected = False
        self._received = False
        self.outcome: FetchedReply | Exception | None = None
        """The reply or the error; None while the request runs."""

    def run(self) -> None:
        """Send the request and set `outcome`. Never raises."""
        try:
            _connect(self._connection)
            self._connected = True
            self.outcome = self._exchange()
        except Exception as error:  # noqa: BLE001 - `ask` raises it, in its own thread
            self.outcome = error
        finally:
            self._connection.close()

    def late(self) -> FetchError:
        """The error when the request takes too long."""
        if not self._connected:
            return _lost(Loss.CONNECT, f"no connection within {WITHIN_S:g} s")
        return FetchTimeout(f"no answer within {WITHIN_S:g} s", received=self._received)

    def _exchange(self) -> FetchedReply:
        connection = self._connection
        try:
            connection.request("GET" if self._body is None else "POST", self._path, self._body, self._headers)
            reply = connection.getresponse()
            self._received = True
            headers = {name.lower().encode("latin-1"): value.encode("latin-1", "replace") for name, value in reply.getheaders()}
            whole = reply.read(MAX_REPLY_BYTES)
            if not reply.length or len(whole) == MAX_REPLY_BYTES:
                return FetchedReply(reply.status, headers, whole)
            fault: FetchError = _lost(Loss.CUT, f"{reply.length} bytes are missing")
        except TimeoutError:
            fault = self.late()
        except http.client.IncompleteRead as error:
            fault = _lost(Loss.CUT, f"{len(error.partial)} bytes came")
        except OSError as error:
            # RemoteDisconnected is an OSError too
            fault = _lost(Loss.CUT if self._received else Loss.NO_REPLY, f"{type(error).__name__}: {error}")
        except http.client.BadStatusLine as error:
            fault = _lost(Loss.GARBLED, repr(str(error.args[0]).strip().encode("latin-1", "replace")))
        except http.client.HTTPException as error:
            fault = _lost(Loss.GARBLED, f"{type(error).__name__}: {error}")
        raise fault


def _connect(connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except TimeoutError:
        raise _lost(Loss.CONNECT, f"no connection within {WITHIN_S:g} s") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name without an IDNA form
        name = "gaierror" if isinstance(error, socket.gaierror | UnicodeError) else type(error).__name__
        raise _lost(Loss.CONNECT, f"{name}: {error}") from None


def _lost(loss: Loss, detail: str) -> FetchError:
    return FetchError(f"{loss.value}: {detail}"[:200], loss=loss, detail=detail)
