"""The bytes of a request that decide what its prompt is, in an order in which a growing conversation only grows at its end. Pure.

For pools without the model's own tokenizer, where a prompt's prefix is told by its text. What stands for a prompt is its JSON as it was
checked: two prompts that begin with the same bytes are rendered alike, whatever the chat template is. First comes what a template writes
in front (the opening system message, then tools and whatever else it may read), then the messages in their order. Everything but the
messages also seeds the chain, because templates differ in where they write it: other tools, and nothing of the prompt counts as known
(routers no. 30). Fields that no template reads (sampling, limits, formats) take no part, wherever they stand in the request.
"""

import hashlib
import re
from array import array
from typing import Final

import msgspec

from domain.ask import PROMPT_FIELDS, Ask

APART: Final = frozenset(
    {
        # how it is answered
        *("stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "user", "seed", "echo"),
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("length_penalty", "logit_bias", "logprobs", "top_logprobs", "logprob_token_ids", "allowed_token_ids", "bad_words"),
        *("samplers", "dry_sequence_breakers", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
        *("skip_special_tokens", "spaces_between_special_tokens", "return_token_ids", "return_tokens_as_token_ids"),
        # what shape the answer has: a mask over the vocabulary, no text
        *("response_format", "structured_outputs", "structural_tag", "json_schema", "guided_json", "guided_regex", "guided_grammar"),
        *("guided_choice", "guided_whitespace_pattern", "regex", "ebnf", "grammar", "parallel_tool_calls"),
        # how the prompt ends
        *("add_generation_prompt", "continue_final_message"),
        # who asks, for what
        *("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    }
)
"""Fields that change no prompt. One that is not named here may, and then only requests with the same value of it share a prefix."""

UNSHARED: Final = frozenset({"prompt_logprobs", "truncate_prompt_tokens"})
"""With these an engine reads no cached prefix, or cuts the prompt's beginning off."""

DIGESTED_CHARS: Final = 512
"""Media from this length on stand as a digest: an image's bytes say nothing of its tokens, and hashing them block by block says no more."""

_MEDIA: Final = re.compile(rb'"(?:data:[^"\\]{%d,}|[A-Za-z0-9+/=]{%d,})"' % (DIGESTED_CHARS, DIGESTED_CHARS))
_PARTS: Final = b'"content":['
_OPENING: Final = re.compile(rb'\[(\{"role":"(?:system|developer)","content":")')
_NO_OPENING: Final = (b'[{"role":"user"', b'[{"role":"assistant"')
_NEXT: Final = b'"},{"'
_NOTHING: Final = (b"null", b"[]", b"{}")


class _Speaker(msgspec.Struct):
    role: str = ""


_speaker = msgspec.json.Decoder(_Speaker).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ids = msgspec.json.Decoder(list[int]).decode


class PromptBytes(msgspec.Struct, frozen=True, gc=False):
    """What is hashed of a prompt."""

    frame: bytes
    """Tools, documents and whatever else a template may read beside the messages; empty for most requests."""
    opening: bytes
    """The system message that a chat begins with; empty where there is none."""
    text: bytes
    """All of it in order."""
    ids: "array[int]" = array("I")
    """The prompt itself, where it was sent as token ids."""
    tokens: int = 0
    """Ids in all of the request's prompts."""
    size: int = 0
    """Bytes of all of the request's prompts, media left out."""
    media: int = 0
    """Images, recordings and files in it."""
    shared: bool = True
    """Whether an engine reads cached prefixes for it at all."""


def prompt_bytes(ask: Ask) -> PromptBytes:
    """The prompt of a checked request. Nothing is parsed again: the prompt's bytes are searched once, and fields beside it are read where
    there are some that a template may read.

    Of several prompts in one request the first stands for all: each is a sequence of its own.
    """
    raw = ask.prompt
    odd = ask.names - APART - PROMPT_FIELDS
    frame = _frame(ask, sorted(odd)) if odd else b""
    if ask.endpoint.has_messages:
        raw, media = _digested(raw)
        opening = _opening(raw)
        # a list of messages without its end, so that another message only adds to it
        text = b"%b%b%b" % (opening, frame, raw[1 + len(opening) : -1]) if frame else raw[1:-1]
        return PromptBytes(frame, opening, text, size=len(text), media=media, shared=ask.names.isdisjoint(UNSHARED))
    first = bytes(_items(raw)[0]) if raw.startswith((b'["', b"[[")) else raw
    ids = array("I", _ids(first) if first.startswith(b"[") else ())
    # between two ids, in whichever prompt, there is one comma
    tokens = raw.count(b",") + 1 if ids else 0
    return PromptBytes(frame, b"", frame + first[1:-1], ids, tokens, len(raw), shared=_is_shared(ask))


def _opening(raw: bytes) -> bytes:
    """The system message that messages begin with, or nothing."""
    if _OPENING.match(raw):
        # content is one text, and a quote inside of a text has a backslash in front of it: this is where the message ends
        end = raw.find(_NEXT)
        return raw[1 : end + 2] if end > 0 else raw[1:-1]
    if not raw or raw.startswith(_NO_OPENING):
        return b""
    first = bytes(_items(raw)[0])
    return first if _speaker(first).role in ("system", "developer") else b""


def _frame(ask: Ask, names: list[str]) -> bytes:
    parts = []
    fields = _fields(ask.fields)
    for name in names:
        value = bytes(fields[name])
        if value in _NOTHING or (name == "tool_choice" and value in (b'"auto"', b'"required"')):
            continue  # as good as absent; of tool choices only "none" and a tool's name can take tools out of the prompt
        parts.append(b"%b=%b;" % (name.encode(), value))
    return b"".join(parts)


def _is_shared(ask: Ask) -> bool:
    return ask.endpoint.generates and ask.names.isdisjoint(UNSHARED) and not (ask.logprobs and "echo" in ask.names)


def _digested(raw: bytes) -> tuple[bytes, int]:
    """The messages with a digest in the place of each image, recording and file, and how many those are."""
    if _PARTS not in raw:
        return raw, 0
    return _MEDIA.subn(lambda media: b'"%b"' % hashlib.blake2b(media[0], digest_size=16).hexdigest().encode(), raw)
