"""The worst case of an Ask, in tokens. Pure.

prompt <= bytes of the request: a byte-level tokenizer makes at most one token per byte of text, every text of the prompt
stands in the body, and a chat template adds less than the JSON around the messages has. Exact counts join with quotas.
"""

from domain.ask import Ask
from tenancy.hold import Amounts


def worst_case(ask: Ask, output_cap: int) -> Amounts:
    """Upper bound of what `ask` can use.

    Args:
        output_cap: output tokens per choice taken for requests that set no cap of their own.
    """
    per_choice = ask.max_output_tokens if ask.max_output_tokens is not None else output_cap
    return Amounts(prompt_tokens=ask.prompt_bytes, output_tokens=ask.choices * per_choice)
