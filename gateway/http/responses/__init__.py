"""OpenAI's Responses API (`POST /v1/responses`) in front of a chat, without state: sans-io, bytes in and bytes out.

`request.py` translates the request with `items.py` and `tools.py`, `reply.py` a whole reply and `stream.py` the events of a stream. What
needs an earlier response or the vendor's servers is refused by name. Docs: `docs/reference/api.md`.
"""

from collections.abc import Callable
from typing import Final

from domain.faults import Fault
from gateway.http.faults import Rendered, render
from gateway.http.responses.reply import ResponseFrame, plain_reply
from gateway.http.responses.request import in_callers_words, translated
from gateway.http.responses.stream import ResponseStream

PATH: Final = "/v1/responses"
INPUT_TOKENS: Final = "/v1/responses/input_tokens"


class ResponsesTranslation:
    """One request and its reply, a `Translation` of the edge. `request` comes first, `refusal` may come before it.

    Args:
        created: the time in Unix seconds.
        new_id: a new id, in hexadecimal digits.
        behind_prompt: whether a prompt of the registry comes in front of the request's messages.
    """

    __slots__ = ("_behind_prompt", "_created", "_frame", "_new_id", "_stream")

    path: str = PATH

    def __init__(self, created: Callable[[], int], new_id: Callable[[], str], *, behind_prompt: bool = False) -> None:
        self._behind_prompt = behind_prompt
        self._created = created
        self._new_id = new_id
        self._frame: ResponseFrame | None = None
        self._stream: ResponseStream | None = None

    def request(self, body: bytes) -> bytes:
        """The body of the chat that the request's body stands for.

        Raises:
            Fault: INVALID_JSON, or MISSING_PARAMETER, INVALID_VALUE or UNSUPPORTED_PARAMETER with the path of the field.
        """
        ask = translated(body)
        self._frame = ResponseFrame(ask, self._created(), self._created, self._new_id, b"resp_" + self._new_id().encode())
        return ask.chat

    def headers(self, lines: bytes) -> bytes:
        """The header lines, unchanged: both APIs are OpenAI's."""
        return lines

    def plain(self, body: bytes) -> bytes:
        """The Response for a chat's whole reply.

        Raises:
            Fault: INVALID_REPLY, the body is none.
        """
        return plain_reply(body, self._asked())

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the chat's stream, cut anywhere, and return the events that it makes; the last ones with its `[DONE]`.

        Raises:
            Fault: INVALID_REPLY, an event of it cannot be read.
        """
        stream = self._stream
        if stream is None:
            stream = self._stream = ResponseStream(self._asked())
        return stream.feed(data)

    def refusal(self, fault: Fault, request_id: str) -> Rendered:
        """The whole reply to a request that failed before a byte of its reply was out: OpenAI's error, with the caller's names."""
        if self._frame is not None:  # what was found before has the caller's names already
            fault = in_callers_words(fault, () if self._behind_prompt else self._frame.ask.places)
        return render(fault, request_id)

    def broken(self, fault: Fault, request_id: str) -> bytes:
        """The event that ends a stream which failed."""
        if self._stream is None:
            self._stream = ResponseStream(self._asked())
        return self._stream.broken(fault, request_id)

    def _asked(self) -> ResponseFrame:
        if self._frame is None:
            raise RuntimeError("a reply before its request")
        return self._frame


class InputTokensTranslation(ResponsesTranslation):
    """A count of the tokens of a request that is not sent."""

    __slots__ = ()

    path: str = INPUT_TOKENS

    def plain(self, body: bytes) -> bytes:
        """The count with the name of its kind."""
        return b'{"object":"response.input_tokens",' + body[1:]
