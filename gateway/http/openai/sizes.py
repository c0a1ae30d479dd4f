"""The size of a request: its prompt, its cap on output, its sequences and log-probabilities. Limited elsewhere."""

from collections.abc import Mapping
from typing import Final

import msgspec

from domain.ask import Ask, Endpoint
from gateway.http.openai.checks import refuse


class PromptSize(msgspec.Struct, frozen=True, gc=False):
    """The size of a request's prompt, as far as it is known without a tokenizer; see `Ask` for each field."""

    prompt_bytes: int
    token_ids: int | None = None
    media: int = 0
    image_bytes: int = 0


def output_cap(document: dict[str, object], endpoint: Endpoint) -> int | None:
    """The caller's cap on output tokens. Its two names may not disagree, because engines differ in the one that they follow. A name
    that is null is taken out, so that a cap of the gateway never stands beside it.

    A chat with a cap of 0 gets the smallest answer, one token. A completion with `echo` and a cap of 0 has no answer but the prompt;
    engines generate one token for it, which is what is reserved.
    """
    for name in ("max_tokens", "max_completion_tokens"):
        if document.get(name, 0) is None:
            del document[name]
    max_tokens, max_completion_tokens = document.get("max_tokens"), document.get("max_completion_tokens")
    if max_tokens is not None and max_completion_tokens is not None and max_tokens != max_completion_tokens:
        refuse("Send either 'max_tokens' or 'max_completion_tokens', or the same number in both.", "max_completion_tokens")
    cap = max_completion_tokens if max_tokens is None else max_tokens
    if cap == 0 and endpoint.generates:
        if endpoint.has_messages:
            document |= {name: 1 for name in ("max_tokens", "max_completion_tokens") if name in document}
        elif document.get("echo") is not True:
            refuse("Invalid value for 'max_tokens': 0 is allowed only with 'echo', which answers with the prompt alone.", "max_tokens")
        return 1
    return cap if type(cap) is int else None


def with_output_cap(ask: Ask, cap: int) -> Ask:
    """The Ask with a cap on output tokens where its caller set none, so that the engine cannot use more than was reserved."""
    if ask.max_output_tokens is not None or not ask.sequences:
        return ask
    comma = b"," if len(ask.fields) > len(b"{}") else b""
    name = "max_completion_tokens" if ask.endpoint.sound else "max_tokens"  # engines follow no other name there
    fields = b'%b%b"%b":%d}' % (ask.fields[:-1], comma, name.encode(), cap)
    return msgspec.structs.replace(ask, fields=fields, max_output_tokens=cap, names=ask.names | {name})


def trimmed(ask: Ask, cap: int) -> Ask:
    """The Ask with at most `cap` output tokens per sequence; unchanged where it asks for no more, has no output, or sets `min_tokens`
    above the cap."""
    if ask.max_output_tokens is None:
        min_tokens = "min_tokens" in ask.names and behind_prompt(ask).get("min_tokens")
        return ask if type(min_tokens) is int and min_tokens > cap else with_output_cap(ask, cap)
    if ask.max_output_tokens <= cap:
        return ask
    parameters = behind_prompt(ask)
    min_tokens = parameters.get("min_tokens")
    if type(min_tokens) is int and min_tokens > cap:
        return ask
    parameters |= {name: cap for name in ("max_tokens", "max_completion_tokens") if name in parameters}
    fields = ask.fields[: ask.prompt_at[1]] + b"," + msgspec.json.encode(parameters)[1:]
    return msgspec.structs.replace(ask, fields=fields, max_output_tokens=cap)


def behind_prompt(ask: Ask) -> dict[str, object]:
    """The fields behind the prompt. The prompt stands in front, so that it is not parsed here, however long it is."""
    parameters: dict[str, object] = msgspec.json.decode(b"{" + ask.fields[ask.prompt_at[1] :].removeprefix(b","))
    return parameters


def sequences(document: Mapping[str, object], choices: int) -> int:
    """The number of sequences that the engine generates: the choices, and more with `best_of`."""
    n, best_of = document.get("n"), document.get("best_of")
    if not choices or type(best_of) is not int:
        return choices
    n = n if type(n) is int else 1
    return choices // n * max(n, best_of)


LOGPROBS: Final = ("logprobs", "top_logprobs", "prompt_logprobs")
"""The fields that ask for log-probabilities of alternatives."""


def logprobs(document: Mapping[str, object]) -> int:
    """The most alternatives per token that one of the fields `LOGPROBS` asks for."""
    alternatives = 0
    for name in LOGPROBS:
        value = document.get(name)
        if type(value) is int and value > alternatives:
            alternatives = value
        elif value is True:
            alternatives = max(alternatives, 1)
    return alternatives
