"""Keeps TLS towards engines current: polls the files of each pool that has some, and takes up new ones when they are whole.

Certificates are rotated by replacing files (cert-manager, a kubelet). New connections take the new certificate; open connections carry no
further calls (`backends.ports.EngineTls`), and their calls in flight go on to their end. Files with a mistake change nothing: the last good
ones stay, and the log gives the reason.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import structlog

from backends.ports import EngineTls
from domain.clock import WallClock
from gateway.config.trust import CertificateError, TlsFiles, Validity, engine_context, validity_of
from policies.yaml.folder import marks_of

log = structlog.get_logger("tidegate.engine_tls")

POLL_S: Final = 1.0
"""Seconds between two polls. A change is taken up after two polls, because a certificate and its key are two files."""


class EngineTlsWatch:
    """TLS of the pools that have some.

    Args:
        files: the files, by pool.
        wall: seconds since the epoch.

    Raises:
        CertificateError: the files of a pool cannot be used; there is nothing good to begin with.
    """

    def __init__(self, files: Mapping[str, TlsFiles], wall: WallClock) -> None:
        self._files = files
        self._wall = wall
        self._done = {pool: marks_of(of.named().values()) for pool, of in files.items()}
        self._seen = dict(self._done)
        self._tls = {pool: EngineTls(engine_context(of)) for pool, of in files.items()}
        self._validity = {pool: validity_of(of.certificate) for pool, of in files.items() if of.certificate is not None}
        self._reasons: dict[str, str] = {}
        """Why files are refused now."""
        self._refused: dict[str, Validity] = {}
        """The certificates that were reported as not valid."""
        for pool in files:
            self._judge(pool)

    def of(self, pool: str) -> EngineTls | None:
        """TLS of a pool; None for the system's CAs."""
        return self._tls.get(pool)

    def ends(self) -> dict[str, float]:
        """When the client certificate in use expires, seconds since the epoch, by pool that has one."""
        return {pool: validity.ends for pool, validity in self._validity.items()}

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """The coroutine that has to run while the worker serves; none where no pool has files."""
        return [self._run()] if self._files else []

    async def look(self) -> None:
        """Poll once: read the files of the pools where they differ from the last reading and are unchanged since the last poll."""
        for pool, files in self._files.items():
            now = await asyncio.to_thread(marks_of, files.named().values())
            is_stable = now == self._seen[pool]
            self._seen[pool] = now
            # what was refused is read again at each poll: a mended permission changes no mark
            if is_stable and now != self._done[pool] and await self._read(pool, files):
                self._done[pool] = now
            self._judge(pool)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self.look()

    async def _read(self, pool: str, files: TlsFiles) -> bool:
        """Read the files of a pool and use them; returns whether they can be used."""
        try:
            context = await asyncio.to_thread(engine_context, files)
            if files.certificate is not None:
                self._validity[pool] = await asyncio.to_thread(validity_of, files.certificate)
        except CertificateError as error:
            if self._reasons.get(pool) != str(error):
                self._reasons[pool] = str(error)
                log.error("certificates towards engines refused, the last good ones stay in force", pool=pool, reason=str(error))
            return False
        self._reasons.pop(pool, None)
        self._tls[pool].replace(context)
        log.info("certificates towards engines taken up", pool=pool)
        return True

    def _judge(self, pool: str) -> None:
        """Report a certificate once that engines will refuse."""
        validity = self._validity.get(pool)
        if validity is None or self._refused.get(pool) == validity:
            return
        refusal = validity.refusal(self._wall())
        if refusal is not None:
            self._refused[pool] = validity
            log.error("the engines will refuse the client certificate", pool=pool, reason=f"{self._files[pool].certificate} {refusal}")
