"""The queues of one worker, by pool."""

from gateway.queueing.line import Line
from gateway.queueing.waiter import LineState


class Lines(dict[str, Line]):
    """The queue of every pool, by the pool's name; a dict, because every request looks its queue up."""

    def sweep(self, now: float) -> None:
        """Check deadlines, heartbeats and capacity in every queue."""
        for line in self.values():
            line.sweep(now)

    def stop(self) -> None:
        """End all waits and refuse new ones."""
        for line in self.values():
            line.stop()

    def states(self) -> tuple[LineState, ...]:
        """The state of every queue."""
        return tuple([line.state() for line in self.values()])
