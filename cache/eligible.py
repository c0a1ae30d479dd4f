"""Which requests may be answered from the cache, and which answers may be kept. Every refusal is a word that the reply's headers show."""

from typing import Final

import msgspec

from cache.policy import CachePolicy
from domain.ask import Ask, Endpoint

MAX_BODY_BYTES: Final = 64 * 1024
"""A longer request passes by the cache: hashing it would hold up the worker's loop, and long prompts rarely repeat."""

MEDIA: Final = "media"
TOOLS: Final = "tools"
LARGE: Final = "large"
SAMPLED: Final = "sampled"
CHOICES: Final = "choices"
LOGPROBS: Final = "logprobs"
TOKEN_IDS: Final = "token-ids"
EMBEDDINGS: Final = "embeddings"
ENDPOINT: Final = "endpoint"
PLACEHOLDERS: Final = "placeholders"
"""The engine sees placeholders in place of values, which are drawn for each request anew."""
PERSONAL: Final = "personal"
"""A guard rule has found personal data."""
REASONS: Final = (PLACEHOLDERS, PERSONAL, MEDIA, TOOLS, LARGE, SAMPLED, CHOICES, LOGPROBS, TOKEN_IDS, EMBEDDINGS, ENDPOINT)

LENGTH: Final = "length"
LONG: Final = "long"
FORM: Final = "form"
FINISH: Final = "finish"
BROKEN: Final = "broken"
USAGE: Final = "usage"
PURGED: Final = "purged"
KEY: Final = "key"
ASKED: Final = "asked"
NOT_KEPT: Final = (LENGTH, TOOLS, FINISH, LONG, FORM, BROKEN, USAGE, PURGED, PERSONAL, KEY, ASKED)
"""Why the answer to a miss was not kept, in one word."""

SIMILAR_REASONS: Final = (
    *("endpoint", "tools", "schema", "turn"),  # `cache.semantic.conversation`
    *("short", "long", "time", "personal", "code"),  # `cache.semantic.never_words`
    *("starting", "unavailable", "embedder", "first", "gone", "old", "differs"),  # `gateway.answers.semantic`
    *("cold", "unsure", "audit", "stopped", "below", "copy"),  # `cache.semantic.decision`
)
"""Why no similar question's answer was given, in one word; a colon and what differs may follow `differs`."""

_TOOL_MEMBERS: Final = frozenset({"tools", "functions"})
_OUTPUT_MEMBERS: Final = frozenset({"logprobs", "top_logprobs", "prompt_logprobs", "echo"})
_TOKEN_MEMBERS: Final = frozenset({"return_token_ids", "return_tokens_as_token_ids", "prompt_token_ids"})


class _Sampling(msgspec.Struct, gc=False):
    temperature: float | None = None
    top_k: float | None = None


class _Output(msgspec.Struct, gc=False):
    logprobs: int | bool | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool | None = None

    @property
    def shows_more(self) -> bool:
        """Whether the reply carries more than the generated text."""
        return self.logprobs not in (None, False) or self.top_logprobs is not None or self.prompt_logprobs is not None or bool(self.echo)


_decode_sampling = msgspec.json.Decoder(_Sampling, strict=False).decode
_decode_output = msgspec.json.Decoder(_Output, strict=False).decode


def passes_by(ask: Ask, policy: CachePolicy) -> str:
    """Why a request passes by the exact cache, in one word; empty for a request that the cache may answer.

    A request whose answer is drawn anew each time (a temperature above 0, or none said, which engines take as their default of 1) is
    answered from the cache only where the policy has `sampled: true`.
    """
    if not ask.endpoint.kept:
        return ENDPOINT
    if len(ask.fields) > MAX_BODY_BYTES:
        return LARGE
    if ask.media:
        return MEDIA
    if ask.endpoint is Endpoint.EMBEDDINGS:
        return "" if policy.embeddings else EMBEDDINGS
    names = ask.names
    if not policy.tools and not names.isdisjoint(_TOOL_MEMBERS):
        return TOOLS
    if ask.logprobs or (not names.isdisjoint(_OUTPUT_MEMBERS) and _decode_output(ask.behind_prompt).shows_more):
        return LOGPROBS
    if not names.isdisjoint(_TOKEN_MEMBERS):
        return TOKEN_IDS
    if ask.sequences > 1 or ask.choices > 1:
        return CHOICES
    if not policy.sampled and not _is_greedy(ask):
        return SAMPLED
    return ""


def _is_greedy(ask: Ask) -> bool:
    """Whether the engine always takes the likeliest token."""
    if "temperature" not in ask.names and "top_k" not in ask.names:
        return False
    sampling = _decode_sampling(ask.behind_prompt)
    return sampling.temperature == 0 or sampling.top_k == 1
