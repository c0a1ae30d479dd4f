"""The bytes of a request that decide what its prompt is, in an order in which a growing conversation only grows at its end. Pure.

Used for pools without the model's own tokenizer, where the router recognises a prompt's prefix by its text. The checked JSON of a prompt
stands for the prompt: two prompts that begin with the same bytes are rendered alike, whatever the chat template is. The text that a
template writes in front comes first (the opening system message, then tools and other fields that it may read), then the messages in
their order. The frame, all fields but the messages, also seeds the chain, because templates differ in where they write it: with other
tools nothing of the prompt counts as known (routers no. 30). Fields that no template reads (sampling, limits, formats) take no part.
"""

import hashlib
import re
from array import array
from typing import Final

import msgspec

from domain.ask import PROMPT_FIELDS, Ask

APART: Final = frozenset(
    {
        # how the engine generates and delivers the answer
        *("stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "user", "seed", "echo"),
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("length_penalty", "logit_bias", "logprobs", "top_logprobs", "logprob_token_ids", "allowed_token_ids", "bad_words"),
        *("samplers", "dry_sequence_breakers", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
        *("skip_special_tokens", "spaces_between_special_tokens", "return_token_ids", "return_tokens_as_token_ids"),
        # the form of the answer: a mask over the vocabulary, no text
        *("response_format", "structured_outputs", "structural_tag", "json_schema", "guided_json", "guided_regex", "guided_grammar"),
        *("guided_choice", "guided_whitespace_pattern", "regex", "ebnf", "grammar", "parallel_tool_calls"),
        # the end of the prompt
        *("add_generation_prompt", "continue_final_message"),
        # the caller's own bookkeeping
        *("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    }
)
"""Fields that change no prompt. A field that is not named here may change it, so only requests with the same value share a prefix."""

UNSHARED: Final = frozenset({"prompt_logprobs", "truncate_prompt_tokens"})
"""Fields with which an engine reads no cached prefix, or cuts the beginning of the prompt off."""

DIGESTED_CHARS: Final = 512
"""Media from this length on are replaced by a digest: the bytes of an image say nothing of its tokens, and their blocks say no more."""

_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_MEDIA: Final = re.compile(rb'"(?:(data:)|[A-Za-z0-9+/=]{%d})' % DIGESTED_CHARS)
"""The beginning of a string that may be media. Its end is searched with `find`: a pattern takes ten times as long for each byte, and keeps
the interpreter's lock all the while, so that an image of 20 MiB would hold up every other request."""
_PARTS: Final = b'"content":['
_OPENING: Final = re.compile(rb'\[(\{"role":"(?:system|developer)","content":")')
_NO_OPENING: Final = (b'[{"role":"user"', b'[{"role":"assistant"')
_NEXT: Final = b'"},{"'
_NOTHING: Final = (b"null", b"[]", b"{}")
_NO_FRAME: Final = APART | PROMPT_FIELDS


class _Speaker(msgspec.Struct):
    role: str = ""


_speaker = msgspec.json.Decoder(_Speaker).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ids = msgspec.json.Decoder(list[int]).decode


class PromptBytes(msgspec.Struct, frozen=True, gc=False):
    """The parts of a prompt that the router hashes."""

    frame: bytes
    """Tools, documents and other fields that a template may read beside the messages; empty for most requests."""
    opening: bytes
    """The system message that a chat begins with; empty where there is none."""
    text: bytes
    """Opening, frame and messages in order."""
    ids: "array[int]" = array("I")
    """The token ids of a prompt that was sent as ids."""
    tokens: int = 0
    """Token ids in all prompts of the request."""
    size: int = 0
    """Bytes of all prompts of the request, without media."""
    media: int = 0
    """Images, recordings and files in the prompt."""
    shared: bool = True
    """Whether an engine reads cached prefixes for the request at all."""


def prompt_bytes(ask: Ask) -> PromptBytes:
    """The prompt of a checked request. Nothing is parsed again: the bytes of the prompt are searched once, and the fields beside it are
    read only where a template may read one of them.

    Of several prompts in one request the first one stands for all: each is a sequence of its own.
    """
    fields, (start, end) = ask.fields, ask.prompt_at
    frame_fields = ask.names - _NO_FRAME
    frame = _frame(ask, sorted(frame_fields)) if frame_fields else b""
    if ask.endpoint.has_messages:
        media = 0
        # a search for one sign is memchr, ten times as fast as one for several, and most prompts have no list inside the first one
        if fields.find(b"[", start + 1, end) > 0 and fields.find(_PARTS, start, end) > 0:
            fields, media = _digested(fields[start:end])
            start, end = 0, len(fields)
        opening = b"" if fields.startswith(_NO_OPENING, start) else _opening(fields, start, end)
        # the list of messages without its closing bracket, so that a further message only adds to the text
        text = b"%b%b%b" % (opening, frame, fields[start + 1 + len(opening) : end - 1]) if frame else fields[start + 1 : end - 1]
        return PromptBytes(frame, opening, text, size=len(text), media=media, shared=ask.names.isdisjoint(UNSHARED))
    raw = fields[start:end]
    first = bytes(_items(raw)[0]) if raw.startswith((b'["', b"[[")) else raw
    ids = array("I", _ids(first) if first.startswith(b"[") else ())
    # one comma stands between two ids, also between those of two prompts
    tokens = raw.count(b",") + 1 if ids else 0
    return PromptBytes(frame, b"", frame + first[1:-1], ids, tokens, len(raw), shared=_is_shared(ask))


def _opening(fields: bytes, start: int, end: int) -> bytes:
    """The system message at the beginning of the messages, which are `fields[start:end]`; empty where there is none."""
    if _OPENING.match(fields, start):
        # the content is one text, and a quote inside a text has a backslash in front of it: the message ends here
        closing = fields.find(b"}", start, end) - 1
        if not fields.startswith(_NEXT, closing):  # that brace stands in the text, or is the last message's
            closing = fields.find(_NEXT, start, end)
        return fields[start + 1 : closing + 2] if closing > 0 else fields[start + 1 : end - 1]
    if start == end:
        return b""
    first = bytes(_items(memoryview(fields)[start:end])[0])
    return first if _speaker(first).role in ("system", "developer") else b""


def _frame(ask: Ask, names: list[str]) -> bytes:
    """The fields of these names, without values that count as absent."""
    parts = []
    fields = _fields(ask.fields)
    for name in names:
        value = bytes(fields[name])
        if value in _NOTHING or (name == "tool_choice" and value in (b'"auto"', b'"required"')):
            continue  # of tool choices only "none" and the name of a tool can take tools out of the prompt
        parts.append(b"%b=%b;" % (name.encode(), value))
    return b"".join(parts)


def _is_shared(ask: Ask) -> bool:
    return ask.endpoint.generates and ask.names.isdisjoint(UNSHARED) and not (ask.logprobs and "echo" in ask.names)


def _digested(raw: bytes) -> tuple[bytes, int]:
    """The messages with a digest in place of each image, recording and file, and the number of digests."""
    pieces: list[bytes] = []
    media = kept_from = at = 0
    while (beginning := _MEDIA.search(raw, at)) is not None:
        start, found = beginning.span()
        end = raw.find(b'"', found)
        if end < 0:
            break
        if _is_media(raw, start + 1, end, by_scheme=beginning[1] is not None):
            digest = hashlib.blake2b(memoryview(raw)[start : end + 1], digest_size=16).hexdigest()
            pieces += (raw[kept_from:start], b'"%b"' % digest.encode())
            media += 1
            at = kept_from = end + 1
        else:
            at = start + 1
    return (b"".join([*pieces, raw[kept_from:]]), media) if media else (raw, 0)


def _is_media(raw: bytes, start: int, end: int, *, by_scheme: bool) -> bool:
    """Whether a string is a long `data:` URL without escapes, or nothing but long base64."""
    if by_scheme:
        return end - start >= len(b"data:") + DIGESTED_CHARS and raw.find(b"\\", start, end) < 0
    return not raw[start:end].translate(None, _BASE64)
