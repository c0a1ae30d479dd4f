"""The one ZeroMQ context of a worker, made when the first backend publishes anything."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zmq


class ZeroMq:
    """Makes the context at its first use: ZeroMQ and its thread cost a worker 10 MB."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def context(self) -> "zmq.Context[zmq.Socket[bytes]]":
        """The context; made by the first call."""
        if self._context is None:
            import zmq

            self._context = zmq.Context()
        return self._context

    def close(self) -> None:
        """End the context and every socket still open in it. Idempotent."""
        if self._context is not None:
            self._context.destroy(0)
            self._context = None
