"""The admin process's part of the request log: fetches finished requests from the workers, keeps them, and shows them to whoever watches.

Workers are asked once a second, on the connection on which they are asked for their numbers; every fourth second while nothing ends and
nobody watches, and whenever somebody reads the log. Requests wait in memory, up to a bound, while
the store is away. Whatever is lost on the way is counted: what a worker had to overwrite, and what found no room here.

An end user who is erased (a purge of the answer cache that names the user) is erased from the log, too: requests that are there are
removed, and those that come in later, but began before, are not kept. Every gateway on the database does so, in a store of its own or in a
shared one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from domain.cache_purges import CachePurgeStore
from domain.clock import WallClock
from gateway.process.worker_link import ask_every
from gateway.request_log.ring import FETCH_LINE, RequestsAsked, RequestsFetched, RingLine, take_left
from gateway.telemetry.access_log import AccessLogEntry
from gateway.telemetry.request_log_counters import RequestLogCounts
from tenancy.request_log import LoggedRequest, RequestLogAway, RequestStore, SealedContent

EVERY_S: Final = 1.0
"""Between two looks at the workers while requests end or somebody watches."""
REST_TURNS: Final = 4
"""As many times as long between two looks while nothing ends: a worker's ring holds what it can finish in that time."""
WITHIN_S: Final = 2.0
"""Longest wait for a worker's answer."""
SWEEP_EVERY_S: Final = 600.0
MOST_WAITING: Final = 20_000
"""Requests that wait for a store that is away, about 2 KB each; further ones are lost and counted."""
MOST_CONTENTS_WAITING: Final = 500
MOST_WATCHED: Final = 500
"""Requests that wait for one watcher; it is told how many older ones it missed."""
MOST_WORKERS: Final = 256
"""Workers whose place is remembered; a gateway has 64, and each restart makes new ones."""

log = structlog.get_logger("tidegate.requests")

Sleep = Callable[[float], Awaitable[None]]


class _AskedBy(msgspec.Struct):
    """The fields of a line that requests are asked for by: to read all of them takes twice as long."""

    at: datetime
    request_id: str
    duration_us: int
    tenant: str = ""
    project: str = ""
    key_id: str = ""
    endpoint: str = ""
    model: str = ""
    pool: str = ""
    backend: str = ""
    outcome: str = ""
    rule: str = ""
    cache: str = ""


_decode: Final = msgspec.json.Decoder(AccessLogEntry).decode
_decode_some: Final = msgspec.json.Decoder(_AskedBy).decode


def entry_of(request: LoggedRequest) -> AccessLogEntry:
    """Every field of a kept request."""
    return _decode(request.line)


def logged_request(ring_line: RingLine, default_hours: float) -> LoggedRequest:
    """A worker's line, as it is kept. Raises msgspec.DecodeError."""
    entry = _decode_some(ring_line.line)
    at_us = round(entry.at.timestamp() * 1e6)
    return LoggedRequest(
        at_us=at_us,
        id=entry.request_id,
        duration_us=entry.duration_us,
        tenant=entry.tenant,
        project=entry.project,
        key_id=entry.key_id,
        endpoint=entry.endpoint,
        model=entry.model,
        pool=entry.pool,
        backend=entry.backend,
        outcome=entry.outcome,
        rule=entry.rule,
        cache=entry.cache,
        end_user=ring_line.end_user,
        expires_us=at_us + int((ring_line.hours or default_hours) * 3.6e9),
        line=ring_line.line.rstrip(b"\n"),
    )


class RequestWatcher:
    """What one watcher of finished requests has not seen yet."""

    def __init__(self, most: int = MOST_WATCHED) -> None:
        self._waiting: deque[LoggedRequest] = deque(maxlen=most)
        self._missed = 0

    def give(self, requests: Iterable[LoggedRequest]) -> None:
        """Take requests; at the bound the oldest are missed."""
        for request in requests:
            self._missed += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(request)

    def take(self) -> tuple[list[LoggedRequest], int]:
        """The requests since the last call, and how many were missed."""
        taken, missed = list(self._waiting), self._missed
        self._waiting.clear()
        self._missed = 0
        return taken, missed


