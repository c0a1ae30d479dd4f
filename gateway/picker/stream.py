"""One stream of Envoy's external processing: a request and its answer, told message by message; the answers to the messages.

Sans-io: `PickingStream.take` gets a message and returns those to send back. The pick is made once the whole body is there, however it
comes:

- `BUFFERED`: the proxy sends the body in one message, after its head was answered. The choice goes back with the body.
- `FULL_DUPLEX_STREAMED`: pieces come at once, and nothing is answered before the last one; then head and body go back, the body in pieces.

Of the other modes none lets a picker see the body before the head goes on, so a proxy that is set to one is told so.
"""

from collections.abc import Collection
from typing import Any, Final, Protocol
from urllib.parse import unquote

from domain.faults import Fault, Kind
from gateway.http.data_port import usual
from gateway.http.edge.body_size import body_too_large
from gateway.http.edge.head import RequestHead
from gateway.http.faults import render
from gateway.picker import messages
from gateway.picker.messages import BODY_MODES, BUFFERED, FULL_DUPLEX_STREAMED, OVERWRITE_OR_ADD, ProcessingResponse
from gateway.picker.pick import DEFECT, PICKED, Pick, status_of

DESTINATION: Final = "x-gateway-destination-endpoint"
NAMESPACE: Final = "envoy.lb"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
MOST_HEADERS: Final = 1000
MOST_HEAD_BYTES: Final = 64 * 1024
"""What a request's head may have, names and values together."""
SERVED: Final = "x-gateway-destination-endpoint-served"
PIECE_BYTES: Final = 60 * 1024
"""Bytes of a body in one message to the proxy: its own buffer for a stream is some 64 KiB."""


class OutOfTurnError(Exception):
    """A message that cannot come now, or a mode in which nothing can be picked; the text is for whoever set up the proxy."""


class Picks(Protocol):
    """Makes picks."""

    async def pick(self, head: RequestHead, body: bytes, subset: Collection[str] | None, *, sees_answer: bool) -> Pick:
        """See `gateway.picker.pick.EndpointPicker`."""
        ...

    def count(self, outcome: str) -> None:
        """Count the outcome of a pick."""
        ...


class HeldBytes:
    """The bytes of all bodies that a worker holds for its picks, and how many there may be, of one and of all."""

    def __init__(self, most: int, most_of_all: int) -> None:
        self.most: Final = most
        self.most_of_all: Final = most_of_all
        self.held = 0


