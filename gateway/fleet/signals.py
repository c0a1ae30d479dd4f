"""Reads the metrics of every engine several times a second, and joins them with the load reports that engines push.

`SignalWatch` runs one loop per backend. While a pool is at rest (`gateway.placement.rest`) its loops read every `REST_EVERY_S`, so
that an idle gateway costs next to nothing, its engines too; the first request after a rest has all of them read at once. Several workers of
a host read an engine once (`gateway.fleet.shared_signals`). When a reading
fails the last one stays in place, with its age; deciders look at the age.

`SignalBoard` joins the two sources, and is the only writer of `live.signals` and of the engines' own load in the routing load tables. While
pushed reports come, running and waiting requests are taken from them; when they stop, from the last reading again, at its age.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from backends.fetch import FetchError
from backends.load_reports import Pushed, joined
from backends.ports import Upstream
from backends.signals import Signals, measured, restarted
from domain.clock import Clock, Rng
from gateway.deps import Live
from gateway.fleet.health import note_signals
from gateway.fleet.loops import Loops, closed
from gateway.fleet.shared_signals import SharedSignals
from gateway.placement.pool_state import PoolState, PoolStates


class SignalBoard:
    """Writes readings and pushed reports to `live.signals` and the load tables; one per worker, one entry per backend."""

    def __init__(self, live: Live, pool_states: PoolStates) -> None:
        self._live = live
        self._pool_states = pool_states
        self._read: dict[str, tuple[Signals, float]] = {}
        self._pushed: dict[str, tuple[Pushed, float]] = {}

    def last_read(self, backend: str) -> Signals | None:
        """The last reading of the metrics, without pushed reports."""
        read = self._read.get(backend)
        return None if read is None else read[0]

    def is_pushed(self, backend: str) -> bool:
        """Whether the load of this backend is taken from pushed reports now."""
        return backend in self._pushed

    def read(self, backend: str, signals: Signals, asked_at: float) -> None:
        """Take a reading; it may not count requests sent after `asked_at`."""
        self._read[backend] = (signals, asked_at)
        self._show(backend)

    def restarted(self, backend: str) -> None:
        """Forget the cache contents of a backend whose counters show that its process is a new one."""
        self._pool_states.restarted(backend)

    def pool_of(self, backend: str) -> PoolState | None:
        """The routing state of the pool that the backend is in; None once it has left."""
        return self._pool_states.of(backend)

    def unread(self, backend: str) -> None:
        """Drop the reading of a backend whose metrics are read no more."""
        self._read.pop(backend, None)
        self._show(backend)

    def push(self, backend: str, pushed: Pushed, counted_until: float) -> None:
        """Take pushed reports; they may not count requests sent after `counted_until`."""
        self._pushed[backend] = (pushed, counted_until)
        self._show(backend)

    def silent(self, backend: str) -> None:
        """Drop the pushed reports of a backend: they are too old to count."""
        if self._pushed.pop(backend, None) is not None:
            self._show(backend)

    def _show(self, backend: str) -> None:
        live = self._live
        read = self._read.get(backend)
        pushed = self._pushed.get(backend)
        if pushed is not None:
            reports, asked_at = pushed
            signals = joined(None if read is None else read[0], reports)
        elif read is not None:
            signals, asked_at = read
        else:
            live.signals.pop(backend, None)
            return
        live.signals[backend] = signals
        self._pool_states.capacity(backend, signals.kv_capacity_tokens)
        if (pool_state := self._pool_states.of(backend)) is not None:
            pool_state.load_table.report(
                backend,
                running=signals.running,
                waiting=signals.waiting,
                queued_tokens=signals.waiting_uncached_tokens,
                kv_usage=signals.kv_usage,
                kv_capacity=signals.kv_capacity_tokens,
                read_at=signals.load_at,
                asked_at=asked_at,
            )
            self._pool_states.limits.reported(backend, signals, signals.load_at)


log = structlog.get_logger("tidegate.signals")

Read = Callable[[], Awaitable[Signals]]
"""Reads the signals of one backend; raises FetchError or ValueError."""


BUDGET_SHARE: Final = 0.1
"""The share of an engine's time that one worker's readings may take. Engines write their metrics on the loop that serves requests,
and pages of 300 KB take milliseconds: an engine that is too busy to answer at once is not asked ten times a second on top."""

LONGEST_PAUSE_S: Final = 2.0
"""The longest pause between readings, however slow the last one was: beyond 0.2 s an engine mostly waits and does not work on the
answer, and an engine that comes back from a standstill or a restart must not stay unknown for ten seconds."""

PUSHED_EVERY_S: Final = 1.0
"""The shortest time between readings of an engine that pushes its running and waiting requests: such a reading is needed only for its
counters, which show restarts, progress and rates, all over seconds."""


REST_EVERY_S: Final = 1.8
"""The usual time between readings while nobody asks."""
REST_JITTER: Final = 0.1
"""The part by which that time is longer or shorter: a restart of an engine is seen within two seconds, and a reading is never as old as
`pool_state.STALE_S`. A larger part would take more readings for the same longest pause."""


def rest_pause_s(draw: float) -> float:
    """Seconds between two readings while nobody asks, jittered (`draw` from 0 to 1) so that gateways do not march in step."""
    return REST_EVERY_S * (1 + REST_JITTER * (2 * draw - 1))


def pause_s(every_s: float, took_s: float, draw: float) -> float:
    """Seconds between a reading that took `took_s` and the next one.

    Jittered by a quarter (`draw` from 0 to 1), so that gateways do not march in step, and never so short that reading would
    take more than `BUDGET_SHARE` of the time, up to `LONGEST_PAUSE_S`.
    """
    return max(every_s * (0.75 + 0.5 * draw), min(took_s * (1 / BUDGET_SHARE - 1), LONGEST_PAUSE_S))


class SignalWatch:
    """Reads every backend about every `every_s` seconds; a slow backend (`pause_s`) or one that pushes its load less often."""

    def __init__(self, live: Live, signal_board: SignalBoard, every_s: float, clock: Clock, rng: Rng) -> None:
        self._live = live
        self._signal_board = signal_board
        self._every_s = every_s
        self._clock = clock
        self._rng = rng
        self._reads: dict[str, Read] = {}
        self._upstreams: dict[str, Upstream] = {}
        self._trouble: dict[str, str] = {}
        self._loops: Loops[str] = Loops()
        self._resting: dict[str, asyncio.Future[bool]] = {}
        """By pool: done with the first request after a rest; true where this worker has it."""
        self.shared: SharedSignals | None = None
        """Where several workers of the host read an engine once."""

    def add(self, backend: str, read: Read, upstream: Upstream | None = None) -> None:
        """Read one more backend, at once when `run` runs. `upstream` is closed when the backend leaves."""
        self._reads[backend] = read
        if upstream is not None:
            self._upstreams[backend] = upstream
        self._loops.add(backend, partial(self._read_on, backend))

    def remove(self, backend: str) -> Awaitable[None]:
        """Stop reading a backend at once; the awaitable that is returned ends when its connections are closed."""
        self._reads.pop(backend, None)
        self._trouble.pop(backend, None)
        if self.shared is not None:
            self.shared.forget(backend)
        self._signal_board.unread(backend)
        return closed(self._loops.drop(backend), self._upstreams.pop(backend, None))

    async def run(self) -> None:
        """Read until cancelled."""
        await self._loops.run()

    async def _read_on(self, backend: str) -> None:
        asked = False
        while True:
            covered_s = 0.0 if asked or self.shared is None else self.shared.covered_s(backend)
            seconds = covered_s or await self.read_once(backend)
            asked = await self.pause(backend, seconds)

    async def pause(self, backend: str, seconds: float) -> bool:
        """Wait before the next reading: so many seconds, or longer where the pool is at rest and until it is asked. Returns whether a
        request of this worker has ended the rest: then the engine is to be read here, whoever reads it otherwise."""
        pool_state, now = self._signal_board.pool_of(backend), self._clock()
        if pool_state is None or not pool_state.rest.at_rest(now):
            if pool_state is not None and self.shared is not None and pool_state.rest.asked_here(now):
                self.shared.asked(pool_state.name)
            await asyncio.sleep(seconds)
            return False
        pool_state.rest.on_asked = partial(self._wake, pool_state.name)
        asked = self._resting.get(pool_state.name)
        if asked is None:
            asked = self._resting[pool_state.name] = asyncio.get_running_loop().create_future()
        await asyncio.wait([asked], timeout=max(seconds, rest_pause_s(self._rng.random())))
        return asked.done() and asked.result()

    def _wake(self, pool: str, here: bool) -> None:
        asked = self._resting.pop(pool, None)
        if asked is not None:
            asked.set_result(here)
        if here and self.shared is not None:
            self.shared.asked(pool)

    def take(self, backend: str, signals: Signals, asked_at: float) -> None:
        """Take a reading of the engine's metrics, of this worker's or of another one of the host, unless the last one is newer."""
        if backend not in self._reads:
            return  # the backend left meanwhile
        live = self._live
        before = self._signal_board.last_read(backend)
        if before is not None and before.read_at > signals.read_at:
            return
        self._signal_board.read(backend, signals, asked_at)
        live.prefill[backend] = measured(live.prefill.get(backend), signals)
        is_new_process = before is not None and restarted(before, signals)
        note_signals(live, backend, signals, self._clock(), restarted=is_new_process)
        if is_new_process:
            self._signal_board.restarted(backend)

    async def read_once(self, backend: str) -> float:
        """Read a backend once; returns the seconds until the next reading. Trouble is logged when it begins, changes or ends, not
        ten times a second."""
        # taken before the request: the engine counts at some moment between asking and answering, and to count a request twice is
        # safer than not at all
        asked_at = self._clock()
        read: Signals | None = None
        try:
            signals = await self._reads[backend]()
        except (FetchError, ValueError) as error:
            trouble = str(error)[:200]
        except Exception as error:  # noqa: BLE001 - no metrics page of an engine may end the worker that reads it
            trouble = f"cannot be read: {type(error).__name__}"
        else:
            if backend not in self._reads:
                return self._every_s  # the backend left meanwhile
            self.take(backend, signals, asked_at)
            read = signals
            trouble = f"no series for {', '.join(signals.missing)}: taken for unknown" if signals.missing else ""
        if trouble != self._trouble.get(backend, ""):
            self._trouble[backend] = trouble
            if trouble:
                log.warning("signals in doubt", backend=backend, reason=trouble)
            else:
                log.info("signals complete", backend=backend)
        every_s = max(self._every_s, PUSHED_EVERY_S) if self._signal_board.is_pushed(backend) else self._every_s
        took_s = self._clock() - asked_at
        seconds = pause_s(every_s, took_s, self._rng.random())
        if read is not None and self.shared is not None:
            # at rest too: what is longer than the pause of a rest is a reading that does not come
            self.shared.tell(backend, asked_at, 2 * took_s + max(seconds, self._rest_s(backend)), read)
        return seconds

    def _rest_s(self, backend: str) -> float:
        pool_state = self._signal_board.pool_of(backend)
        return rest_pause_s(1.0) if pool_state is not None and pool_state.rest.at_rest(self._clock()) else 0.0
