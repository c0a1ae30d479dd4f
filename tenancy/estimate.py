"""Estimates of usage: the most that a request may use, and the charge where the engine reported no usage. Pure.

prompt tokens <= bytes of the request (`prompt_bound`): a byte-level tokenizer makes at most one token per byte of text, every text of the
prompt stands in the body, and what a chat template writes around messages is less than their JSON, but for a system prompt of its own.
Token ids are one token each. The tokens of a part that is no text cannot be derived from its bytes, so a constant bound is taken; the bytes
of an image are not counted beside it, because no processor makes text of them. Where the prompt was tokenized, the count is used instead.

The length of a recording is read from the head of a WAV file and estimated from the bytes of others (`recording_seconds`), that of speech
from its text; the bytes of a recording are known.

`UsageBounds` are the counts that an engine can honestly report for a request; `billable` brings a report within them.

`OutputQuantiles` learns the usual length of the answers to a tenant's requests to a model, from which statistical reservations are made:
one histogram (`domain.lengths`) per tenant and model.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from domain.ask import MESSAGES_IN_FRONT, Ask
from domain.lengths import Lengths
from domain.usage import Usage
from tenancy.limits import Amounts
from tenancy.prices import FREE, Price

BYTES_PER_TOKEN: Final = 4
"""Usual for English and code; used only to charge a prompt whose tokens were not reported, never to admit a request."""

TEMPLATE_TOKENS: Final = 128
"""Room for the system prompt that some chat templates write where the caller sent none: a line or two, or the date."""


MEDIA_TOKENS: Final = 16_384
"""Tokens of one part that is no text, where its model's number is not known: the largest image that the processors of published
models let through without shrinking it (Qwen2-VL and its successors: 12.8 million pixels of which 784 make a token). Its bytes say little:
a plain picture of that size is a file of a few kilobytes."""


LIKELY_IMAGE_TOKENS: Final = 1024
"""Tokens that a model usually makes of an image whose bytes alone are known: OpenAI's tiles of a photograph in full detail are 765 to
1,105, LLaVA's 576 to 2,880."""


LIKELY_FIFTHS: Final = 6
"""Output that a statistical reservation takes, in fifths of the usual longest answer: 1.2 times as much."""


