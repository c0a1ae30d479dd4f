"""Keeps the signing keys (JWKS) of each issuer current: read in the background, and once more when a token names an unknown key.

`JwksWatch` holds the keys of one issuer. While an issuer is away its last keys stay in use. At most one reading is in flight, however many
requests want new keys, and unknown keys cause at most one reading per `unknown_key_s`: strangers can make up key names, and issuers must
not pay for it.

The document is read from its URL (`JwksUrl`), through the issuer's discovery document (`JwksDiscovery`), or from a file (`JwksFile`). Only
URLs that the operator configured or the issuer's own discovery document names are fetched: no header of a token (`jku`, `x5u`) is followed.
Redirects are not followed, sizes and times are bounded, and the scheme is https, or http to this machine.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from backends.fetch import FetchedReply, FetchError
from domain.clock import Clock, Rng
from gateway.config.addresses import checked_key_url
from gateway.process.snapshots import IssuerState
from tenancy.jwt_keys import MAX_DOCUMENT_BYTES, JwksError, KeySet, key_set

Get = Callable[[str], Awaitable[FetchedReply]]
"""Fetches a URL that was checked. Raises OSError or `backends.fetch.FetchError`."""

WELL_KNOWN: Final = "/.well-known/openid-configuration"


class Discovered(msgspec.Struct, frozen=True):
    """The part of a discovery document that is used."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""


async def discovered(issuer: str, get: Get) -> Discovered:
    """An issuer's discovery document (OpenID Connect Discovery §4). Raises JwksError, or the transport's errors."""
    body = await _fetched(get, issuer.rstrip("/") + WELL_KNOWN)
    try:
        document = msgspec.json.decode(body, type=Discovered)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise JwksError("the discovery document has no issuer and jwks_uri") from None
    if document.issuer != issuer:
        raise JwksError("the discovery document is another issuer's; write issuer exactly as it says")
    return document


class JwksUrl:
    """A JWKS document at a URL."""

    def __init__(self, url: str, get: Get) -> None:
        self._url = url
        self._get = get

    async def read(self) -> bytes:
        """The document. Raises JwksError, or the transport's errors."""
        return await _fetched(self._get, self._url)


class JwksDiscovery:
    """A JWKS document at the URL that the issuer's discovery document names (OpenID Connect Discovery §4)."""

    def __init__(self, issuer: str, get: Get) -> None:
        self._issuer = issuer
        self._get = get

    async def read(self) -> bytes:
        """The document. Raises JwksError, or the transport's errors."""
        document = await discovered(self._issuer, self._get)
        try:
            url = checked_key_url(document.jwks_uri)
        except ValueError as error:
            raise JwksError(f"jwks_uri of the discovery document {error}") from None
        return await _fetched(self._get, url)


