"""OpenAI's Responses API (`POST /v1/responses`) in front of a chat: sans-io, bytes in and bytes out.

`request.py` translates the request with `items.py` and `tools.py`, `reply.py` a whole reply and `stream.py` the events of a stream;
`kept.py` has the form of what is stored, `conversations.py` that of conversations, `background.py` what callers see of a Response that is
made without them. Who reads and writes that is `gateway/request/response_state.py`: the end of a Response that is to be stored is held back
until it is. Docs: `docs/reference/api.md`, `docs/reference/responses-state.md`, `docs/reference/conversations.md`.
"""

from collections.abc import Callable
from typing import Any, Final

from domain.faults import Fault
from domain.identity import TenantId
from gateway.http.faults import Rendered, render
from gateway.http.responses.conversations import answered_items, check_ids, read_items
from gateway.http.responses.kept import conversation, stored_items
from gateway.http.responses.reply import ResponseFrame, plain_reply
from gateway.http.responses.request import ResponseAsk, fields_of, in_callers_words, translated
from gateway.http.responses.stream import ResponseStream
from policies.schema import ResponsesPolicy
from tenancy.conversations import AddedItems, WholeConversation
from tenancy.responses import ResponseChain, StoredResponse

PATH: Final = "/v1/responses"
INPUT_TOKENS: Final = "/v1/responses/input_tokens"
DAY_S: Final = 86_400
NOTHING_BEFORE: Final = ResponseChain((), 0)