class PickingStream:
    """One request of the proxy, from its head to the end of its answer."""

    def __init__(self, picks: Picks, held: HeldBytes) -> None:
        self._picks = picks
        self._held = held
        self._head: RequestHead | None = None
        self.request_id = ""
        """By which the caller and the logs know the request; empty where the proxy gives none."""
        self._subset: frozenset[str] | None = None
        self._mode = FULL_DUPLEX_STREAMED
        self._answer_mode = messages.NONE
        self._body: list[bytes] = []
        self._size = 0
        self._pick: Pick | None = None
        self.refused = False
        """The proxy was told to answer by itself; nothing more is to be said."""

    @property
    def has_pick(self) -> bool:
        """Whether the request has its engine: nothing depends on us any more."""
        return self._pick is not None

    async def take(self, message: Any) -> list[Any]:
        """The answers to one message, in their order.

        Raises:
            OutOfTurnError: the proxy does not keep to the protocol, or is set up so that nothing can be picked.
        """
        turn = message.WhichOneof("request")
        if turn is None or self.refused:
            return []
        if turn == "request_headers":
            return await self._take_head(message)
        if self._head is None:
            raise OutOfTurnError(f"{turn} came before request_headers; set request_header_mode: SEND")
        if turn == "request_body":
            return await self._take_body(message.request_body)
        if turn == "request_trailers":
            if self._pick is not None:
                return [ProcessingResponse(request_trailers={})]
            return [*await self._chosen(ends=False), *([] if self.refused else [ProcessingResponse(request_trailers={})])]
        if self._pick is None:
            return [_empty(turn)]  # an answer of the proxy's own, to a request that was not complete
        self._tell(turn, message, self._pick)
        return self._passed(turn, message)

    async def _take_head(self, message: Any) -> list[Any]:
        if self._head is not None:
            raise OutOfTurnError("request_headers came twice")
        if message.HasField("protocol_config"):
            self._mode = message.protocol_config.request_body_mode
            self._answer_mode = message.protocol_config.response_body_mode
        if _is_large(message.request_headers.headers):
            text = f"The head has more than {MOST_HEADERS} headers or {MOST_HEAD_BYTES} bytes. Send fewer headers, or shorter ones."
            return self._refusal(Fault(Kind.HEADERS_TOO_LARGE, text))
        headers = _headers(message.request_headers.headers)
        self._head = _head_of(headers)
        self.request_id = self._head.request_id() or ""
        self._subset = _subset(message.metadata_context)
        if message.request_headers.end_of_stream:
            return (await self._chosen(ends=True))[:1]  # there is no body to answer
        if self._mode not in (BUFFERED, FULL_DUPLEX_STREAMED):
            mode = BODY_MODES[self._mode] if self._mode < len(BODY_MODES) else str(self._mode)
            raise OutOfTurnError(f"the proxy has request_body_mode: {mode}; set FULL_DUPLEX_STREAMED, or BUFFERED")
        return [ProcessingResponse(request_headers={})] if self._mode == BUFFERED else []

    async def _take_body(self, piece: Any) -> list[Any]:
        if self._pick is not None:
            raise OutOfTurnError("request_body came after the end of the request")
        self._size += len(piece.body)
        held = self._held
        if self._size > held.most:
            return self._refusal(body_too_large(None, held.most))
        if held.held + len(piece.body) > held.most_of_all:
            return self._refusal(Fault(Kind.OVERLOADED, "Too many large requests are under way. Send the request again."))
        held.held += len(piece.body)
        self._body.append(piece.body)
        if piece.end_of_stream or self._mode == BUFFERED:  # where trailers follow, a body that is whole does not end the stream
            return await self._chosen(ends=True)
        return []

    async def _chosen(self, *, ends: bool) -> list[Any]:
        """The answers to a request that is complete: the choice, or the refusal.

        Args:
            ends: whether the body ends the request; else trailers do.
        """
        assert self._head is not None
        whole = b"".join(self._body)
        try:
            pick = self._pick = await self._picks.pick(self._head, whole, self._subset, sees_answer=self._answer_mode != messages.NONE)
        except Fault as fault:
            return self._refusal(fault)
        finally:
            self._free()
        self._picks.count(PICKED)
        changed = pick.body != whole
        path = self._head.headers.get(b":path", b"").decode("latin-1").partition("?")[0]  # as it came: the proxy sends that spelling
        common = _choice(pick, path, changed=changed)
        if self._mode == BUFFERED and self._size:
            if changed:
                common["body_mutation"] = {"body": pick.body}
            pick.body = b""
            return [ProcessingResponse(request_body={"response": common}, dynamic_metadata=_metadata(pick))]
        sent, pick.body = pick.body, b""
        pieces = [sent[at : at + PIECE_BYTES] for at in range(0, len(sent), PIECE_BYTES)] or [b""]
        last = len(pieces) - 1
        return [
            ProcessingResponse(request_headers={"response": common}, dynamic_metadata=_metadata(pick)),
            *[_streamed("request_body", piece, ends=ends and at == last) for at, piece in enumerate(pieces)],
        ]

    def _tell(self, turn: str, message: Any, pick: Pick) -> None:
        """Tell the pick of a part of its answer."""
        if turn == "response_headers":
            headers = _headers(message.response_headers.headers)
            status = headers.get(b":status", b"")
            pick.answered(int(status) if status.isdigit() else 0, headers, _served(message.metadata_context))
            ends = message.response_headers.end_of_stream
        elif turn == "response_body":
            pick.feed(message.response_body.body)
            ends = message.response_body.end_of_stream
        else:
            ends = True
        if ends:
            pick.whole()

    def _passed(self, turn: str, message: Any) -> list[Any]:
        """Lets a part of the answer go on as it came."""
        if turn == "response_body" and self._answer_mode == FULL_DUPLEX_STREAMED:
            return [_streamed(turn, message.response_body.body, ends=message.response_body.end_of_stream)]
        return [_empty(turn)]

    def _refusal(self, fault: Fault) -> list[Any]:
        """The answer that the proxy is to give in place of an engine."""
        self.refused = True
        self._free()
        instead, outcome = status_of(fault)
        self._picks.count(outcome)
        rendered = render(fault, self.request_id)
        headers = [_header(name.decode(), value) for name, value in rendered.headers if value]
        immediate = {
            "status": {"code": instead or rendered.status},
            "headers": {"set_headers": headers},
            "body": rendered.body,
            "details": f"tidegate_{fault.kind.value}",
        }
        return [ProcessingResponse(immediate_response=immediate)]

    def failed(self, message: Any) -> list[Any]:
        """The answers to a message over which something failed here: a 500 for the caller where no engine is chosen yet. Later nothing
        depends on us any more, and the answer passes.
        """
        turn = message.WhichOneof("request")
        if self._pick is not None and turn.startswith("response_"):
            self._picks.count(DEFECT)
            return self._passed(turn, message)
        return self._refusal(Fault(Kind.INTERNAL, "Something failed on our side. Try again; if it stays, quote the request id."))

    def over(self) -> None:
        """The stream has ended, however it did: give back what is held for it."""
        self._free()
        if self._pick is not None:
            self._pick.over()

    def _free(self) -> None:
        self._held.held -= sum(map(len, self._body))
        self._body = []


