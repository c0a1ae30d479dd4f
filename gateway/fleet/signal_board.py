"""Joins the two sources of engines' own load: the last reading of each engine's metrics, overlaid with the reports it pushed since.

The only writer of `live.signals`, and of the engines' own load in the routing load tables. While pushed reports come, running and
waiting requests are taken from them; when they stop, from the last reading again, at its age.
"""

from backends.load_reports import Pushed, joined
from backends.signals import Signals
from gateway.deps import Live
from gateway.placing.ground import Grounds


class SignalBoard:
    """Writes readings and pushed reports to `live.signals` and the load tables; one per worker, one entry per backend."""

    def __init__(self, live: Live, grounds: Grounds) -> None:
        self._live = live
        self._grounds = grounds
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
        self._grounds.restarted(backend)

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
            self._grounds.limits.reported(backend, signals, signals.load_at)
