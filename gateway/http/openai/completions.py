"""`POST /v1/completions`: the prompt in four shapes, and the fields of a completion beyond those of `generation`."""

from collections.abc import Mapping

from gateway.http.openai.checks import Check, integer, text, unsupported
from gateway.http.openai.generation import count_token_ids, generation, inputs, list_inputs
from gateway.http.openai.sizes import PromptSize
from policies.caps import RequestCaps


def completions(caps: RequestCaps) -> Mapping[str, Check]:
    """The checks under a policy's caps, by field name."""
    return {
        **generation(caps),
        "prompt": inputs(caps.prompts, "prompts"),
        "suffix": text(caps.suffix_chars, "suffix_chars"),
        "logprobs": integer(0, caps.logprobs, "logprobs"),
        # engines do not read this field here, so the reservation would count on a cap that nobody keeps
        "max_completion_tokens": unsupported("send 'max_tokens'"),
    }


def completions_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of the prompts. A `suffix`, the text behind a gap to fill, is no token id."""
    return PromptSize(body_bytes, count_token_ids(document["prompt"]) if document.get("suffix") is None else None)


def completions_prompts(document: Mapping[str, object]) -> list[object]:
    """The prompts as an engine tokenises them."""
    return list_inputs(document["prompt"])