def _headers(headers: Any) -> dict[bytes, bytes]:
    """Headers by name; those that come several times are joined by a comma. New proxies write values as bytes, old ones as texts."""
    read: dict[bytes, list[bytes]] = {}
    for header in headers.headers:
        value = header.raw_value or header.value.encode("utf-8", "replace")
        read.setdefault(header.key.lower().encode("latin-1", "replace"), []).append(value)
    return {name: b", ".join(values) for name, values in read.items()}


def _is_large(headers: Any) -> bool:
    """Whether a head has more headers or bytes than is allowed."""
    found = headers.headers
    return len(found) > MOST_HEADERS or sum([len(each.key) + len(each.raw_value) + len(each.value) for each in found]) > MOST_HEAD_BYTES


def _head_of(headers: dict[bytes, bytes]) -> RequestHead:
    target, _, query = headers.get(b":path", b"").decode("latin-1").partition("?")
    path, deployment = usual(target)
    method = headers.get(b":method", b"").decode("latin-1")
    if headers.get(b"content-encoding", b"identity") == b"identity":
        return RequestHead(method, path, headers, None, chunked=False, keep_alive=True, deployment=unquote(deployment), query=query)
    return RequestHead(method, path, headers, None, chunked=False, keep_alive=True, coding="packed", query=query)


def _values(metadata: Any, namespace: str, key: str) -> Any | None:
    """The value of a key in a namespace of the proxy's metadata; None where it is not there."""
    for entry in metadata.filter_metadata:
        if entry.key == namespace:
            for field in entry.value.fields:
                if field.key == key:
                    return field.value
    return None


def _subset(metadata: Any) -> frozenset[str] | None:
    """The endpoints among which the proxy wants one, IPv6 without brackets; None where it does not say. An empty list allows none."""
    value = _values(metadata, SUBSET_NAMESPACE, SUBSET)
    if value is None:
        return None
    is_text = value.WhichOneof("kind") == "string_value"
    texts = value.string_value.split(",") if is_text else [each.string_value for each in value.list_value.values]
    return frozenset([text.strip().replace("[", "").replace("]", "") for text in texts if text.strip()])


def _served(metadata: Any) -> str:
    value = _values(metadata, NAMESPACE, SERVED)
    return "" if value is None else str(value.string_value)


def _header(name: str, value: bytes) -> dict[str, Any]:
    return {"header": {"key": name, "raw_value": value}, "append_action": OVERWRITE_OR_ADD}


def _choice(pick: Pick, path: str, *, changed: bool) -> dict[str, Any]:
    """What the proxy changes in the head: the endpoint, and length and path where they are not as they came."""
    headers = [_header(DESTINATION, ",".join(pick.endpoints).encode())]
    if changed:
        headers.append(_header("content-length", b"%d" % len(pick.body)))
    if pick.path != path:
        headers.append(_header(":path", pick.path.encode()))
    return {"header_mutation": {"set_headers": headers}, "clear_route_cache": True}


def _metadata(pick: Pick) -> dict[str, Any]:
    choice = {"key": DESTINATION, "value": {"string_value": ",".join(pick.endpoints)}}
    return {"fields": [{"key": NAMESPACE, "value": {"struct_value": {"fields": [choice]}}}]}


def _streamed(turn: str, body: bytes, *, ends: bool) -> Any:
    mutation = {"streamed_response": {"body": body, "end_of_stream": ends}}
    return ProcessingResponse(**{turn: {"response": {"body_mutation": mutation}}})


def _empty(turn: str) -> Any:
    """Go on, with nothing changed."""
    return ProcessingResponse(**{turn: {}})
