"""Keeps the signing keys (JWKS) of each issuer current: read in the background, and once more when a token names an unknown key.

While an issuer is away its last keys stay in use. At most one reading is in flight, however many requests want new keys, and unknown
keys cause at most one reading per `unknown_key_s`: strangers can make up key names, and issuers must not pay for it.
"""

import asyncio
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

import structlog

from backends.fetch import FetchError
from domain.clock import Clock, Rng
from gateway.worker_state import IssuerState
from tenancy.jwt_keys import JwksError, KeySet, key_set

WAIT_S: Final = 2.0
"""The longest that a request waits for keys; then its token is checked with the known keys."""
FIRST_S: Final = 6.0
"""The longest that a worker waits for its first keys; then it serves API keys and refuses JWTs with a retryable error."""
RETRY_S: Final = 5.0
"""Seconds until a failed reading is tried again, doubled with each failure up to the regular interval."""

log = structlog.get_logger("tidegate.jwks")


class Source(Protocol):
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
        source: Source,
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
