"""Embeddings in the cache: each input by itself, so that an engine is asked only for the inputs that are not known. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from cache.answers import Answer
from domain.ask import Ask
from domain.faults import Fault
from domain.usage import Usage
from gateway.http.edge.attempt_faults import unusable_reply

MAX_MERGED_BYTES: Final = 64 * 1024**2
"""The longest reply of an engine into which known vectors are put; for a longer one, the engine is asked for everything."""
OF_AN_ITEM_BYTES: Final = 200
"""The bytes of an item of a reply beside its vector, at most."""

_decode_inputs = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class _Vector(msgspec.Struct, gc=False):
    index: int
    embedding: msgspec.Raw


class _PromptCount(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int = 0


class _VectorsReply(msgspec.Struct, gc=False):
    data: list[_Vector]
    usage: _PromptCount = _PromptCount()


_decode_reply = msgspec.json.Decoder(_VectorsReply).decode


class KnownInputs(msgspec.Struct, gc=False):
    """The inputs of one request, and what the cache has of them."""

    inputs: list[bytes]
    """Each input as JSON, in the order of the request."""
    keys: list[bytes]
    found: list[Answer | None]

    @property
    def known(self) -> list[Answer]:
        """What was found, each answer once for every input that it serves."""
        return [answer for answer in self.found if answer is not None]

    @property
    def wanted(self) -> list[bytes]:
        """The inputs that an engine is to be asked for, each once."""
        return list(dict.fromkeys([one for one, answer in zip(self.inputs, self.found, strict=True) if answer is None]))

    @property
    def saved(self) -> Usage:
        """The prompt tokens that no engine computes for this request."""
        return Usage(sum([answer.usage.prompt_tokens for answer in self.known]), 0)

    @property
    def is_worth_merging(self) -> bool:
        """Whether the engine is asked for a part of the inputs: some are known or stand there twice, and the rest fits in memory."""
        wanted = len(self.wanted)
        longest = max([len(answer.document) for answer in self.known], default=0)
        return wanted < len(self.inputs) and wanted * (2 * longest + OF_AN_ITEM_BYTES) <= MAX_MERGED_BYTES


def inputs_of(ask: Ask) -> list[bytes]:
    """The inputs of a request for embeddings, each a text or a list of token ids, as JSON."""
    value = ask.prompt
    if value[:1] != b"[":
        return [value]
    inputs = [bytes(one) for one in _decode_inputs(value)]
    return inputs if inputs[0][:1] in (b"[", b'"') else [value]


def asking_for(ask: Ask, inputs: Sequence[bytes]) -> Ask:
    """The request for some of its inputs."""
    prompt = b"[%b]" % b",".join(inputs)
    begin, end = ask.prompt_at
    tokens = None if ask.token_ids is None else sum([one.count(b",") + 1 for one in inputs])
    return msgspec.structs.replace(
        ask,
        fields=ask.fields[:begin] + prompt + ask.fields[end:],
        prompt_bytes=min(ask.prompt_bytes, sum([len(one) for one in inputs])),
        token_ids=tokens,
        prompt_at=(begin, begin + len(prompt)),
        items=len(inputs),
    )


def vectors_of(reply: bytes, inputs: int) -> list[bytes] | None:
    """The vectors of a whole reply as JSON, in the order of the inputs; None for a reply that has not just one for each input."""
    read = _read(reply, inputs)
    return None if read is None else read[0]


def _read(reply: bytes, inputs: int) -> tuple[list[bytes], int] | None:
    """The vectors, and the prompt tokens that the engine reports."""
    try:
        read = _decode_reply(reply)
    except msgspec.MsgspecError:
        return None
    by_index = {item.index: bytes(item.embedding) for item in read.data}
    if len(read.data) != inputs or len(by_index) != inputs or not all(at in by_index for at in range(inputs)):
        return None
    return [by_index[at] for at in range(inputs)], read.usage.prompt_tokens


def known_reply(known: KnownInputs, model: str) -> bytes:
    """The reply to a request whose inputs are all known."""
    return b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (
        _data([answer.document for answer in known.known]),
        _encode(model),
        _usage(known.saved.prompt_tokens, known.saved.prompt_tokens),
    )


def merged_reply(known: KnownInputs, reply: bytes) -> bytes | None:
    """An engine's reply for the wanted inputs, with the known vectors put in; None for a reply that has not one vector for each."""
    wanted = known.wanted
    read = _read(reply, len(wanted))
    if read is None:
        return None
    vectors, reported = read
    fresh = dict(zip(wanted, vectors, strict=True))
    both = [fresh[one] if answer is None else answer.document for one, answer in zip(known.inputs, known.found, strict=True)]
    members = _decode_members(reply)
    saved = known.saved.prompt_tokens
    members["data"], members["usage"] = msgspec.Raw(_data(both)), msgspec.Raw(_usage(reported + saved, saved))
    return _encode(members)


class MergeTap:
    """The tap that holds the engine's reply for the wanted inputs back, and lets it go with the known vectors put in."""

    __slots__ = ("_known", "_parts", "_size", "fault")

    over = False

    def __init__(self, known: KnownInputs) -> None:
        self._known = known
        self._parts: list[bytes] = []
        self._size = 0
        self.fault: Fault | None = None

    def feed(self, data: bytes) -> bytes:
        """Nothing goes on before the end."""
        self._size += len(data)
        if self._size > MAX_MERGED_BYTES:
            self.fault = unusable_reply(f"embeddings of more than {MAX_MERGED_BYTES} bytes")
        else:
            self._parts.append(data)
        return b""

    def end(self) -> bytes:
        """The reply with all vectors."""
        merged = merged_reply(self._known, b"".join(self._parts))
        if merged is None:
            self.fault = unusable_reply("not one vector for each input")
            return b""
        return merged


def shares(tokens: int, inputs: Sequence[bytes]) -> list[int]:
    """The prompt tokens of each input, of which an engine reports only the sum: in proportion to their bytes."""
    whole = sum([len(one) for one in inputs])
    ends, seen = [], 0
    for one in inputs:
        seen += len(one)
        ends.append(tokens * seen // whole)
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _data(vectors: Sequence[bytes]) -> bytes:
    return b"[%b]" % b",".join([b'{"object":"embedding","index":%d,"embedding":%b}' % (at, vector) for at, vector in enumerate(vectors)])


def _usage(prompt_tokens: int, cached_tokens: int) -> bytes:
    return _encode(
        {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "prompt_tokens_details": {"cached_tokens": cached_tokens}}
    )
