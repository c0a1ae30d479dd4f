"""The lines of one worker, by pool."""

from gateway.queueing.line import Line
from gateway.queueing.waiter import LineState


class Lines(dict[str, Line]):
    """Every pool's, by its name; a dict, because every request asks it."""

    def sweep(self, now: float) -> None:
        """See `Line.sweep`."""
        for line in self.values():
            line.sweep(now)

    def stop(self) -> None:
        """See `Line.stop`."""
        for line in self.values():
            line.stop()

    def states(self) -> tuple[LineState, ...]:
        """As they are now."""
        return tuple([line.state() for line in self.values()])
