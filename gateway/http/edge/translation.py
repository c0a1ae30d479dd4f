"""A caller's API that is not a chat, translated at the edge: the request becomes a chat before anything else reads it, and the reply that
comes for the chat is written in the caller's API behind everything else. So limits, guard rules, the answer cache, routing and the ledger
have one form to know.

Each API has a package beside `gateway/http/openai/`, and its routes stand in `gateway/http/data_port.py`. A translation is sans-io: bytes
in, bytes out.
"""

from typing import Protocol

from domain.faults import Fault
from gateway.http.faults import Rendered


class Translation(Protocol):
    """One request of another API and its reply. Made when the head of the request is there."""

    path: str
    """The route, as records, metrics and the access log name it."""

    @property
    def earlier(self) -> str:
        """The id of an earlier reply that the request continues; empty for none, and before `request`."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether the end of the reply has to wait until what it tells of is stored; `feed` holds the last event back then."""
        ...

    def released(self) -> bytes:
        """The events that were held back."""
        ...

    def request(self, body: bytes) -> bytes:
        """The body of the chat that the request's body stands for, or nothing yet where it continues an `earlier` reply. It always asks for
        the usage of a stream.

        Raises:
            Fault: INVALID_JSON, or MISSING_PARAMETER, INVALID_VALUE or UNSUPPORTED_PARAMETER with the path of the field in the caller's
                API.
        """
        ...

    def headers(self, lines: bytes) -> bytes:
        """The header lines of a reply, as the caller's API names them."""
        ...

    def plain(self, body: bytes) -> bytes:
        """The whole reply in the caller's API.

        Args:
            body: the whole reply of the chat, judged: each choice has a known finish reason.

        Raises:
            Fault: INVALID_REPLY, it is no answer nevertheless.
        """
        ...

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the chat's stream, cut anywhere, and return the events that it makes; the last ones with its `[DONE]`.

        Raises:
            Fault: INVALID_REPLY, an event of it is no part of an answer.
        """
        ...

    def refusal(self, fault: Fault, request_id: str) -> Rendered:
        """The whole reply to a request that failed before a byte of its reply was out. Also before `request` was called."""
        ...

    def broken(self, fault: Fault, request_id: str) -> bytes:
        """The events that end a stream which failed."""
        ...
