"""The Responses in the background that this worker makes: their events are written in batches, and their leases renewed.

`BackgroundRun` collects the events of one Response and writes them, those together that came while the last ones were written, and no more
often than every `FLUSH_S`. Nobody is told of an event before it is in the database, so what a caller has seen can be read again from any
gateway, whatever happens to this one. `BackgroundRuns` has all of a worker: it renews their leases with one statement, and ends those that
were cancelled or deleted meanwhile. A worker that is killed leaves leases behind, and `gateway/request/background_reads.py` ends their
Responses once these are over.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from domain.clock import WallClock
from domain.faults import Fault, Kind
from domain.identity import TenantId
from gateway.background.detached import DetachedExchange
from gateway.http.responses.background import BackgroundTranslation, count_events, end_told_by, ended_from_outside
from gateway.ticks import next_tick
from tenancy.background import Advance, BackgroundResponse, BackgroundStatus, BackgroundStore, EventBatch
from tenancy.responses import NoRoomForResponses, ResponsesAway, StoredResponse

FLUSH_S: Final = 0.5
"""Between two writes of one Response: readers have events this late, and 100 Responses cost 200 small transactions a second."""
SOON_BYTES: Final = 64 * 1024
"""Events of this size are written at once."""
MOST_BYTES: Final = 1024**2
"""Events that wait to be written; beyond it the engine is not read. A fast engine takes a minute for them."""
LOOK_S: Final = 1.0
"""Between two looks for Responses that were cancelled at another gateway; an engine goes on for so long, at most."""
LEASE_S: Final = 15.0
"""For how long a Response of a worker that was killed may seem to be under way. Clocks of hosts have to agree to a few seconds."""
MOST_RUNS: Final = 1000
"""Responses that one worker makes at once; a further one is refused."""

log = structlog.get_logger("tidegate.background_responses")


class BackgroundTimes(msgspec.Struct, frozen=True):
    """The times of runs; tests have shorter ones."""

    flush_s: float = FLUSH_S
    look_s: float = LOOK_S
    lease_s: float = LEASE_S


class BackgroundRun:
    """The events of one Response on their way to the database.

    Args:
        began: the Response as it was created.
        max_bytes: the most that its tenant may have stored.
        stored: makes the stored Response of an answer that is whole.
    """

    def __init__(
        self,
        began: BackgroundResponse,
        translation: BackgroundTranslation,
        max_bytes: int,
        stored: Callable[[], StoredResponse],
        runs: "BackgroundRuns",
    ) -> None:
        self.began = began
        self.exchange: DetachedExchange | None = None
        """The exchange of the request, while it goes on."""
        self._translation = translation
        self._max_bytes = max_bytes
        self._stored = stored
        self._runs = runs
        self._next = began.last + 1
        self._waiting: list[bytes] = []
        self._size = 0
        self._response = began.response
        self._end: bytes | None = None
        self._dropped = False
        self._paused = False
        self._come = asyncio.Event()
        self._soon = asyncio.Event()

    # --- from the exchange --------------------------------------------------------------------------------------------

    def add(self, events: bytes) -> None:
        """Take events; comments, which keep connections alive, are not kept."""
        if events.startswith(b":"):
            return
        self._waiting.append(events)
        self._size += len(events)
        self._come.set()
        if self._size >= SOON_BYTES:
            self._soon.set()
        if self._size >= MOST_BYTES and not self._paused and self.exchange is not None:
            self._paused = True
            self.exchange.listener.full()

    def end(self, event: bytes) -> None:
        """Take the last event."""
        self.exchange = None
        self._end = event
        self._wake()

    def dropped(self) -> None:
        """The request has ended because the Response was."""
        self.exchange = None
        self._dropped = True
        self._wake()

    def task_over(self) -> None:
        """Called when the request's coroutine is over: a Response that has no end by then never gets one from it."""
        if self.exchange is not None:
            fault = Fault(Kind.INTERNAL, "Something failed on our side. Send the request again.")
            self.end(self._translation.broken(fault, ""))

    def _wake(self) -> None:
        self._come.set()
        self._soon.set()

    # --- from the registry --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the request: its Response is over, or was deleted."""
        self._dropped = True
        self._wake()
        if self.exchange is not None:
            self.exchange.connection_gone()

    # --- to the database ----------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write events until the Response is over."""
        away_since: float | None = None
        clock = asyncio.get_running_loop().time
        while not self._dropped:
            await self._come.wait()
            self._come.clear()
            self._soon.clear()
            if self._dropped:
                return
            ends = self._end is not None
            try:
                if not await self._flush():
                    self.stop()
                    return
                away_since = None
            except NoRoomForResponses:
                await self._fail(
                    Fault(Kind.QUOTA_SPENT, "The stored Responses take all the bytes that the policy allows. Delete some.", param="store")
                )
                return
            except ResponsesAway as error:
                away_since = clock() if away_since is None else away_since
                if clock() - away_since >= self._runs.times.lease_s:
                    log.warning("a Response in the background cannot be stored", response=self.began.id, reason=str(error))
                    self.stop()
                    return
                self._come.set()
                ends = False
            if ends:
                return
            await self._pause()

    async def _pause(self) -> None:
        """Wait until events may be written again."""
        try:
            async with asyncio.timeout(self._runs.times.flush_s):
                await self._soon.wait()
        except TimeoutError:
            return

    async def _flush(self) -> bool:
        """Write what has come, and with the last event the end; False where the Response is over for others."""
        events, end = b"".join(self._waiting), self._end
        taken = len(self._waiting)
        status: BackgroundStatus = "in_progress"
        response: bytes | None = self._translation.so_far()
        final = None
        if end:
            status, response = end_told_by(end)
            events += end
            if status != "failed":
                final, response = self._stored(), b""
        if not events:
            return True
        last = self._next + count_events(events) - 1
        changed = response if response != self._response else None
        added = Advance(status=status, batch=EventBatch(self._next, last, events), response=changed, final=final)
        began = self.began
        if not await self._runs.store.advance(began.tenant, began.id, self._runs.worker, added, self._max_bytes):
            return False
        del self._waiting[:taken]
        self._size = sum(map(len, self._waiting))
        self._next = last + 1
        self._response = response if response is not None else self._response
        self._runs.tell(began.tenant, began.id)
        if self._paused and self._size < MOST_BYTES:
            self._paused = False
            if self.exchange is not None:
                self.exchange.listener.drained()
        return True

    async def _fail(self, fault: Fault) -> None:
        """End the Response, whose events have no room, and its request."""
        await self._runs.end(self.began.tenant, self.began.id, fault)
        self.stop()


