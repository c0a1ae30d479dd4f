"""What a request may use at most, and what is charged where the engine reported no usage. Pure.

prompt tokens <= bytes of the request: a byte-level tokenizer makes at most one token per byte of text, every text of the prompt
stands in the body, and what a chat template writes around messages is less than their JSON, but for a system prompt of its own. Token
ids are one token each. The tokens of a part that is no text cannot be derived from its bytes, so a constant bound is taken.
Where the prompt was tokenized, the count is used instead.
"""

from typing import Final

from domain.ask import Ask
from domain.usage import Usage
from tenancy.limits import Amounts
from tenancy.prices import Price

BYTES_PER_TOKEN: Final = 4
"""Usual for English and code; used only to charge a prompt whose tokens were not reported, never to admit a request."""

TEMPLATE_TOKENS: Final = 128
"""Room for the system prompt that some chat templates write where the caller sent none: a line or two, or the date."""


MEDIA_TOKENS: Final = 16_384
"""Tokens of one part that is no text, where its model's number is not known: the largest image that the processors of published
models let through without shrinking it (Qwen2-VL and its successors: 12.8 million pixels of which 784 make a token). Its bytes say little:
a plain picture of that size is a file of a few kilobytes."""


LIKELY_FIFTHS: Final = 6
"""Output that a statistical reservation takes, in fifths of the usual longest answer: 1.2 times as much."""


def worst_case(ask: Ask, prompt_tokens: int | None, output_cap: int, price: Price, usual: int | None = None) -> Amounts:
    """Upper bound of what `ask` can use; with `usual`, its output is only likely to stay within the bound.

    Args:
        prompt_tokens: as tokenized, or None.
        output_cap: output tokens per sequence taken for requests that carry no cap.
        usual: tokens that most answers stay within, for a statistical reservation (`tenancy.output_quantiles`).
    """
    prompt = prompt_tokens if prompt_tokens is not None else prompt_bound(ask)
    each = ask.max_output_tokens if ask.max_output_tokens is not None else output_cap
    if usual is not None:
        each = min(each, max(1, -(-usual * LIKELY_FIFTHS // 5)))
    output = ask.sequences * each
    return Amounts(prompt, output, price.worst_units(prompt, output), price.worst_nanousd(prompt, output))


def prompt_bound(ask: Ask) -> int:
    """Upper bound of the prompt tokens of a request that was not tokenized."""
    if ask.token_ids is not None:
        return ask.token_ids
    return ask.prompt_bytes + ask.media * MEDIA_TOKENS + (TEMPLATE_TOKENS if ask.endpoint.has_messages else 0)


def used(usage: Usage, price: Price) -> Amounts:
    """The amounts of a finished request."""
    return Amounts(usage.prompt_tokens, usage.completion_tokens, price.units_of(usage), price.cost_nanousd(usage))


def likely_prompt(ask: Ask, prompt_tokens: int | None) -> int:
    """Prompt tokens to charge where the engine reported none."""
    if prompt_tokens is not None:
        return prompt_tokens
    return ask.token_ids if ask.token_ids is not None else -(-ask.prompt_bytes // BYTES_PER_TOKEN)


def prompt_for_cap(ask: Ask, prompt_tokens: int | None) -> int:
    """Prompt tokens to compare with a cap on one request: as tokenized, or the number of ids, or else what its text usually makes plus
    the bound of its media."""
    if prompt_tokens is not None or ask.token_ids is not None or not ask.media:
        return likely_prompt(ask, prompt_tokens)
    return -(-max(0, ask.prompt_bytes - ask.image_bytes) // BYTES_PER_TOKEN) + ask.media * MEDIA_TOKENS
