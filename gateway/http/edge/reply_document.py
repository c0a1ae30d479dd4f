"""The parts of an engine's reply that decide anything: a streamed event or a whole body as a typed struct that skips the rest.

Each event is decoded once. That is cheaper than searching the bytes for the four things we must see, and it means no byte
reaches a caller that was not valid JSON (`docs/explanation/decisions/0002-one-typed-decode-per-event.md`).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from domain.ask import Endpoint
from domain.usage import Usage

NOT_A_REPLY: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that the decoders raise."""


MAX_TOKENS: Final = 10**18
"""A count beyond it, in either direction, is taken as this one: numbers of JSON have any length."""


def _short(count: int | None) -> int:
    if count is None:
        return 0
    return count if -MAX_TOKENS <= count <= MAX_TOKENS else MAX_TOKENS if count > 0 else -MAX_TOKENS


class _TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ReportedUsage(msgspec.Struct, gc=False):
    """Token counts as engines write them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    total_tokens: int | None = None
    """The one count that some engines report where nothing is generated."""
    prompt_tokens_details: _TokenDetails | None = None
    input_tokens_details: _TokenDetails | None = None
    """The name of `prompt_tokens_details` in newer APIs (routers no. 31)."""
    completion_tokens_details: _TokenDetails | None = None
    reasoning_tokens: int | None = None

    @property
    def _prompt_of_total(self) -> int:
        """The prompt's part of the total; 0 where there is no total either."""
        return max(0, (self.total_tokens or 0) - (self.completion_tokens or 0))

    def value(self) -> Usage:
        """The counts as the engine wrote them, however wrong they are: `gateway.request.usage_check` compares them with the request."""
        return self.counts()[0]

    def counts(self) -> tuple[Usage, int | None]:
        """The `value`, and the prompt tokens that were in the prefix cache; None where the engine does not say, which is not zero."""
        prompt_details = self.prompt_tokens_details or self.input_tokens_details
        cached = None if prompt_details is None else prompt_details.cached_tokens
        if cached is not None:
            cached = _short(cached if cached < self.prompt_tokens else self.prompt_tokens)
            if cached < 0:
                cached = 0
        details = self.completion_tokens_details
        reasoning = self.reasoning_tokens if details is None else details.reasoning_tokens
        prompt = _short(self.prompt_tokens or self._prompt_of_total)
        return Usage(prompt, _short(self.completion_tokens), cached or 0, _short(reasoning)), cached


class UsageOfChoices(msgspec.Struct, eq=False):
    """The usage of a stream whose engine reports that of each choice by itself (llama.cpp)."""

    choices: int
    """The choices of the answer."""
    prompts: int
    """The prompts of the request; each has as many choices as every other one."""
    reported: list[tuple[Usage, int | None]] = msgspec.field(default_factory=list)
    """The reports so far, with the cached prompt tokens of each where the engine says them."""

    def sum_with(self, usage: Usage, cached: int | None) -> tuple[Usage | None, int | None]:
        """The usage of the answer with one more report, and its cached prompt tokens; None before the last choice is reported, so that a
        stream that ends early is billed by what was delivered. A prompt of several choices counts once."""
        self.reported.append((usage, cached))
        if len(self.reported) < self.choices:
            return None, None
        copies = max(1, self.choices // max(1, self.prompts))
        caches = [cached for _, cached in self.reported if cached is not None]
        known = sum(caches) // copies if len(caches) == len(self.reported) else None
        total = Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage, _ in self.reported) // copies,
            completion_tokens=sum(usage.completion_tokens for usage, _ in self.reported),
            cached_tokens=known or 0,
            reasoning_tokens=sum(usage.reasoning_tokens for usage, _ in self.reported),
        )
        return total, known


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    finish_reason: str | None = None


VALUE_BEGINS: Final[Mapping[str, bytes]] = {
    "embedding": b'["',
    "data": b'["',
    "probs": b"[",
    "relevance_score": b"-0123456789",
    "score": b"-0123456789",
    "value": b'["',
}
"""The first bytes of a value that is an answer, by member of an item (`Endpoint.item_fields`): a list, base64 or a number, never null."""