class ResponsesTranslation:
    """One request and its reply, a `Translation` of the edge. `request` comes first, `refusal` may come before it.

    Args:
        created: the time in Unix seconds.
        new_id: a new id, in hexadecimal digits.
        behind_prompt: whether a prompt of the registry comes in front of the request's messages.
    """

    __slots__ = (
        *("_before", "_behind_prompt", "_created", "_fields", "_frame", "_items", "_new_id", "_size", "_stream"),
        *("appends", "background", "conversation", "earlier", "streams", "terms"),
    )

    path: str = PATH

    def __init__(self, created: Callable[[], int], new_id: Callable[[], str], *, behind_prompt: bool = False) -> None:
        self._behind_prompt = behind_prompt
        self._created = created
        self._new_id = new_id
        self._frame: ResponseFrame | None = None
        self._stream: ResponseStream | None = None
        self._fields: dict[str, Any] = {}
        self._size = 0
        """The bytes of the request's body."""
        self._before = NOTHING_BEFORE
        self._items = b""
        self.earlier = ""
        self.background = False
        """Whether the Response is made without its caller."""
        self.streams = False
        """Whether the caller of such a Response reads its events."""
        self.conversation = ""
        """The id of the conversation that the request continues; empty for none. It is `earlier` then."""
        self.appends: ResponsesPolicy | None = None
        """How what the Response adds to the conversation is kept; None where it adds to none."""
        self.terms: ResponsesPolicy | None = None
        """How the Response is stored; None where it is not."""

    def request(self, body: bytes) -> bytes:
        """The body of the chat that the request's body stands for; nothing yet where it continues an `earlier` Response (`continuing`)
        or a conversation (`within`).

        Raises:
            Fault: INVALID_JSON, or MISSING_PARAMETER, INVALID_VALUE or UNSUPPORTED_PARAMETER with the path of the field.
        """
        self._fields, self._size = fields_of(body), len(body)
        self.conversation = self._fields.get("conversation", "")
        self.earlier = self.conversation or self._fields.get("previous_response_id", "")
        return b"" if self.earlier else self.continuing(NOTHING_BEFORE)

    def continuing(self, before: ResponseChain) -> bytes:
        """The body of the chat with the conversation that the request continues in front. Raises Fault as `request`."""
        self._before = before
        return self._begun(translated(self._fields, self._size + before.bytes, conversation(before.turns)))

    def within(self, whole: WholeConversation) -> bytes:
        """The body of the chat with the items of the request's conversation in front. Raises Fault as `request`."""
        ask = translated(self._fields, self._size + whole.bytes, read_items(whole.items), "conversation")
        check_ids(self._fields["input"], {one.id for one in whole.items}, "input")
        return self._begun(ask)

    def _begun(self, ask: ResponseAsk) -> bytes:
        self._frame = ResponseFrame(ask, self._created(), self._created, self._new_id, b"resp_" + self._new_id().encode())
        self.background = bool(self._fields.get("background"))
        self.streams = bool(self._fields.get("stream"))
        return ask.chat

    def wants_storing(self, policy: ResponsesPolicy | None) -> bool:
        """Whether the Response is to be stored: the policy allows it, and the request or the policy's default asks for it."""
        return policy is not None and bool(self._fields.get("store", policy.store))

    def wants_appending(self) -> bool:
        """Whether the input and the output are to be added to a conversation."""
        return bool(self.conversation)

    def store(self, terms: ResponsesPolicy | None, appends: ResponsesPolicy | None = None) -> None:
        """Say how the Response will be stored, before any of it is written; None where it is not.

        Args:
            appends: how what it adds to its conversation is kept; None where it adds to none.
        """
        self.appends = appends
        if terms is not None or appends is not None:
            self.terms = terms
            frame = self._asked()
            frame.keeps, frame.unstored = True, terms is None
            self._items = stored_items(self._fields["input"], self._new_id)
        self._fields = {}  # large, and not needed any more
        self._before = ResponseChain(self._before.turns[-1:], self._before.bytes)

    def stored(self, tenant: TenantId, began_unix: float, end_user: str) -> StoredResponse:
        """What is to be stored, once the answer is whole."""
        frame, terms = self._asked(), self.terms
        assert terms is not None
        last = self._before.turns[-1] if self._before.turns else None
        return StoredResponse(
            id=frame.id.decode(),
            tenant=tenant,
            created_unix=began_unix,
            expires_unix=began_unix + terms.keep_days * DAY_S,
            previous=last.id if last is not None else "",
            turn=last.turn + 1 if last is not None else 0,
            bytes_before=self._before.bytes,
            end_user=end_user,
            response=frame.answered,
            items=self._items,
        )

    def queued(self) -> tuple[bytes, bytes, bytes]:
        """A Response in the background before an engine works for it: the Response, its input as it is stored, and its first events."""
        events = self._events().queued()
        return self._asked().queued(), self._items, events

    @property
    def response_id(self) -> str:
        """The id of the Response."""
        return self._asked().id.decode()

    def so_far(self) -> bytes:
        """A Response in the background with the items that are done."""
        return self._events().so_far()

    def added(self, tenant: TenantId, began_unix: float, end_user: str) -> AddedItems:
        """What is to be added to the conversation, once the answer is whole."""
        items = answered_items(self._items, self._asked().answered)
        return AddedItems(conversation=self.conversation, tenant=tenant, created_unix=began_unix, end_user=end_user, items=items)

    @property
    def keeps(self) -> bool:
        """Whether the end of the reply has to wait until the Response is stored, or added to its conversation."""
        return self.terms is not None or self.appends is not None

    def released(self) -> bytes:
        """The last event of a stream that was held back."""
        return b"" if self._stream is None else self._stream.released()

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
        """Take a piece of the chat's stream, cut anywhere, and return the events that it makes; the last ones with its `[DONE]`, but for
        that which is held back.

        Raises:
            Fault: INVALID_REPLY, an event of it cannot be read.
        """
        return (self._stream or self._events()).feed(data)

    def refusal(self, fault: Fault, request_id: str) -> Rendered:
        """The whole reply to a request that failed before a byte of its reply was out: OpenAI's error, with the caller's names."""
        if self._frame is not None:  # what was found before has the caller's names already
            fault = in_callers_words(fault, () if self._behind_prompt else self._frame.ask.places, self.names_earlier)
        return render(fault, request_id)

    def broken(self, fault: Fault, request_id: str) -> bytes:
        """The event that ends a stream which failed."""
        return self._events().broken(fault, request_id)

    def _events(self) -> ResponseStream:
        if self._stream is None:
            self._stream = ResponseStream(self._asked())
        return self._stream

    @property
    def names_earlier(self) -> str:
        """The parameter that names what the request continues."""
        return "conversation" if self.conversation else "previous_response_id"

    def _asked(self) -> ResponseFrame:
        if self._frame is None:
            raise RuntimeError("a reply before its request")
        return self._frame


class InputTokensTranslation(ResponsesTranslation):
    """A count of the tokens of a request that is not sent."""

    __slots__ = ()

    path: str = INPUT_TOKENS

    def wants_storing(self, policy: ResponsesPolicy | None) -> bool:
        """Never: a count is no Response."""
        return False

    def continuing(self, before: ResponseChain) -> bytes:
        """As of the request itself, which nobody runs."""
        chat = super().continuing(before)
        self.background = False
        return chat

    def wants_appending(self) -> bool:
        """Never, as it is not stored."""
        return False

    def plain(self, body: bytes) -> bytes:
        """The count with the name of its kind."""
        return b'{"object":"response.input_tokens",' + body[1:]