def worst_case(ask: Ask, prompt_tokens: int | None, output_cap: int, price: Price, usual: int | None = None) -> Amounts:
    """Upper bound of what `ask` can use; with `usual`, its output is only likely to stay within the bound.

    Args:
        prompt_tokens: as tokenized, or None.
        output_cap: output tokens per sequence taken for requests that carry no cap.
        usual: tokens that most answers stay within, for a statistical reservation (`tenancy.estimate`).
    """
    prompt = prompt_tokens if prompt_tokens is not None else prompt_bound(ask)
    each = ask.max_output_tokens if ask.max_output_tokens is not None else output_cap
    if usual is not None:
        each = min(each, max(1, -(-usual * LIKELY_FIFTHS // 5)))
    output = ask.sequences * each
    seconds, sound_bytes = sound_of(ask) if ask.endpoint.sound else NO_SOUND
    if price is FREE:
        return Amounts(prompt, output, prompt + output, audio_seconds=seconds, audio_bytes=sound_bytes)
    units, cost = price.worst_units(prompt, output), price.worst_nanousd(prompt, output)
    return Amounts(prompt, output, units, cost, audio_seconds=seconds, audio_bytes=sound_bytes)


def prompt_bound(ask: Ask) -> int:
    """Upper bound of the prompt tokens of a request that was not tokenized.

    A photograph of 4 MiB is 16,384 tokens at most, not five million. An engine that writes an image's URL into the prompt as text (TGI,
    with a model that takes no images) can use more, up to its context.
    """
    if ask.token_ids is not None:
        return ask.token_ids
    text_bytes = ask.prompt_bytes - ask.image_bytes
    templated = ask.endpoint.has_messages or ask.fields.startswith(MESSAGES_IN_FRONT)
    return (text_bytes if text_bytes > 0 else 0) + ask.media * MEDIA_TOKENS + (TEMPLATE_TOKENS if templated else 0)


def used(usage: Usage, price: Price) -> Amounts:
    """The amounts of a finished request."""
    units, cost = price.units_of(usage), price.cost_nanousd(usage)
    if not usage.audio_bytes:
        return Amounts(usage.prompt_tokens, usage.completion_tokens, units, cost)
    return Amounts(usage.prompt_tokens, usage.completion_tokens, units, cost, 1, usage.audio_seconds, usage.audio_bytes)


NO_SOUND: Final = (0, 0)
USUAL_BYTES_A_S: Final = 2_000
"""Bytes of a compressed recording for each second, 16 kbit/s: speech is seldom stored with less, mostly with two to eight times as much."""
LEAST_BYTES_A_S: Final = 400
"""The least bytes of a recording for a second of it, 3.2 kbit/s: codecs of speech have 6 kbit/s and more (Opus, AMR). Reports of more
seconds are billed at this bound."""
LETTERS_A_S: Final = 8
"""Bytes of text spoken in a second at the slowest: people read twelve to fifteen letters aloud."""
SPEECH_BYTES_A_S: Final = 48_000
"""Bytes of a second of speech at most: 24,000 samples of 16 bits, as engines write WAV and PCM."""
_WAV_HEAD: Final = 44
"""Bytes of the head of a WAV file without further chunks."""


def sound_of(ask: Ask) -> tuple[int, int]:
    """Seconds and bytes of the sound of a request to hold: of a recording its own bytes, and of speech what its text makes at most."""
    if ask.endpoint.sound == "in":
        return recording_seconds(ask.upload), len(ask.upload)
    seconds = 1 + ask.prompt_bytes // LETTERS_A_S
    return seconds, seconds * SPEECH_BYTES_A_S


def recording_seconds(recording: bytes) -> int:
    """The length of a recording in whole seconds, a begun one counted: by the head of a WAV file, which begins with its format, and else
    from its bytes. It may be wrong, as the head may be: what the engine counts is settled."""
    return -(-len(recording) // (wav_bytes_a_second(recording) or USUAL_BYTES_A_S))


def wav_bytes_a_second(sound: bytes) -> int:
    """The bytes of a second that the head of a WAV file tells, which begins with its format, at least `LEAST_BYTES_A_S`; 0 for other
    sound."""
    if len(sound) < _WAV_HEAD or sound[:4] != b"RIFF" or sound[8:16] != b"WAVEfmt ":
        return 0
    return max(LEAST_BYTES_A_S, int.from_bytes(sound[28:32], "little"))


def most_seconds(ask: Ask) -> int:
    """The longest that the recording of a request can be; 0 without one."""
    return 1 + len(ask.upload) // LEAST_BYTES_A_S if ask.upload else 0


def likely_prompt(ask: Ask, prompt_tokens: int | None) -> int:
    """Prompt tokens to charge where the engine reported none."""
    if prompt_tokens is not None:
        return prompt_tokens
    if ask.token_ids is not None:
        return ask.token_ids
    if ask.image_bytes:  # a photograph of 4 MiB makes no million tokens
        images = min(-(-ask.image_bytes // BYTES_PER_TOKEN), ask.media * LIKELY_IMAGE_TOKENS)
        return -(-max(0, ask.prompt_bytes - ask.image_bytes) // BYTES_PER_TOKEN) + images
    return -(-ask.prompt_bytes // BYTES_PER_TOKEN)


def prompt_for_cap(ask: Ask, prompt_tokens: int | None) -> int:
    """Prompt tokens to compare with a cap on one request: as tokenized, or the number of ids, or else what its text usually makes plus
    the bound of its media."""
    if prompt_tokens is not None or ask.token_ids is not None or not ask.media:
        return likely_prompt(ask, prompt_tokens)
    return -(-max(0, ask.prompt_bytes - ask.image_bytes) // BYTES_PER_TOKEN) + ask.media * MEDIA_TOKENS


TEMPLATE_MOST: Final = 1024
"""Most tokens that a chat template writes beside the request's own text: preambles of published models have up to 500. A reservation
has room for `TEMPLATE_TOKENS` of them; a report with all of them is honest."""
NEAR: Final = 10
"""A reported prompt may differ by the tenth part from a count with the served model's own tokenizer."""
NEAR_TOKENS: Final = 16
"""Tokens by which it may differ in any case: the beginning of a text, the opening of an answer, a line with the date."""
SUFFIX: Final = "suffix"
"""Field of text completions whose text the engine puts into the prompt; it is not in the counts of the prompt."""
TOOL_CHOICE: Final = frozenset({"tools", "tool_choice"})
TRUNCATION: Final = "truncate_prompt_tokens"
"""The field by which a caller has the engine shorten its prompt."""
EMPTY_PART: Final = b'"text":""'
"""A part of a message without text: we count its line break, engines leave it out."""
SEQUENCE_MOST: Final = 2**20
"""Most output tokens of one sequence without a cap, where the context of the engine is not known: the longest contexts in use."""


class UsageBounds(msgspec.Struct, frozen=True, gc=False):
    """The counts of tokens that an engine can honestly report for one request."""

    prompt_least: int
    prompt_most: int
    output_most: int
    prompt_billed: int
    """Prompt tokens to bill for a report above `prompt_most`."""
    seconds_most: int = 0
    """The longest that its recording can be."""

    def hold(self, usage: Usage) -> bool:
        """Whether a report is within the bounds."""
        return self.prompt_least <= usage.prompt_tokens <= self.prompt_most and 0 <= usage.completion_tokens <= self.output_most

    def exceeded_by(self, usage: Usage) -> bool:
        """Whether a report is above the bounds. One below them costs no caller anything."""
        return usage.prompt_tokens > self.prompt_most or usage.completion_tokens > self.output_most


HIDES_REASONING: Final = frozenset({"include_reasoning", "separate_reasoning", "stream_reasoning"})
"""Fields by which a caller has the engine keep its reasoning to itself: tokens that no byte of the answer shows."""


def output_seen(ask: Ask, reported: Usage, seen_bytes: int) -> int | None:
    """The output tokens that an answer of so many bytes can have; None where they do not bound it: the request's own cap does, no answer
    was seen, or the engine reasons without showing it.

    Args:
        seen_bytes: bytes of the reply as it came, so a token has one at least.
    """
    if ask.max_output_tokens is not None or not seen_bytes or reported.reasoning_tokens > 0 or ask.names & HIDES_REASONING:
        return None
    return seen_bytes


def usage_bounds(ask: Ask, counted: int | None, context_tokens: int | None, seen: int | None = None) -> UsageBounds:
    """The bounds of the usage of `ask`.

    Args:
        seen: output tokens that the answer can have by its length (`output_seen`); None for any number.
        counted: tokens of the prompt by the served model's own tokenizer; None where they were not counted.
        context_tokens: tokens that the engine takes, where the settings say it.
    """
    suffixed = SUFFIX in ask.names
    counted = None if suffixed else ask.token_ids if ask.token_ids is not None else counted
    each = ask.max_output_tokens if ask.max_output_tokens is not None else context_tokens or SEQUENCE_MOST
    output = ask.sequences * (each + 1)
    if seen is not None and seen < output:
        output = seen
    if counted is None:
        template = TEMPLATE_MOST if ask.endpoint.has_messages or ask.fields.startswith(MESSAGES_IN_FRONT) else 0
        prompt_bytes = len(ask.fields) if suffixed else ask.prompt_bytes
        billed = prompt_bytes if suffixed else prompt_bound(ask)
        return UsageBounds(0, prompt_bytes + ask.media * MEDIA_TOKENS + template, output, billed, most_seconds(ask))
    margin = -(-counted // NEAR) + NEAR_TOKENS
    # with a `tool_choice` some templates render the chosen tool alone, or none
    shortened = TRUNCATION in ask.names or EMPTY_PART in ask.fields or ask.names >= TOOL_CHOICE
    least = 0 if shortened else max(0, counted - margin)
    return UsageBounds(least, counted + margin, output, counted + margin, most_seconds(ask))


def billable(usage: Usage, bounds: UsageBounds, seen_bytes: int) -> Usage:
    """The usage to bill for a report outside the bounds: each count brought within them. Of an answer no more tokens are billed than it
    has bytes, each part is at most its whole, and no count is negative: that would give quota back.

    Args:
        seen_bytes: bytes of the answer as it came.
    """
    prompt, output, cached, reasoning = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens
    if prompt > bounds.prompt_most:
        prompt = bounds.prompt_billed
    elif prompt < bounds.prompt_least:
        prompt = bounds.prompt_least
    # comparisons instead of `min` and `max`, because this runs for each request, and nearly every count is within its bounds
    if not 0 <= output <= bounds.output_most:
        output = max(0, min(output, bounds.output_most, seen_bytes))
    if not 0 <= cached <= prompt:
        cached = max(0, min(cached, prompt))
    if not 0 <= reasoning <= output:
        reasoning = max(0, min(reasoning, output))
    seconds = usage.audio_seconds
    if seconds > bounds.seconds_most:
        seconds = bounds.seconds_most
    return Usage(prompt, output, cached, reasoning, seconds, usage.audio_bytes)


SHARE: Final = 0.95
"""Share of the finished answers that are no longer than the usual length."""
MIN_ANSWERS: Final = 32
"""Answers below which there is no usual length: the twentieth part of fewer is one answer."""
REFRESH: Final = 16
"""Answers after which the figure is computed anew."""
MAX_PAIRS: Final = 2048
"""Pairs of tenant and model remembered, 0.7 KB each; the one unused for longest is forgotten first."""


class OutputQuantiles:
    """Learns from finished answers the length that 95 in 100 stay within. One per worker: it learns from its own requests."""

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self._pairs: OrderedDict[tuple[str, str], _AnswerLengths] = OrderedDict()
        self._max_pairs = max_pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def note(self, tenant: str, model: str, tokens: int, cap: int) -> None:
        """Note an answer that ended after `tokens` output tokens, of `cap` it was allowed.

        An answer that was cut off by its cap would have been longer by an unknown amount. It counts only where it is already longer
        than the usual length; otherwise a series of small caps would make the answers seem short.
        """
        pair = (tenant, model)
        lengths = self._pairs.get(pair)
        if tokens >= cap and (lengths is None or lengths.usual is None or tokens <= lengths.usual):
            return
        if lengths is None:
            lengths = self._pairs[pair] = _AnswerLengths()
            if len(self._pairs) > self._max_pairs:
                self._pairs.popitem(last=False)
        self._pairs.move_to_end(pair)
        lengths.add(tokens)

    def usual(self, tenant: str, model: str) -> int | None:
        """Tokens that 95 in 100 finished answers stayed within; None while too few were seen."""
        lengths = self._pairs.get((tenant, model))
        return lengths.usual if lengths is not None else None


class _AnswerLengths:
    """The answers of one pair of tenant and model."""

    __slots__ = ("_lengths", "usual")

    def __init__(self) -> None:
        self._lengths = Lengths()
        self.usual: int | None = None

    def add(self, tokens: int) -> None:
        lengths = self._lengths
        lengths.add(tokens)
        if lengths.noted >= MIN_ANSWERS and lengths.noted % REFRESH == 0:
            self.usual = lengths.quantile(SHARE)
