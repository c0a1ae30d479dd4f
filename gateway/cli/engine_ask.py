"""How `tidegate engine check` asks an engine: one blocking question, and what went wrong in the words of the discovery's sentences."""

import http.client
import socket
import threading
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
    """GET `path`, or POST a body there; at most MAX_REPLY_BYTES of the answer, and at most WITHIN_S for all of it.

    Raises:
        FetchTimeout: the whole answer was not there in time.
        FetchError: there was no usable reply; `loss` and `detail` are what `diagnose` reads.
    """
    question = _Question(url, path, key, body)
    # A socket's own timeout begins anew with every byte, and name look-ups have none. A thread that is left behind holds one
    # connection until the command ends.
    thread = threading.Thread(target=question.run, daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    if question.outcome is None:
        raise question.late()
    if isinstance(question.outcome, Fetched):
        return question.outcome
    raise question.outcome


class _Question:
    """One question, asked in a thread of its own."""

    def __init__(self, url: str, path: str, key: str | None, body: bytes | None) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=WITHIN_S)
        self._path = parts.path.rstrip("/") + path
        self._body = body
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        self._connected = self._received = False
        self.outcome: Fetched | Exception | None = None
        """What came of it; None while it is not over."""

    def run(self) -> None:
        """Ask. Never raises."""
        try:
            _connect(self._connection)
            self._connected = True
            self.outcome = self._exchange()
        except Exception as error:  # noqa: BLE001 - whoever asks raises it, in the other thread
            self.outcome = error
        finally:
            self._connection.close()

    def late(self) -> FetchError:
        """What to say when it is not over in time."""
        if not self._connected:
            return _lost(Loss.CONNECT, f"no connection within {WITHIN_S:g} s")
        return FetchTimeout(f"no answer within {WITHIN_S:g} s", received=self._received)

    def _exchange(self) -> Fetched:
        connection = self._connection
        try:
            connection.request("GET" if self._body is None else "POST", self._path, self._body, self._headers)
            reply = connection.getresponse()
            self._received = True
            told = {name.lower().encode("latin-1"): value.encode("latin-1", "replace") for name, value in reply.getheaders()}
            whole = reply.read(MAX_REPLY_BYTES)
            if not reply.length or len(whole) == MAX_REPLY_BYTES:
                return Fetched(reply.status, told, whole)
            fault: FetchError = _lost(Loss.CUT, f"{reply.length} bytes are missing")
        except TimeoutError:
            fault = self.late()
        except http.client.IncompleteRead as error:
            fault = _lost(Loss.CUT, f"{len(error.partial)} bytes came")
        except OSError as error:
            # RemoteDisconnected is one too
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
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA has no form for
        name = "gaierror" if isinstance(error, socket.gaierror | UnicodeError) else type(error).__name__
        raise _lost(Loss.CONNECT, f"{name}: {error}") from None


def _lost(loss: Loss, detail: str) -> FetchError:
    return FetchError(f"{loss.value}: {detail}"[:200], loss=loss, detail=detail)
