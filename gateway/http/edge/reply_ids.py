"""Gives replies the gateway's own id: that of an engine may be a count of its replies, and so tell each caller how much all others send.

vLLM makes the `id` of a reply from the id of the request that the gateway sends it (`Dialect.ids_from_requests`); other engines draw their
own. Their replies pass `IdTap`. It looks for the exact text in which the engine wrote its id, learnt from the first document of the reply,
so that most events cost one search; ids inside a reply, as those of tool calls, stay as they are.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.ask import Endpoint
from domain.faults import Fault

PREFIXES: Final[Mapping[Endpoint, str]] = {
    Endpoint.CHAT: "chatcmpl-",
    Endpoint.COMPLETIONS: "cmpl-",
    Endpoint.EMBEDDINGS: "embd-",
    Endpoint.RERANK: "rerank-",
    Endpoint.SCORE: "score-",
    Endpoint.CLASSIFY: "classify-",
    Endpoint.POOLING: "pool-",
    Endpoint.TOKENIZE: "tokn-",
    Endpoint.DETOKENIZE: "tokn-",
    Endpoint.TRANSCRIPTIONS: "trsc-",
    Endpoint.TRANSLATIONS: "trsl-",
    Endpoint.SPEECH: "speech-",
    Endpoint.REALTIME: "sess-",
}
"""What clients know the ids of each endpoint by; vLLM writes the same."""

_DATA: Final = b"data: "
_END: Final = b"\n\n"
_SPELLINGS: Final = (b'"id":', b'"id": ')
_MEMBER: Final = re.compile(rb'("id"\s*+:\s*+)(?:"(?:[^"\\]|\\.)*+"|null)', re.DOTALL)
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


def reply_id(endpoint: Endpoint, own_id: str) -> str:
    """The `id` of a reply, made from the gateway's own id of its request."""
    return PREFIXES[endpoint] + own_id


class IdTap:
    """Gives a reply the gateway's id in place of the engine's; a reply without an `id` stays without one.

    Stands behind a judging tap, so it is fed whole events or a whole body; of a reply that generates nothing also pieces of a long body,
    which has no other `id` inside.
    """

    __slots__ = ("_events", "_new", "_old", "_value", "_whole")

    over = False
    fault: Fault | None = None

    def __init__(self, endpoint: Endpoint, own_id: str, *, stream: bool) -> None:
        self._value = _encode(reply_id(endpoint, own_id))
        self._events = stream
        self._whole = endpoint.generates
        self._old = b""
        """The member `id` as the engine spells it; empty as long as it is not known."""
        self._new = b'"id":' + self._value

    def feed(self, data: bytes) -> bytes:
        """Whole events, a whole body or a piece of a long one in, the same with the gateway's id out."""
        if not self._whole:
            return _MEMBER.sub(rb"\1" + self._value, data) if b'"id"' in data else data
        if not self._events:
            return self._renamed(data)
        if data.count(_END) == 1 and data.startswith(_DATA):
            return self._event(data)
        return b"".join(self._event(event + _END) for event in data.split(_END) if event)

    def end(self) -> bytes:
        """Nothing is ever held."""
        return b""

    def _event(self, event: bytes) -> bytes:
        if self._old and self._old in event:
            return event.replace(self._old, self._new, 1)
        if not event.startswith(b"data: {"):
            return event  # a heartbeat, or `[DONE]`
        return b"data: %b\n\n" % self._renamed(event[len(_DATA) : -len(_END)])

    def _renamed(self, document: bytes) -> bytes:
        """One JSON object with the gateway's id."""
        members: dict[str, Any] = _decode(document)
        if "id" not in members:
            return document
        written = bytes(members["id"])
        for spelling in _SPELLINGS:
            # at the beginning only: further inside it may be another object's
            if written.startswith(b'"') and document.startswith(b"{" + spelling + written):
                self._old, self._new = spelling + written, spelling + self._value
                return document.replace(self._old, self._new, 1)
        members["id"] = msgspec.Raw(self._value)
        return _encode(members)
