"""The exchange of a request whose caller has its reply already: what it would send is kept, for whoever reads it later.

It takes the place of the caller's exchange behind `admit` (`gateway/request/run_in_background.py`), and whatever comes then writes to it as
to every other one. To end the request from outside is to say that its caller is gone: the engine stops, and what it did is booked.
"""

from typing import Protocol

from domain.faults import Fault, Kind
from gateway.http.edge.exchange import NOBODY, Exchange
from gateway.http.responses.background import BackgroundTranslation


class EventSink(Protocol):
    """Takes what a detached exchange would send."""

    def add(self, events: bytes) -> None:
        """Take further events."""
        ...

    def end(self, event: bytes) -> None:
        """Take the last event, of an answer that is whole or of one that failed."""
        ...

    def dropped(self) -> None:
        """The request was ended from outside: nothing more is written."""
        ...


class DetachedExchange(Exchange, kw_only=True):
    """An exchange without a caller."""

    sink: EventSink
    told_by: BackgroundTranslation
    """Its translation."""

    def start(self, headers: bytes) -> None:
        self.started = True

    def _send(self, data: bytes) -> None:
        self.written += len(data)
        self.sink.add(data)

    def end(self) -> None:
        self._over()
        self.sink.end(self.told_by.released())

    def end_broken(self, event: bytes) -> None:
        self._over()
        self.sink.end(event)

    def reply(self, status: int, headers: bytes, body: bytes) -> None:
        """End the Response before its answer began: all replies but refusals are streams here, and a refusal is an event."""
        self.end_broken(body)

    def cut(self) -> None:
        fault = Fault(Kind.STATE_UNAVAILABLE, "The answer could not be stored as fast as it came. Send the request again.")
        self.end_broken(self.told_by.broken(fault, ""))

    def abandon(self) -> None:
        if not self.gone:  # whoever made the answer gave up waiting for the database
            self.cut()
            return
        self._over()
        self.sink.dropped()

    def _over(self) -> None:
        self._free_body()
        self.finished = True
        self.listener = NOBODY


def detached(exchange: Exchange, translation: BackgroundTranslation, sink: EventSink) -> DetachedExchange:
    """The exchange that goes on for another one. What is reserved for a large body is reserved for it from now on."""
    made = DetachedExchange(
        exchange._connection,
        exchange.head,
        exchange.client,
        complete=True,
        task=exchange.task,
        body_reserved=exchange.body_reserved,
        body_tenant=exchange.body_tenant,
        translation=translation,
        own=exchange.own,
        sink=sink,
        told_by=translation,
    )
    exchange.body_reserved = 0
    return made