class RequestSink(Protocol):
    """Gets every finished request, besides the store."""

    name: str
    """In metrics."""

    async def add(self, requests: list[LoggedRequest]) -> None:
        """Take requests; called at each look, also with none. Raises OSError, after which those that wait are lost."""
        ...

    async def close(self) -> None:
        """Write what is left."""
        ...

    def figures(self) -> tuple[int, int, int, int]:
        """Requests since the start, by `gateway.telemetry.otlp.RESULTS`."""
        ...


class RequestCollector:
    """Fetches finished requests and keeps them.

    Args:
        run_dir: of this gateway.
        store: where requests are kept.
        prepare: makes the store ready; called until it succeeds. Raises RequestLogAway.
        purges: of the answer cache, for end users who are erased.
        hours: how long requests are kept whose tenants' policies do not say.
        most: requests that are kept.
        sinks: other places that requests go to.
    """

    def __init__(
        self,
        run_dir: Path,
        store: RequestStore,
        prepare: Callable[[], Awaitable[None]],
        purges: CachePurgeStore,
        wall: WallClock,
        *,
        hours: float,
        most: int,
        sinks: Iterable[RequestSink] = (),
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.store = store
        self.lost = 0
        """Requests that were not kept, since this process began."""
        self._run_dir = run_dir
        self._prepare = prepare
        self._prepared = False
        self._purges = purges
        self._wall = wall
        self._hours = hours
        self._most = most
        self._sinks = tuple(sinks)
        self._sleep = sleep
        self._asked = RequestsAsked({}, {})
        self._requests: list[LoggedRequest] = []
        self._contents: list[SealedContent] = []
        self._watchers: set[RequestWatcher] = set()
        self._erased: dict[tuple[str, str], int] = {}
        """Until when requests of an end user are erased, by tenant and digest."""
        self._purged = 0
        self._away = False
        self._swept_at = self._looked_at = float("-inf")
        self._lively = False
        """Whether the last look found something."""
        self._turn = asyncio.Lock()

    def watch(self) -> RequestWatcher:
        """Begin to watch finished requests; `unwatch` has to follow."""
        watcher = RequestWatcher()
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: RequestWatcher) -> None:
        """Stop watching."""
        self._watchers.discard(watcher)

    def counts(self) -> RequestLogCounts:
        """What became of finished requests, for metrics."""
        return RequestLogCounts(self.lost, {sink.name: sink.figures() for sink in self._sinks})

    async def run(self) -> None:
        """Collect until cancelled."""
        turns = REST_TURNS
        while True:
            turns += 1
            if turns >= REST_TURNS or self._lively or self._watchers:
                turns = 0
                await asyncio.shield(asyncio.ensure_future(self.look()))
            await self._sleep(EVERY_S)

    async def fresh(self) -> None:
        """Fetch what has finished up to a second ago, for somebody who reads the log now."""
        if self._wall() - self._looked_at >= EVERY_S:
            await self.look()

    async def look(self) -> None:
        """Fetch what is new and keep it; an outage of the store is logged at its begin and end."""
        async with self._turn:
            self._looked_at = self._wall()
            await self._fetch()
            try:
                if not self._prepared:
                    await self._prepare()
                    self._prepared = True
                await self._follow_purges()
                await self._keep()
                if self._wall() - self._swept_at >= SWEEP_EVERY_S:
                    self._swept_at = self._wall()
                    await self.store.sweep(int(self._wall() * 1e6), self._most)
            except RequestLogAway as error:
                if not self._away:
                    log.warning("the request log waits for its store", reason=str(error))
                self._away = True
                return
            if self._away:
                log.info("the request log is kept again", lost=self.lost)
            self._away = False

    async def close(self) -> None:
        """Fetch and keep what is left; called when the workers have ended."""
        await self.look()
        for sink in self._sinks:
            try:
                await sink.close()
            except OSError as error:
                log.error("finished requests could not be written", reason=str(error))

    # --- from the workers ----------------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        more = True
        new: list[LoggedRequest] = []
        while more:
            more = False
            question = FETCH_LINE + msgspec.msgpack.encode(self._asked)
            for reply in await ask_every(self._run_dir, question, WITHIN_S):
                fetched = msgspec.msgpack.decode(reply, type=RequestsFetched)
                more = (self._take(fetched, new) and fetched.more) or more
        for fetched in await asyncio.to_thread(take_left, self._run_dir):
            self._take(fetched, new)
        self._lively = bool(new)
        for watcher in self._watchers:
            watcher.give(new)
        for sink in self._sinks:
            try:
                await sink.add(new)
            except OSError as error:
                log.error("finished requests could not be written", reason=str(error))
        if new:
            room = max(MOST_WAITING - len(self._requests), 0)
            self._lose(len(new) - room)
            self._requests += new[:room]

    def _take(self, fetched: RequestsFetched, new: list[LoggedRequest]) -> bool:
        """Take a worker's answer; whether there was anything new in it."""
        known = self._asked.lines.pop(fetched.worker, None)
        if known is not None:
            self._lose(fetched.lines_from - known)
        for ring_line in fetched.lines[max((known or 0) - fetched.lines_from, 0) :]:
            try:
                new.append(logged_request(ring_line, self._hours))
            except msgspec.DecodeError as error:
                self._lose(1)
                log.error("a line of the access log cannot be read", reason=str(error)[:200])
        self._asked.lines[fetched.worker] = max(fetched.lines_from + len(fetched.lines), known or 0)
        seen = self._asked.contents.pop(fetched.worker, 0)
        self._contents += fetched.contents[max(seen - fetched.contents_from, 0) :]
        del self._contents[:-MOST_CONTENTS_WAITING]
        self._asked.contents[fetched.worker] = max(fetched.contents_from + len(fetched.contents), seen)
        for places in (self._asked.lines, self._asked.contents):
            while len(places) > MOST_WORKERS:
                del places[next(iter(places))]
        return bool(fetched.lines or fetched.contents)

    def _lose(self, count: int) -> None:
        if count > 0:
            if not self.lost:
                log.warning("finished requests are missing in the request log", lost=count)
            self.lost += count

    # --- into the store ------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        if not self._requests and not self._contents:
            return
        requests = [one for one in self._requests if not self._is_erased(one)]
        contents = [one for one in self._contents if not self._is_erased(one)]
        await self.store.add(requests, contents)
        self._requests, self._contents = [], []

    def _is_erased(self, one: LoggedRequest | SealedContent) -> bool:
        return bool(self._erased) and one.end_user != "" and one.at_us <= self._erased.get((one.tenant, one.end_user), -1)

    async def _follow_purges(self) -> None:
        """Erase the end users whom purges name. A process begins with every purge that is remembered."""
        try:
            newest = await self._purges.newest()
            purges = await self._purges.since(self._purged) if newest > self._purged else []
        except Exception as error:  # drivers raise their own
            raise RequestLogAway(f"purges cannot be read: {type(error).__name__}: {error}"[:300]) from error
        for purge in purges:
            if purge.user and not (purge.model or purge.namespace):
                until_us = int(min(purge.before_unix or purge.at_unix, purge.at_unix) * 1e6)
                removed = await self.store.erase(purge.owner, [purge.user], until_us)
                key = (purge.owner, purge.user)
                self._erased[key] = max(until_us, self._erased.get(key, 0))
                log.info("requests of an end user erased", tenant=purge.owner, removed=removed)
        self._purged = max(self._purged, newest)
