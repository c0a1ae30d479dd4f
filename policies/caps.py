"""`caps` of a policy file: the most of each thing that one request may hold. A cap without an entry has today's number.

Each cap bounds a field by which one small request could cost as much as many. The upper bound of a cap is that of the engines where they
have one. Elsewhere it is what the gateway can read or keep: a body has at most 50,000 objects and arrays, 100,000 keys and 64 levels,
whatever the policy says (`gateway/http/openai/json_guard.py`), so that a policy can only lower `depth`. Why some bounds are no caps at all
is in docs/reference/policies.md.
"""

from collections.abc import Iterable
from typing import Final

from pydantic import Field

from domain.strict import Strict


class RequestCaps(Strict):
    """The most of each thing that one request may hold."""

    body_bytes: int | None = Field(
        default=None,
        ge=1024,
        le=1024**3,
        description="Size of the request body. Null: `data.limits.max_body_bytes`. Never more than `data.limits.largest_body_bytes`.",
    )
    choices: int = Field(
        default=16,
        ge=1,
        le=16_384,
        description="`n` and `best_of`: every answer holds KV memory of its own. vLLM takes no more than 16,384.",
    )
    output_tokens: int = Field(
        default=1_000_000,
        ge=1,
        le=2**24 - 1,
        description="`max_tokens`, `max_completion_tokens` and `min_tokens`. The most is the longest answer that statistics tell apart.",
    )
    logprobs: int = Field(
        default=20,
        ge=0,
        le=128,
        description="Alternatives per token: `logprobs`, `top_logprobs`, `prompt_logprobs`, `logprob_token_ids`. vLLM takes at most "
        "128 ids, and more than 20 alternatives only with `--max-logprobs`.",
    )
    messages: int = Field(
        default=4096, ge=1, le=32_768, description="Messages of a chat. Each is an object, and a body may have 50,000 objects and arrays."
    )
    parts: int = Field(default=1024, ge=1, le=32_768, description="Parts of one message, such as images or the frames of a video.")
    tools: int = Field(
        default=256,
        ge=0,
        le=4096,
        description="`tools` and `functions`, each of some ten objects: the engine renders them into the prompt.",
    )
    tool_calls: int = Field(default=128, ge=0, le=4096, description="`tool_calls` of one message.")
    prompts: int = Field(
        default=256,
        ge=1,
        le=2048,
        description="Prompts of one text completion, each a sequence of the batch. OpenAI takes 2,048.",
    )
    inputs: int = Field(
        default=2048, ge=1, le=32_768, description="Inputs of one embedding. As token ids each is an array, and a body may have 50,000."
    )
    schema_bytes: int = Field(
        default=64 * 1024,
        ge=1024,
        le=4 * 1024 * 1024,
        description="One JSON schema, serialised: of `response_format`, of structured output, of a tool. The cost of "
        "compiling grows faster than the size; a body's 100,000 keys are a schema of some 4 MiB.",
    )
    schema_depth: int = Field(
        default=32,
        ge=1,
        le=60,
        description="Levels of nested containers in a schema. A body may have 64, as a schema in vLLM.",
    )
    grammar_chars: int = Field(
        default=8 * 1024,
        ge=1,
        le=1024 * 1024,
        description="Characters of a regular expression or grammar, and bytes of a tool that is no function; engines compile it.",
    )
    stops: int = Field(default=16, ge=0, le=1024, description="`stop`: engines search every stop text after each token. OpenAI takes 4.")
    stop_chars: int = Field(
        default=1024, ge=1, le=65_536, description="Characters of one text in `stop`, `bad_words`, or the choices of structured output."
    )
    bad_words: int = Field(
        default=256, ge=0, le=1024, description="`bad_words`. vLLM takes 128 token sequences, and more with `VLLM_MAX_NUM_BAD_WORDS`."
    )
    structured_choices: int = Field(default=1024, ge=1, le=65_536, description="`guided_choice` and `structured_outputs.choice`.")
    token_ids: int = Field(
        default=1024, ge=0, le=524_288, description="`stop_token_ids` and `allowed_token_ids`. Vocabularies have up to 262,144 tokens."
    )
    biases: int = Field(
        default=1024, ge=0, le=65_536, description="`logit_bias`: applied on the GPU for each token. A body may have 100,000 keys."
    )
    documents: int = Field(default=256, ge=0, le=8192, description="`documents`, which a template renders into the prompt.")
    suffix_chars: int = Field(default=1024 * 1024, ge=0, le=1024**3, description="`suffix` of a text completion; the body bounds it, too.")
    template_variables: int = Field(default=16, ge=0, le=256, description="Members of `chat_template_kwargs`.")
    variable_chars: int = Field(default=1024, ge=1, le=1024 * 1024, description="Characters of one text in `chat_template_kwargs`.")
    name_chars: int = Field(default=256, ge=1, le=65_536, description="Characters of the name of one function, in `tools` or `functions`.")
    user_chars: int = Field(
        default=512,
        ge=1,
        le=512,
        description="Characters of `user`. The ledger keeps it, and takes no longer one: a policy can only lower it.",
    )
    dimensions: int = Field(
        default=65_536,
        ge=1,
        le=2**31 - 1,
        description="`dimensions` of an embedding. Usually ten times the widest embedding served today; engines keep it in 32 bits.",
    )
    top_k: int = Field(
        default=1_000_000, ge=1, le=2**31 - 1, description="`top_k`. The usual number is above any vocabulary; engines keep it in 32 bits."
    )
    temperature: int = Field(
        default=2, ge=0, le=100, description="`temperature`. OpenAI and vLLM take 2; SGLang and llama.cpp have no upper bound."
    )
    repetition_penalty: int = Field(
        default=10, ge=1, le=1000, description="`repetition_penalty`. SGLang takes 2; vLLM and llama.cpp have no upper bound."
    )
    samplers: int = Field(default=32, ge=0, le=1024, description="Entries of `samplers` and of `dry_sequence_breakers`, for llama.cpp.")
    sampler_chars: int = Field(default=64, ge=1, le=65_536, description="Characters of one entry of `samplers` or `dry_sequence_breakers`.")
    sampler_order_chars: int = Field(
        default=1024, ge=1, le=65_536, description="Characters of `samplers` as one text, a letter for each sampler."
    )
    depth: int = Field(
        default=64, ge=3, le=64, description="Levels of nested containers in a body. The gateway reads no more; a policy can only lower it."
    )
    media_kwargs_bytes: int = Field(
        default=4096,
        ge=2,
        le=64 * 1024,
        description="`mm_processor_kwargs` and `media_io_kwargs` each, where they are opened.",
    )


BODY: Final = "body_bytes"

USUAL_CAPS: Final = RequestCaps()
"""The caps of a policy that sets none. The same object stands for them everywhere, so that a comparison costs no more than `is`."""


def caps_of(written: RequestCaps) -> RequestCaps:
    """The caps of a validated policy file."""
    return USUAL_CAPS if written == USUAL_CAPS else written


def widest(caps: Iterable[RequestCaps]) -> RequestCaps:
    """The largest value of each cap but `body_bytes`. One of the caps themselves, the first such, where it has all of these values."""
    distinct = list(dict.fromkeys(caps))
    most = {name: max(getattr(one, name) for one in distinct) for name in RequestCaps.model_fields if name != BODY}
    for one in distinct:
        if all(getattr(one, name) == value for name, value in most.items()):
            return one
    return RequestCaps(**most)


def set_caps(caps: RequestCaps) -> dict[str, int]:
    """The caps that differ from the usual ones, by name."""
    return {name: getattr(caps, name) for name in RequestCaps.model_fields if getattr(caps, name) != getattr(USUAL_CAPS, name)}
