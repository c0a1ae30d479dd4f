"""Requests that end engines: one that was under way on two of them when they died is not tried again. Pure: what ended where, when it was
sent, and when processes were seen to be gone in; who is refused, and for how long, out.

A connection that breaks is no death: an engine may drop one stream, a proxy may lose it. It counts once the engine's process was found
gone as well, by a poll or by its restart (`backends.health`), within seconds. And a death counts only for what was sent after the one
before it was known: copies of one prompt, under way on two engines of a rack that loses its power, say nothing of the prompt.

What it cannot tell: which of the requests on a dying engine it was. Who was on two engines that died one after the other, with a new try
in between, waits like the guilty one.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

from domain.faults import Kind

DEATHS: Final = 2
WITHIN_S: Final = 60.0
"""So many deaths, each no longer than this after the one before (reliability research, 2.2)."""
HOLD_S: Final = 120.0
"""For how long the request is refused, from the last death on: an engine takes about as long to load its model."""
KEEP_S: Final = 600.0
"""How long it is remembered; one more death within this time has it refused again."""
SEEN_GONE_S: Final = 15.0
"""An engine whose process was not found gone within this time after the connection broke has not died: polls come every second, a proxy in
front of it may need some to notice."""
SLACK_S: Final = 1.0
"""A poll may find it gone before our own connection breaks."""
MAX_SUSPECTS: Final = 10_000
"""Beyond, the oldest is forgotten: engines with so many requests under way have died of something else."""

MAY_KILL: Final = frozenset({Kind.RESET_BEFORE_REPLY, Kind.BROKEN_STREAM, Kind.ENGINE_ERROR, Kind.ENGINE_ABORTED})
"""How attempts end on an engine that dies: its connection breaks, or its front end still says that the core is gone."""


class _Suspect:
    __slots__ = ("deaths", "guilty_at", "last_at", "open", "who")

    def __init__(self, who: str) -> None:
        self.who = who
        self.open: list[tuple[str, float]] = []
        """Engines whose death is not known yet, and when its connection to them broke."""
        self.deaths: list[tuple[str, float]] = []
        self.guilty_at: float | None = None
        self.last_at = 0.0


def mark_of(secret: bytes, tenant: str, model: str, fields: bytes) -> bytes:
    """What a request is known by: nobody can make one that looks like another tenant's, and no prompt can be read back from it."""
    name = f"{tenant}\0{model}\0".encode()
    return blake2b(name + fields, key=secret[:32], digest_size=16, person=b"poison").digest()


class Suspects:
    """Those of one worker. Times are monotonic seconds."""

    __slots__ = ("_by", "guilty")

    def __init__(self) -> None:
        self._by: dict[bytes, _Suspect] = {}
        self.guilty: dict[bytes, float] = {}
        """Until when each is refused, by its mark. Empty nearly always, so that nobody computes a mark."""

    def __len__(self) -> int:
        return len(self._by)

    def struck(self, mark: bytes, who: str, backend: str, sent_at: float, now: float) -> bool:
        """A request's attempt ended in one of the ways of `MAY_KILL`: whether it must not be tried once more.

        Args:
            who: its tenant, for operators.
            sent_at: when the attempt began.
        """
        one = self._by.pop(mark, None) or _Suspect(who)
        self._by[mark] = one  # the youngest is last
        if len(self._by) > MAX_SUSPECTS:
            del self._by[next(iter(self._by))]
        # it took this one, so it had not died of the last one
        one.open = [(engine, at) for engine, at in one.open if engine != backend or sent_at < at]
        recent = [at for _, at in (*one.deaths, *one.open) if now - at <= WITHIN_S]
        if all(sent_at >= at for at in recent):
            one.open.append((backend, now))
            one.last_at = now
            recent.append(now)
        return len(recent) >= DEATHS or one.guilty_at is not None

    def cleared(self, mark: bytes) -> None:
        """It was answered after all, by an engine that lived through it."""
        self._by.pop(mark, None)
        self.guilty.pop(mark, None)

    def look(self, away_at: Callable[[str], float], now: float) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Look which engines have died; yields the tenant and the engines of each request that is refused from now on.

        Args:
            away_at: when a backend's process was last found gone; infinite for one that has left.
        """
        for mark, one in list(self._by.items()):
            for backend, at in one.open:
                if away_at(backend) >= at - SLACK_S:
                    one.deaths.append((backend, at))
            one.open = [(backend, at) for backend, at in one.open if away_at(backend) < at - SLACK_S and now - at <= SEEN_GONE_S]
            one.deaths = [(backend, at) for backend, at in one.deaths if now - at <= KEEP_S][-DEATHS:]
            if now - one.last_at > KEEP_S or not (one.open or one.deaths):
                del self._by[mark]
                continue
            last = one.deaths[-1][1] if one.deaths else 0.0
            again = one.guilty_at is not None and last > one.guilty_at
            if again or (one.guilty_at is None and len(one.deaths) >= DEATHS and last - one.deaths[0][1] <= WITHIN_S):
                one.guilty_at = last
                self.guilty[mark] = last + HOLD_S
                yield one.who, tuple([backend for backend, _ in one.deaths])
        for mark in [mark for mark, until in self.guilty.items() if now >= until]:
            del self.guilty[mark]

    def refused_s(self, mark: bytes, now: float) -> float:
        """For how much longer a request is refused; 0 for one that is not."""
        return max(0.0, self.guilty.get(mark, 0.0) - now)
