"""`POST /v1/completions`: the prompt in four shapes, and the fields of a completion beyond those of `generation`."""

from collections.abc import Mapping
from typing import Final

from gateway.http.openai.checks import Check, integer, text, unsupported
from gateway.http.openai.generation import GENERATION, MAX_LOGPROBS, count_token_ids, inputs, list_inputs
from gateway.http.openai.sizes import PromptSize

MAX_PROMPTS: Final = 256
"""Most prompts in one request. OpenAI allows 2,048; each prompt is a sequence of its own in the engine's batch."""

MAX_SUFFIX_CHARS: Final = 1024 * 1024
"""Half a prompt for fill-in-the-middle; most requests reach the body limit first."""

COMPLETIONS: Final[Mapping[str, Check]] = {
    **GENERATION,
    "prompt": inputs(MAX_PROMPTS),
    "suffix": text(MAX_SUFFIX_CHARS),
    "logprobs": integer(0, MAX_LOGPROBS),
    # engines do not read this field here, so the reservation would count on a cap that nobody keeps
    "max_completion_tokens": unsupported("send 'max_tokens'"),
}


def completions_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of the prompts. A `suffix`, the text behind a gap to fill, is no token id."""
    return PromptSize(body_bytes, count_token_ids(document["prompt"]) if document.get("suffix") is None else None)


def completions_prompts(document: Mapping[str, object]) -> list[object]:
    """The prompts as an engine tokenises them."""
    return list_inputs(document["prompt"])
