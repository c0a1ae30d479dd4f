"""Poison requests (queries of death): a request that was in flight on two engines when they died is not tried again. Pure: where and how
attempts ended, when they were sent, and when processes were seen to be gone in; which requests are refused, and for how long, out.

A broken connection is no death: an engine may drop one stream, a proxy may lose it. It counts once the engine's process was found to be
gone as well, by a poll or by its restart (`backends.health`), within seconds. And a death counts only for attempts sent after the death
before it was known: copies of one prompt, in flight on two engines of a rack that loses its power, tell nothing of the prompt.

Until a poll has looked, two failed attempts may be two deaths, or two engines that answer 500. Such a request (`Suspicion.MAYBE`) gets no
third try on a pool, and another model may answer it: a fallback that waited for a poll would come too late for the caller. Only a request
whose deaths were seen (`Suspicion.CONFIRMED`) is refused everywhere.

This module cannot tell which of the requests on a dying engine killed it. A harmless request that was on two engines that died one after
the other, with a retry in between, is refused like the guilty one.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from hashlib import blake2b
from typing import Final

from domain.faults import Kind

DEATHS: Final = 2
WITHIN_S: Final = 60.0
"""A request is refused after `DEATHS` deaths, each at most `WITHIN_S` after the one before (reliability research, 2.2)."""
HOLD_S: Final = 120.0
"""For how long the request is refused, from the last death on: an engine takes about as long to load its model."""
KEEP_S: Final = 600.0
"""How long a suspect is remembered; one more death within this time has it refused again."""
SEEN_GONE_S: Final = 15.0
"""An engine whose process was not found to be gone within this time after the connection broke has not died: polls come every second, and a
proxy in front of the engine may need several to notice."""
SLACK_S: Final = 1.0
"""A poll may find the process gone this long before the request's own connection breaks."""
MAX_SUSPECTS: Final = 10_000
"""Beyond this number the oldest suspect is forgotten: engines with so many requests in flight have died of something else."""

MAY_KILL: Final = frozenset({Kind.RESET_BEFORE_REPLY, Kind.BROKEN_STREAM, Kind.ENGINE_ERROR, Kind.ENGINE_ABORTED})
"""How attempts end on an engine that dies: its connection breaks, or its front end still says that the core is gone."""


class Suspicion(IntEnum):
    """How sure it is, after a failed attempt, that engines die of the request."""

    NONE = 0
    MAYBE = 1
    """Two attempts ended as on dying engines, and no poll has shown yet whether the engines died."""
    CONFIRMED = 2
    """Polls have shown that two engines died of the request."""


class _Suspect:
    __slots__ = ("deaths", "guilty_at", "last_at", "open", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.open: list[tuple[str, float]] = []
        """Engines of which it is not known yet whether they died, and when the request's connection to each broke."""
        self.deaths: list[tuple[str, float]] = []
        """Engines that died, and when."""
        self.guilty_at: float | None = None
        """The death for which the request was refused last; None when it never was."""
        self.last_at = 0.0
        """When its last connection broke."""


def mark_of(secret: bytes, tenant: str, model: str, fields: bytes) -> bytes:
    """The keyed hash by which a request is recognised: no tenant can forge another tenant's, and no prompt can be read back from it."""
    name = f"{tenant}\0{model}\0".encode()
    return blake2b(name + fields, key=secret[:32], digest_size=16, person=b"poison").digest()


class PoisonSuspects:
    """The suspect requests of one worker. Times are monotonic seconds."""

    __slots__ = ("_suspects", "guilty")

    def __init__(self) -> None:
        self._suspects: dict[bytes, _Suspect] = {}
        self.guilty: dict[bytes, float] = {}
        """Until when each poison request is refused, by its mark. Nearly always empty, and then no mark is computed."""

    def __len__(self) -> int:
        return len(self._suspects)

    def struck(self, mark: bytes, tenant: str, backend: str, sent_at: float, now: float) -> Suspicion:
        """Record an attempt that ended in one of the ways of `MAY_KILL`; returns the suspicion against the request from now on.

        Args:
            tenant: whose request it is, for operators.
            sent_at: when the attempt began.
        """
        suspect = self._suspects.pop(mark, None) or _Suspect(tenant)
        self._suspects[mark] = suspect  # the youngest is last
        if len(self._suspects) > MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
        # the engine accepted this attempt, so it had not died of the one before
        suspect.open = [(engine, at) for engine, at in suspect.open if engine != backend or sent_at < at]
        recent = [at for _, at in (*suspect.deaths, *suspect.open) if now - at <= WITHIN_S]
        if all(sent_at >= at for at in recent):
            suspect.open.append((backend, now))
            suspect.last_at = now
            recent.append(now)
        if suspect.guilty_at is not None:
            return Suspicion.CONFIRMED
        return Suspicion.MAYBE if len(recent) >= DEATHS else Suspicion.NONE

    def cleared(self, mark: bytes) -> None:
        """Drop a suspect: an engine answered the request and lived."""
        self._suspects.pop(mark, None)
        self.guilty.pop(mark, None)

    def look(self, away_at: Callable[[str], float], now: float) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Check which engines have died; yields the tenant and the engines of each request that is refused from now on.

        Args:
            away_at: when a backend's process was last found to be gone; infinite for a backend that has left.
        """
        for mark, suspect in list(self._suspects.items()):
            for backend, at in suspect.open:
                if away_at(backend) >= at - SLACK_S:
                    suspect.deaths.append((backend, at))
            suspect.open = [(backend, at) for backend, at in suspect.open if away_at(backend) < at - SLACK_S and now - at <= SEEN_GONE_S]
            suspect.deaths = [(backend, at) for backend, at in suspect.deaths if now - at <= KEEP_S][-DEATHS:]
            if now - suspect.last_at > KEEP_S or not (suspect.open or suspect.deaths):
                del self._suspects[mark]
                continue
            last = suspect.deaths[-1][1] if suspect.deaths else 0.0
            again = suspect.guilty_at is not None and last > suspect.guilty_at
            if again or (suspect.guilty_at is None and len(suspect.deaths) >= DEATHS and last - suspect.deaths[0][1] <= WITHIN_S):
                suspect.guilty_at = last
                self.guilty[mark] = last + HOLD_S
                yield suspect.tenant, tuple([backend for backend, _ in suspect.deaths])
        for mark in [mark for mark, until in self.guilty.items() if now >= until]:
            del self.guilty[mark]

    def refused_s(self, mark: bytes, now: float) -> float:
        """Seconds for which a request is still refused; 0 when it is not."""
        return max(0.0, self.guilty.get(mark, 0.0) - now)
