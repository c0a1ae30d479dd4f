"""Anthropic's Messages API, translated: clients that speak it, as Claude Code does, use any model of the fleet.

`request.py` and `blocks.py` make a chat of the request, `reply.py` and `stream.py` a Message of the chat's reply, `faults.py` has the shape
of errors, `models.py` that of the model list, and `headers.py` the names of headers.
"""

from collections.abc import Callable
from typing import Final

from domain.faults import Fault
from gateway.http.anthropic.faults import render_broken, render_refusal
from gateway.http.anthropic.headers import reply_lines
from gateway.http.anthropic.reply import message_of
from gateway.http.anthropic.request import MessagesRequest, chat_of, in_callers_words
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.anthropic.stream import MessageStream
from gateway.http.faults import Rendered

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"


class AnthropicReplies:
    """A `gateway.http.edge.translation.Translation` of what the gateway answers itself: the names of headers and the shape of errors.

    Args:
        path: the route, as records, metrics and the access log name it.
        wall: the time in seconds since the epoch.
    """

    __slots__ = ("_read", "_signer", "_wall", "path")

    earlier: str = ""
    keeps: bool = False
    """Nothing of this API is stored."""

    def __init__(self, path: str, signer: ThinkingSigner, wall: Callable[[], float]) -> None:
        self.path = path
        self._signer = signer
        self._wall = wall
        self._read: MessagesRequest | None = None
        """The request, once it was translated: only faults behind that name fields of the chat."""

    def request(self, body: bytes) -> bytes:
        """The chat whose prompt is counted. Raises Fault as `chat_of` does."""
        self._read = chat_of(body, self._signer, counts=True)
        return self._read.chat

    def released(self) -> bytes:
        """Nothing: nothing is held back."""
        return b""

    def headers(self, lines: bytes) -> bytes:
        """The header lines with the API's names of the request id and of limits."""
        return reply_lines(lines, self._wall)

    def plain(self, body: bytes) -> bytes:
        """The body as it is, for it was made for this API."""
        return body

    def feed(self, data: bytes) -> bytes:
        """The data as they are."""
        return data

    def refusal(self, fault: Fault, request_id: str) -> Rendered:
        """The error reply."""
        return render_refusal(fault if self._read is None else in_callers_words(fault, self._read.places), request_id)

    def broken(self, fault: Fault, request_id: str) -> bytes:
        """The error event."""
        return render_broken(fault, request_id)


class MessagesTranslation(AnthropicReplies):
    """A `gateway.http.edge.translation.Translation` of `POST /v1/messages`."""

    __slots__ = ("_stream",)

    def __init__(self, signer: ThinkingSigner, wall: Callable[[], float]) -> None:
        super().__init__(MESSAGES, signer, wall)
        self._stream: MessageStream | None = None

    def request(self, body: bytes) -> bytes:
        """The chat that the body stands for. Raises Fault as `chat_of` does."""
        self._read = chat_of(body, self._signer)
        if self._read.stream:
            self._stream = MessageStream(self._signer, manages_context=self._read.manages_context)
        return self._read.chat

    def plain(self, body: bytes) -> bytes:
        """The Message. Raises Fault: INVALID_REPLY for a reply that is none."""
        assert self._read is not None  # an answer has its request
        return message_of(body, self._signer, manages_context=self._read.manages_context)

    def feed(self, data: bytes) -> bytes:
        """The Message's events. Raises Fault: INVALID_REPLY for an event that is no part of an answer."""
        assert self._stream is not None  # only a streamed answer comes in pieces
        return self._stream.feed(data)
