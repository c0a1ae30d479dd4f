"""The reply to a request for an order of documents, written anew in the shape of Jina and Cohere.

vLLM and llama.cpp answer in nearly that shape, SGLang with a bare list of scores in which neither model nor usage stand. Callers of all of
them get one shape: `id`, `model`, `results` from the most relevant document on, each with its text as the engine got it, `usage` as Jina
has it and `meta` as Cohere has it. Members that an engine adds beside these stay.
"""

from typing import Any, Final

import msgspec

from domain.ask import Ask
from domain.faults import Fault
from gateway.http.edge.attempt_faults import unusable_reply
from gateway.http.edge.reply_chain import Metering
from gateway.http.edge.reply_ids import reply_id
from gateway.story import Story
from tenancy.estimate import likely_prompt

API_VERSION: Final = "2"
"""The version of Cohere's API in whose shape `meta` is."""


class _Ranked(msgspec.Struct, gc=False):
    index: int
    relevance_score: float | None = None
    score: float | None = None
    """SGLang's name of it."""

    @property
    def relevance(self) -> float:
        """The score under either name."""
        return self.relevance_score if self.relevance_score is not None else self.score or 0.0


class _Wanted(msgspec.Struct, gc=False):
    """What the request says of its reply."""

    documents: list[str]
    top_n: int | None = None
    return_documents: bool | None = None


_decode_results: Final = msgspec.json.Decoder(list[_Ranked]).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_wanted: Final = msgspec.json.Decoder(_Wanted).decode
_encode: Final = msgspec.json.Encoder().encode


class RerankTap:
    """The tap that holds the engine's whole reply back, and lets it go in the caller's shape.

    Args:
        judge: the tap in front, which bounds the reply, has judged it, and knows its usage.
    """

    __slots__ = ("_ask", "_judge", "_parts", "_story", "fault")

    over = False

    def __init__(self, ask: Ask, story: Story, judge: Metering) -> None:
        self._ask = ask
        self._story = story
        self._judge = judge
        self._parts: list[bytes] = []
        self.fault: Fault | None = None

    def feed(self, data: bytes) -> bytes:
        """Nothing goes on before the end."""
        self._parts.append(data)
        return b""

    def end(self) -> bytes:
        """The reply in the caller's shape."""
        ask, asked, usage = self._ask, self._story.asked, self._judge.usage
        tokens = likely_prompt(ask, asked.counted) if usage is None else usage.prompt_tokens
        try:
            return rerank_reply(ask, b"".join(self._parts), model=asked.model, own_id=self._story.own_id, tokens=tokens)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            self.fault = unusable_reply(f"results that cannot be read: {error}")
            return b""


def rerank_reply(ask: Ask, body: bytes, *, model: str, own_id: str, tokens: int) -> bytes:
    """An engine's whole reply in the caller's shape.

    Args:
        model: the name that the caller used.
        own_id: the gateway's own id of the request.
        tokens: the prompt tokens, as the engine reports them or else as estimated.

    Raises:
        ValueError: a result is about a document that the request does not have, or two are about the same one.
        MsgspecError: the results are not such.
    """
    wanted = _decode_wanted(ask.fields)
    listed = body.lstrip()[:1] == b"["
    members: dict[str, Any] = {} if listed else _decode_members(body)
    results = _decode_results(body if listed else members[ask.endpoint.reply_field])
    found = {result.index for result in results}
    if len(found) < len(results) or not all(0 <= index < len(wanted.documents) for index in found):
        raise ValueError(f"{len(results)} results, where the request has {len(wanted.documents)} documents")
    results.sort(key=lambda result: -result.relevance)
    ordered = [_written(result, wanted) for result in results[: wanted.top_n]]
    return _encode(
        {
            **members,
            "id": reply_id(ask.endpoint, own_id),
            "model": model,
            ask.endpoint.reply_field: ordered,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {"api_version": {"version": API_VERSION}, "tokens": {"input_tokens": tokens, "output_tokens": 0}},
        }
    )


def _written(result: _Ranked, wanted: _Wanted) -> dict[str, object]:
    written: dict[str, object] = {"index": result.index, "relevance_score": result.relevance}
    if wanted.return_documents is not False:
        written["document"] = {"text": wanted.documents[result.index]}
    return written