class JwksFile:
    """A JWKS document in a file, for issuers that this machine cannot reach."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> bytes:
        """The document. Raises OSError."""
        return await asyncio.to_thread(_first_bytes, self._path)


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_DOCUMENT_BYTES + 1)


async def _fetched(get: Get, url: str) -> bytes:
    fetched = await get(url)
    if 300 <= fetched.status < 400:
        raise JwksError(f"{url} answers {fetched.status}, and redirects are not followed")
    if fetched.status != 200:
        raise JwksError(f"{url} answers {fetched.status}")
    if fetched.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise JwksError(f"{url} answers compressed, unasked")
    return fetched.body


WAIT_S: Final = 2.0
"""The longest that a request waits for keys; then its token is checked with the known keys."""
FIRST_S: Final = 6.0
"""The longest that a worker waits for its first keys; then it serves API keys and refuses JWTs with a retryable error."""
RETRY_S: Final = 5.0
"""Seconds until a failed reading is tried again, doubled with each failure up to the regular interval."""

log = structlog.get_logger("tidegate.jwks")


class JwksSource(Protocol):
    """Reads a JWKS document."""

    async def read(self) -> bytes:
        """The document. Raises JwksError, OSError or FetchError."""
        ...


class JwksWatch:
    """The keys of one issuer.

    Args:
        take: called with the issuer and the keys of every good document that differs from the one before.
        keep: the file of the last good document, for workers that start while the issuer is away; None for no file.
    """

    def __init__(
        self,
        issuer: str,
        source: JwksSource,
        algorithms: frozenset[str],
        take: Callable[[str, KeySet], None],
        *,
        refresh_s: float,
        unknown_key_s: float,
        clock: Clock,
        rng: Rng,
        keep: Path | None = None,
    ) -> None:
        self._issuer = issuer
        self._source = source
        self._algorithms = algorithms
        self._take = take
        self._refresh_s = refresh_s
        self._unknown_key_s = unknown_key_s
        self._clock = clock
        self._rng = rng
        self._keep = keep
        self._flight: asyncio.Task[None] | None = None
        self._asked_at: float | None = None
        self._read_at: float | None = None
        self._document = b""
        self._keys = 0
        self._trouble = "not read yet"
        self._failures = 0

    def state(self) -> IssuerState:
        """The number and age of the keys, and the trouble with the issuer, for operators."""
        age_s = None if self._read_at is None else self._clock() - self._read_at
        return IssuerState(self._issuer, self._keys, age_s, self._trouble)

    async def first(self) -> None:
        """Read for the first time; when that fails, take the document of the file."""
        await self._joined(FIRST_S)
        if self._read_at is None and self._keep is not None:
            try:
                self._use(await asyncio.to_thread(self._keep.read_bytes))
            except (OSError, JwksError):
                return
            log.warning("issuer away, using the keys kept before", issuer=self._issuer)

    async def wanted(self) -> None:
        """Wait for a reading because a token names an unknown key, unless the last reading began less than `unknown_key_s` ago."""
        last = self._asked_at
        if self._flight is not None or last is None or self._clock() - last >= self._unknown_key_s:
            await self._joined(WAIT_S)

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                pause_s = self._refresh_s if not self._failures else min(RETRY_S * 2 ** min(self._failures - 1, 10), self._refresh_s)
                await asyncio.sleep(pause_s * (0.9 + 0.2 * self._rng.random()))
                await self._joined(None)
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel a reading that is in flight."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.gather(self._flight, return_exceptions=True)

    async def _joined(self, most_s: float | None) -> None:
        """Begin a reading or join the one in flight, and wait for it; cancelling the waiting task does not cancel the reading."""
        if self._flight is None:
            self._asked_at = self._clock()
            self._flight = asyncio.create_task(self._read())
            self._flight.add_done_callback(self._landed)
        await asyncio.wait((self._flight,), timeout=most_s)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flight = None
        if not flight.cancelled() and (error := flight.exception()) is not None:
            log.error("defect", issuer=self._issuer, exc_info=error)

    async def _read(self) -> None:
        try:
            document = await self._source.read()
            self._use(document)
        except (JwksError, FetchError, OSError, ValueError) as error:
            self._failures += 1
            why = f"{type(error).__name__}: {error}"[:200]
            if why != self._trouble:
                log.warning("keys of an issuer cannot be read, keeping the last", issuer=self._issuer, reason=why, keys=self._keys)
            self._trouble = why
            return
        if self._trouble or self._failures:
            log.info("keys of an issuer read", issuer=self._issuer, keys=self._keys)
        self._trouble = ""
        self._failures = 0
        self._read_at = self._clock()
        if self._keep is not None:
            await asyncio.to_thread(_write, self._keep, document)

    def _use(self, document: bytes) -> None:
        if document == self._document:
            return
        keys = key_set(document, self._algorithms)
        self._take(self._issuer, keys)
        self._document = document
        self._keys = len(keys.keys)


def kept_file(run_dir: Path, issuer: str) -> Path:
    """The file of an issuer's last good document; only this user can read the run directory."""
    return run_dir / f"jwks-{sha256(issuer.encode()).hexdigest()[:16]}.json"


def _write(path: Path, document: bytes) -> None:
    # one temporary file per process: several workers write the same document at once
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(document)
        partial.replace(path)
    except OSError as error:
        log.warning("keys of an issuer cannot be kept", reason=str(error.strerror))
