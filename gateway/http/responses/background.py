"""What callers see of a Response in the background: its translation while it is made, its events later, and its end from outside.

Sans-io. The events are stored as they were written, so replaying them is to cut them at a number.
"""

from typing import Final

import msgspec

from domain.faults import Fault
from gateway.http.faults import ROWS, Rendered
from gateway.http.responses import ResponsesTranslation
from gateway.http.responses.stream import code_of
from tenancy.background import BackgroundResponse, BackgroundStatus, EventBatch

END_OF_EVENT: Final = b"\n\n"
"""Behind each event. No event has it inside: JSON writes line breaks as escapes."""
ENDS: Final[dict[bytes, BackgroundStatus]] = {
    b"event: response.completed\n": "completed",
    b"event: response.incomplete\n": "incomplete",
    b"event: response.failed\n": "failed",
}
"""How the last event begins, and what it says of its Response."""
CANCELLED_EVENT: Final = b"response.incomplete"
"""The last event of a cancelled Response, whose `status` in it is `cancelled`: the API has no event of its own for that."""


class _ToldResponse(msgspec.Struct, gc=False):
    """An event that tells of the whole Response."""

    response: msgspec.Raw


_decode_told = msgspec.json.Decoder(_ToldResponse).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class BackgroundTranslation(ResponsesTranslation):
    """The translation of a request whose caller has its reply already: a fault is told by an event, and not by a status.

    Args:
        asked: the translation of the request, which is not used any more.
    """

    __slots__ = ()

    def __init__(self, asked: ResponsesTranslation) -> None:
        for name in ResponsesTranslation.__slots__:
            setattr(self, name, getattr(asked, name))

    def refusal(self, fault: Fault, request_id: str) -> Rendered:
        """The event that ends the Response."""
        return Rendered(ROWS[fault.kind].status, (), self.broken(fault, request_id))


def count_events(events: bytes) -> int:
    """How many events there are."""
    return events.count(END_OF_EVENT)


def events_after(batch: EventBatch, number: int) -> bytes:
    """The events of a batch whose sequence numbers are above this one."""
    left = number + 1 - batch.first
    if left <= 0:
        return batch.events
    return b"".join([event + END_OF_EVENT for event in batch.events.split(END_OF_EVENT)[left:-1]])


def end_told_by(event: bytes) -> tuple[BackgroundStatus, bytes]:
    """The state and the Response that the last event of a Response tells of."""
    head, _, data = event.partition(b"data: ")
    return ENDS[head], bytes(_decode_told(data).response)


def ended_from_outside(seen: BackgroundResponse, fault: Fault | None) -> tuple[BackgroundResponse, bytes]:
    """The end of a Response that its worker does not end, and the event that tells of it.

    Args:
        seen: the Response as it is stored.
        fault: why it failed; None where it is cancelled.
    """
    status: BackgroundStatus = "cancelled" if fault is None else "failed"
    members = {**_decode_members(seen.response), "status": msgspec.Raw(_encode(status))}
    if fault is not None:
        members["error"] = msgspec.Raw(_encode({"code": code_of(fault), "message": fault.message}))
    response = _encode(members)
    name = CANCELLED_EVENT if fault is None else b"response.failed"
    number = seen.last + 1
    event = b'event: %b\ndata: {"type":"%b","sequence_number":%d,"response":%b}\n\n' % (name, name, number, response)
    ended = msgspec.structs.replace(seen, status=status, last=number, lease_until_unix=0.0, response=response)
    return ended, event
