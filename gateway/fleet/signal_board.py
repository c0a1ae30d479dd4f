"""What engines report, from both sources: the last reading of each, with what it pushed since laid over it.

The only writer of `live.signals`, and of what the routing boards know of engines' own load. While reports come they say what
runs and waits; when they stop, the last reading does again, as old as it is.
"""

from backends.load_reports import Pushed, joined
from backends.signals import Signals
from gateway.deps import Live
from gateway.placing.ground import Grounds


class SignalBoard:
    """One per worker; bounded by the fleet."""

    def __init__(self, live: Live, grounds: Grounds) -> None:
        self._live = live
        self._grounds = grounds
        self._read: dict[str, tuple[Signals, float]] = {}
        self._pushed: dict[str, tuple[Pushed, float]] = {}

    def last_read(self, backend: str) -> Signals | None:
        """The last reading, without what was pushed."""
        read = self._read.get(backend)
        return None if read is None else read[0]

    def is_pushed(self, backend: str) -> bool:
        """Whether pushed reports say its load now."""
        return backend in self._pushed

    def read(self, backend: str, signals: Signals, asked_at: float) -> None:
        """A reading came; what was sent after it was asked for it may lack."""
        self._read[backend] = (signals, asked_at)
        self._show(backend)

    def restarted(self, backend: str) -> None:
        """Its counters say that its process is another one."""
        self._grounds.restarted(backend)

    def unread(self, backend: str) -> None:
        """It is read no more."""
        self._read.pop(backend, None)
        self._show(backend)

    def push(self, backend: str, pushed: Pushed, counted_until: float) -> None:
        """Reports came; what was sent after `counted_until` they may lack."""
        self._pushed[backend] = (pushed, counted_until)
        self._show(backend)

    def silent(self, backend: str) -> None:
        """Its reports do not count any more."""
        if self._pushed.pop(backend, None) is not None:
            self._show(backend)

    def _show(self, backend: str) -> None:
        live, read, pushed = self._live, self._read.get(backend), self._pushed.get(backend)
        if pushed is not None:
            signals, asked_at = joined(None if read is None else read[0], pushed[0]), pushed[1]
        elif read is not None:
            signals, asked_at = read
        else:
            live.signals.pop(backend, None)
            return
        live.signals[backend] = signals
        self._grounds.capacity(backend, signals.kv_capacity_tokens)
        if (ground := self._grounds.of(backend)) is not None:
            ground.board.report(
                backend,
                running=signals.running,
                waiting=signals.waiting,
                queued_tokens=signals.waiting_uncached_tokens,
                kv_usage=signals.kv_usage,
                kv_capacity=signals.kv_capacity_tokens,
                read_at=signals.load_at,
                asked_at=asked_at,
            )
            self._grounds.limits.told(backend, signals, signals.load_at)