class BackgroundRuns:
    """The Responses in the background of one worker, and its way to those of all others.

    Args:
        worker: the name of this worker on leases; no other process has it.
        wall: seconds since the epoch.
    """

    def __init__(self, store: BackgroundStore, worker: str, wall: WallClock, times: BackgroundTimes | None = None) -> None:
        self.store = store
        self.worker = worker
        self.wall = wall
        self.times = BackgroundTimes() if times is None else times
        self.running: dict[tuple[TenantId, str], BackgroundRun] = {}
        """By tenant and id; a run leaves when its last event is written."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[tuple[TenantId, str], asyncio.Event] = {}

    @property
    def full(self) -> bool:
        """Whether no further Response is taken."""
        return len(self.running) >= MOST_RUNS

    def begin(self, run: BackgroundRun) -> None:
        """Write the events of a Response from now on."""
        name = run.began.tenant, run.began.id
        self.running[name] = run
        task = asyncio.ensure_future(run.write())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._over(name, done))

    def _over(self, name: tuple[TenantId, str], task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        run = self.running.pop(name)
        self.tell(*name)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("a Response in the background cannot be written", response=name[1], exc_info=error)
            run.stop()

    def changed(self, tenant: TenantId, response_id: str) -> asyncio.Event | None:
        """Set at the next change of a Response that this worker makes; None for one that it does not."""
        name = tenant, response_id
        if name not in self.running:
            return None
        return self._waiting.setdefault(name, asyncio.Event())

    def tell(self, tenant: TenantId, response_id: str) -> None:
        """Wake the readers of a Response here."""
        waiting = self._waiting.pop((tenant, response_id), None)
        if waiting is not None:
            waiting.set()

    async def end(self, tenant: TenantId, response_id: str, fault: Fault | None, *, where_lost: bool = False) -> BackgroundResponse | None:
        """End a Response that is not over, and its request where this worker has it.

        Args:
            fault: why it failed; None to cancel it.
            where_lost: only where the worker that makes it has died.

        Returns:
            The Response as it is then; None where there is none.

        Raises:
            ResponsesAway: the database cannot be asked.
        """

        def ends(seen: BackgroundResponse) -> tuple[BackgroundResponse, bytes] | None:
            return None if where_lost and not seen.is_lost(self.wall()) else ended_from_outside(seen, fault)

        ended = await self.store.end(tenant, response_id, ends)
        if ended is None or ended.is_over:
            self.stop(tenant, response_id)
        return ended

    def stop(self, tenant: TenantId, response_id: str) -> None:
        """End the request of a Response that is over or was deleted, where this worker has it and has not written its end."""
        run = self.running.get((tenant, response_id))
        if run is not None:
            run.stop()

    async def keep(self) -> None:
        """Renew leases, and end what was ended elsewhere, until cancelled."""
        away = False
        while True:
            await next_tick(self.times.look_s)
            if not self.running:
                continue
            before = list(self.running.items())
            try:
                held = await self.store.renew(self.worker, self.wall() + self.times.lease_s)
            except ResponsesAway as error:
                if not away:
                    log.warning("leases of Responses in the background are not renewed", reason=str(error))
                away = True
                continue
            away = False
            for name, run in before:
                if name not in held and self.running.get(name) is run:
                    run.stop()
