"""Chat completions that are stored (`store: true`): what is kept of each, and what is shown of it later. Sans-io, bytes in and bytes out.

`StoredChat` passes the reply on as it is and keeps a copy; of a stream that is the plain reply that it amounts to. The end of the reply is
held back until the completion is stored, as that of a Response is (`gateway/request/response_state.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.identity import TenantId
from domain.usage import Usage
from gateway.answers.documents import whole_reply
from gateway.http.faults import Rendered, render, render_event
from gateway.http.openai.checks import refuse, refuse_type
from gateway.http.openai.metadata import check_metadata
from policies.schema import ResponsesPolicy
from tenancy.responses import CHAT_PREFIX, StoredResponse

DAY_S: Final = 86_400
_DONE: Final = b"data: [DONE]\n\n"
_STORE: Final = "store"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_messages = msgspec.json.Decoder(list[dict[str, Any]]).decode


class _StoreAsked(msgspec.Struct, gc=False):
    """The members of a request that storing reads."""

    store: bool | None = None


_decode_store = msgspec.json.Decoder(_StoreAsked).decode


def wants_storing(ask: Ask) -> bool:
    """Whether a chat asks to be stored. Raises Fault: INVALID_VALUE for a `store` that is neither true nor false."""
    if _STORE not in ask.names or ask.endpoint is not Endpoint.CHAT:
        return False
    try:
        return bool(_decode_store(ask.behind_prompt).store)
    except msgspec.ValidationError:
        refuse_type("a boolean", _decode(ask.behind_prompt)[_STORE], _STORE)


class StoredChat:
    """One chat that is stored and its reply, a `Translation` of the edge that changes nothing.

    Args:
        ask: the request as its caller sent it.
        terms: how it is stored.

    Raises:
        Fault: INVALID_VALUE for metadata that cannot be stored.
    """

    __slots__ = ("_document", "_held", "_messages", "_metadata", "_stream", "terms", "usage")

    path: str = Endpoint.CHAT.path
    earlier = ""
    keeps = True

    def __init__(self, ask: Ask, terms: ResponsesPolicy) -> None:
        check_metadata(ask.metadata)
        self._metadata = ask.metadata
        self._messages = ask.prompt
        self._document = b""
        self._stream: list[bytes] = []
        self._held = b""
        self.terms = terms
        self.usage: Usage | None = None
        """What the engine counted; told before `stored`, for streams whose caller did not ask for it."""

    def request(self, body: bytes) -> bytes:
        """The body, which is a chat's already."""
        return body

    def headers(self, lines: bytes) -> bytes:
        """The header lines, unchanged."""
        return lines

    def plain(self, body: bytes) -> bytes:
        """The whole reply, unchanged."""
        self._document = body
        return body

    def feed(self, data: bytes) -> bytes:
        """Whole events of the stream, unchanged; its last one is held back."""
        self._stream.append(data)
        if data.endswith(_DONE):
            self._held = _DONE
            return data[: -len(_DONE)]
        return data

    def released(self) -> bytes:
        """The event that was held back."""
        return self._held

    def refusal(self, fault: Fault, request_id: str) -> Rendered:
        """The whole reply to a request that failed before a byte of its reply was out."""
        return render(fault, request_id)

    def broken(self, fault: Fault, request_id: str) -> bytes:
        """The events that end a stream which failed."""
        return render_event(fault, request_id)

    def stored(self, tenant: TenantId, began_unix: float, end_user: str) -> StoredResponse:
        """What is to be stored, once the answer is whole.

        Raises:
            Fault: INVALID_REPLY where it cannot be put together from its events, or has no id that it could be found by.
        """
        completion = self._completion()
        name = completion.get("id")
        if type(name) is not str or not name.startswith(CHAT_PREFIX):
            raise Fault(Kind.INVALID_REPLY, "The engine's answer cannot be stored. Send the request without 'store'.", detail="no id")
        if completion.get("usage") is None and self.usage is not None:
            usage = self.usage
            completion["usage"] = {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            }
        completion["metadata"] = self._metadata
        messages = [{"id": f"{name}-{at}", **message} for at, message in enumerate(_decode_messages(self._messages))]
        return StoredResponse(
            id=name,
            tenant=tenant,
            created_unix=began_unix,
            expires_unix=began_unix + self.terms.keep_days * DAY_S,
            end_user=end_user,
            response=_encode(completion),
            items=_encode(messages),
        )

    def _completion(self) -> dict[str, Any]:
        if not self._stream:
            return _decode(self._document)
        try:
            return whole_reply(Endpoint.CHAT, b"".join(self._stream))
        except ValueError as error:
            message = "The engine's answer cannot be stored. Send the request without 'store'."
            raise Fault(Kind.INVALID_REPLY, message, detail=str(error)) from None


def with_metadata(stored: StoredResponse, metadata: object) -> StoredResponse:
    """The completion with other metadata. Raises Fault: INVALID_VALUE, MISSING_PARAMETER."""
    if metadata is None:
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'metadata'.", param="metadata")
    check_metadata(metadata)
    return msgspec.structs.replace(stored, response=_encode({**_decode(stored.response), "metadata": metadata}))


def matches(stored: StoredResponse, model: str, metadata: Mapping[str, str]) -> bool:
    """Whether a completion is of a model (empty for any) and has these pairs of metadata."""
    if not (model or metadata):
        return True
    completion = _decode(stored.response)
    if model and completion.get("model") != model:
        return False
    pairs = completion.get("metadata") or {}
    return all(pairs.get(key) == value for key, value in metadata.items())


def completions_page(page: Sequence[StoredResponse], *, more: bool) -> bytes:
    """A page of completions, as the API lists them."""
    return _page([msgspec.Raw(stored.response) for stored in page], [stored.id for stored in page], more=more)


def messages_page(stored: StoredResponse, after: str, limit: int, *, newest_first: bool) -> bytes:
    """A page of the messages that a completion answers. Raises Fault: INVALID_VALUE where there is no message `after`."""
    messages = _decode_messages(stored.items)
    if newest_first:
        messages.reverse()
    names = [str(message["id"]) for message in messages]
    begin = 0
    if after:
        if after not in names:
            refuse("Invalid value for 'after': the completion has no such message.", "after")
        begin = names.index(after) + 1
    end = begin + limit
    return _page(messages[begin:end], names[begin:end], more=end < len(names))


def chat_deletion(name: str) -> bytes:
    """What says that a completion is deleted."""
    return _encode({"object": "chat.completion.deleted", "id": name, "deleted": True})


def _page(data: Sequence[object], names: Sequence[str], *, more: bool) -> bytes:
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None, "has_more": more}
    return _encode({"object": "list", "data": data, **ends})
