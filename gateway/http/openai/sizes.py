"""What makes a request large: its cap on output, how many sequences it asks for, log-probabilities. Read here, limited elsewhere."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from domain.ask import Ask
from gateway.http.openai.checks import refuse


class PromptSize(NamedTuple):
    """The size of a request's prompt, as far as it is known without a tokenizer; see `Ask` for each field."""

    prompt_bytes: int
    token_ids: int | None = None
    media: int = 0
    image_bytes: int = 0


def output_cap(document: dict[str, object]) -> int | None:
    """The caller's cap on output tokens. The two names of it may not disagree: engines differ in which one they follow. A name
    without a number is taken out, so that a cap of ours never stands beside it."""
    for name in ("max_tokens", "max_completion_tokens"):
        if document.get(name, 0) is None:
            del document[name]
    cap, newer = document.get("max_tokens"), document.get("max_completion_tokens")
    if cap is not None and newer is not None and cap != newer:
        refuse("Send either 'max_tokens' or 'max_completion_tokens', or the same number in both.", "max_completion_tokens")
    cap = newer if cap is None else cap
    return cap if type(cap) is int else None


def with_output_cap(ask: Ask, cap: int) -> Ask:
    """The same Ask with a cap on output tokens that its caller did not set, so that it cannot use more than was reserved."""
    if ask.max_output_tokens is not None or not ask.sequences:
        return ask
    joint = b"," if len(ask.fields) > len(b"{}") else b""
    fields = b'%b%b"max_tokens":%d}' % (ask.fields[:-1], joint, cap)
    return msgspec.structs.replace(ask, fields=fields, max_output_tokens=cap, names=ask.names | {"max_tokens"})


def trimmed(ask: Ask, cap: int) -> Ask:
    """The same Ask with at most `cap` output tokens per sequence; itself where it asks for no more, makes no output, or insists on more.

    The prompt stands in front of everything else, so that however long it is, nobody reads it for this.
    """
    if ask.max_output_tokens is None:
        insists = "min_tokens" in ask.names and behind_prompt(ask).get("min_tokens")
        return ask if type(insists) is int and insists > cap else with_output_cap(ask, cap)
    if ask.max_output_tokens <= cap:
        return ask
    tail = behind_prompt(ask)
    insists = tail.get("min_tokens")
    if type(insists) is int and insists > cap:
        return ask
    tail |= {name: cap for name in ("max_tokens", "max_completion_tokens") if name in tail}
    return msgspec.structs.replace(ask, fields=ask.fields[: ask.prompt_at[1]] + b"," + msgspec.json.encode(tail)[1:], max_output_tokens=cap)


def behind_prompt(ask: Ask) -> dict[str, object]:
    """Everything that was asked behind the prompt, which stands in front: however long it is, nobody reads it for this."""
    found: dict[str, object] = msgspec.json.decode(b"{" + ask.fields[ask.prompt_at[1] :].removeprefix(b","))
    return found


def sequences(document: Mapping[str, object], choices: int) -> int:
    """How many sequences the engine generates: its choices, and more where it is asked to pick the best of several."""
    n, best_of = document.get("n"), document.get("best_of")
    if not choices or type(best_of) is not int:
        return choices
    n = n if type(n) is int else 1
    return choices // n * max(n, best_of)


def logprobs(document: Mapping[str, object]) -> int:
    """Alternatives per token, under whichever of their names most are asked for."""
    asked = 0
    for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
        value = document.get(name)
        if type(value) is int and value > asked:
            asked = value
        elif value is True:
            asked = max(asked, 1)
    return asked