class _Item(msgspec.Struct, gc=False):
    index: int = 0
    embedding: msgspec.Raw = msgspec.Raw()
    """Of embeddings: a list of numbers or base64; `LongReply` keeps an empty list in its place."""
    data: msgspec.Raw = msgspec.Raw()
    probs: msgspec.Raw = msgspec.Raw()
    relevance_score: msgspec.Raw = msgspec.Raw()
    score: msgspec.Raw = msgspec.Raw()
    value: msgspec.Raw = msgspec.Raw()
    """The answer of a reply that has no items (`Endpoint.value_fields`)."""

    def is_whole(self, fields: Iterable[str]) -> bool:
        """Whether one of the members is there and is an answer."""
        return any([bytes(memoryview(getattr(self, field))[:1]) in _beginnings(field) for field in fields])


@cache
def _beginnings(field: str) -> frozenset[bytes]:
    return frozenset(bytes([byte]) for byte in VALUE_BEGINS[field])


class _MetaInfo(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None


class _ListedItem(_Item, gc=False):
    """An item of a reply that is nothing but a list of items, each with a usage of its own (SGLang)."""

    meta_info: _MetaInfo | None = None


class _ValueReply(msgspec.Struct, gc=False):
    """A reply whose answer is one value: token ids, or a text under the name that the engine has for it."""

    tokens: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
    error: Any = None
    object: str | None = None
    model: str | None = None


class ReplyDocument(msgspec.Struct, gc=False):
    """The parts of a chunk or a reply that decide; everything else is skipped, though it must be JSON."""

    choices: list[_Choice] | None = None
    data: list[_Item] | None = None
    """The answer of an endpoint that generates nothing; read from the field that `Endpoint.reply_field` names."""
    usage: ReportedUsage | UnsetType | None = UNSET
    error: Any = None
    object: str | None = None
    model: str | None = None
    prompt_progress: msgspec.Raw | UnsetType = UNSET
    """llama.cpp's word on how much of the prompt has been computed (`return_progress`)."""


class _PlainChoice(msgspec.Struct, gc=False):
    finish_reason: None = None


class PlainChunk(msgspec.Struct, gc=False):
    """A chunk that decides nothing: no finish reason, usage or error. Nearly all are; those that are not do not decode as this,
    so the decoder has looked at everything there was to look at."""

    object: Literal["chat.completion.chunk", "text_completion"]
    choices: list[_PlainChoice]
    usage: UnsetType | None = UNSET
    error: UnsetType = UNSET
    model: str | None = None
    prompt_progress: UnsetType = UNSET


class _SilentDelta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    role: str | None = None
    content: Literal[""] | None = None


class _SilentChoice(msgspec.Struct, gc=False):
    finish_reason: None = None
    delta: _SilentDelta | None = None
    text: Literal[""] | None = None


class _ProgressChunk(msgspec.Struct, gc=False):
    choices: list[_SilentChoice]
    usage: UnsetType = UNSET


_decode_progress = msgspec.json.Decoder(_ProgressChunk).decode
_decode_plain_chunk = msgspec.json.Decoder(PlainChunk).decode
_decode_document = msgspec.json.Decoder(ReplyDocument).decode
_decode_value = msgspec.json.Decoder(_ValueReply).decode


def _plain_decoder(endpoint: Endpoint) -> Callable[[bytes], ReplyDocument]:
    if endpoint.generates:
        return _decode_document
    if endpoint.value_fields:
        return lambda body: _document_of_value(_decode_value(body), endpoint.value_fields)
    # `rename` holds for the fields of a class itself, so the inherited one is written again
    items = [("data", list[_Item] | None, None)]
    renamed: Any = msgspec.defstruct("ReplyDocument", items, bases=(ReplyDocument,), rename={"data": endpoint.reply_field}, gc=False)
    if not endpoint.rewritten:
        decode: Callable[[bytes], ReplyDocument] = msgspec.json.Decoder(renamed).decode
        return decode
    either: Callable[[bytes], Any] = msgspec.json.Decoder(renamed | list[_ListedItem]).decode

    def decode_either(body: bytes) -> ReplyDocument:
        reply = either(body)
        return _document_of(reply) if isinstance(reply, list) else reply

    return decode_either


def _document_of(items: list[_ListedItem]) -> ReplyDocument:
    """A reply that is a list of items, as an object; its usage is the sum of theirs, unknown where one has none."""
    counts = [item.meta_info.prompt_tokens for item in items if item.meta_info is not None and item.meta_info.prompt_tokens is not None]
    usage = ReportedUsage(prompt_tokens=sum(counts)) if counts and len(counts) == len(items) else UNSET
    return ReplyDocument(data=list(items), usage=usage)


def _document_of_value(reply: _ValueReply, fields: tuple[str, ...]) -> ReplyDocument:
    """A reply whose answer is one value, as one with one item. It has no usage: nothing was computed that could be billed."""
    values: list[msgspec.Raw] = [value for field in fields if len(memoryview(value := getattr(reply, field)))]
    return ReplyDocument(data=[_Item(value=value) for value in values[:1]], error=reply.error, object=reply.object, model=reply.model)


_PLAIN_DECODERS: Final[Mapping[Endpoint, Callable[[bytes], ReplyDocument]]] = {endpoint: _plain_decoder(endpoint) for endpoint in Endpoint}


class _Function(msgspec.Struct, gc=False):
    name: Any = None
    arguments: Any = None


class _Call(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Message(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: list[_Call] | None = None


class _SaidChoice(msgspec.Struct, gc=False):
    message: _Message | None = None
    text: Any = None


class _SaidReply(msgspec.Struct, gc=False):
    choices: list[_SaidChoice] | None = None


_decode_said = msgspec.json.Decoder(_SaidReply).decode


def said_bytes(body: bytes) -> int:
    """The bytes of the text that a plain reply generated: contents, reasoning and calls of tools. 0 where it has none that is known."""
    try:
        reply = _decode_said(body)
    except NOT_A_REPLY:
        return 0
    total = 0
    for choice in reply.choices or ():
        message = choice.message or _Message()
        calls = [call.function for call in message.tool_calls or () if call.function is not None]
        total += sum(map(_text_bytes, (choice.text, message.content, message.reasoning_content, message.reasoning, message.refusal)))
        total += sum(_text_bytes(call.name) + _text_bytes(call.arguments) for call in calls)
    return total


def _text_bytes(value: object) -> int:
    """The bytes of a text, or of the texts of a list of parts."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, list):
        return sum(_text_bytes(part.get("text")) for part in value if isinstance(part, dict))
    return 0


# msgspec does not look into strings that it skips, so UTF-8 is checked apart; for ASCII, which JSON from engines mostly is, that
# is one fast scan.


def decode_document(data: bytes) -> ReplyDocument:
    """A streamed event's payload. Raises one of `NOT_A_REPLY`."""
    if not data.isascii():
        data.decode()
    return _decode_document(data)


def decode_plain_reply(body: bytes, endpoint: Endpoint) -> ReplyDocument:
    """The whole body of a reply that is not streamed. Raises one of `NOT_A_REPLY`."""
    if not body.isascii():
        body.decode()
    return _PLAIN_DECODERS[endpoint](body)


def is_silent(data: bytes) -> bool:
    """Whether a streamed event tells nothing of the answer: no text, no call, no end, no usage."""
    try:
        _decode_progress(data)
    except NOT_A_REPLY:
        return False
    return True


def plain_chunk(data: bytes) -> PlainChunk | None:
    """A streamed event's payload as a chunk with which nothing ends and nothing is reported; None if it is anything else."""
    try:
        if not data.isascii():
            data.decode()
        return _decode_plain_chunk(data)
    except NOT_A_REPLY:
        return None
