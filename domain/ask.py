"""The parsed and checked request. Made by `gateway/http/openai/`, read by every step."""

from collections.abc import Mapping
from enum import Enum

import msgspec


class Endpoint(Enum):
    """The inference routes of the data port. The value is the path, on our side and on the engine's."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"


class PromptReference(msgspec.Struct, frozen=True):
    """A request's reference to a prompt of the registry, not checked against the registry yet."""

    id: str
    version: int | None
    """None: the version that the tenant's policy selects."""
    variables: Mapping[str, object]


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One checked request, ready to be routed.

    `fields` is the checked object re-serialised as JSON *without* `model` and without any engine-control
    field; a backend's dialect writes those in front (`backends.dialects.body_for`). It always ends in `}`
    and is `{}` when there is no other field. So the forwarded fields are the checked ones, byte for byte.
    """

    endpoint: Endpoint
    model: str
    """The public name the caller used."""
    fields: bytes
    stream: bool
    include_usage: bool
    """Whether the caller asked for the usage event; engines are always asked."""
    choices: int
    """How many finish reasons a whole answer has: `n` times the number of prompts (0 for embeddings)."""
    prompt_bytes: int
    """Upper bound on prompt tokens: a byte-level tokenizer never makes more tokens than bytes."""
    max_output_tokens: int | None
    """Output tokens per sequence that the engine is told not to exceed, or None."""
    sequences: int = 0
    """Sequences that the engine generates for the request: `choices`, and more with `best_of`."""
    user: str = ""
    """The caller's label for its own end user; empty for none."""
    logprobs: int = 0
    """Log probabilities of alternatives per token that the request asks for."""
    token_ids: int | None = None
    """Tokens of a prompt given as token ids; None for a prompt with text."""
    media: int = 0
    """Message parts that are, or contain, something other than text."""
    image_bytes: int = 0
    """The part of `prompt_bytes` that is images."""
    names: frozenset[str] = frozenset()
    """Names of the members of `fields`, so that they need not be parsed again to know whether an engine accepts them."""
    prompt_at: tuple[int, int] = (0, 0)
    """Where in `fields` the value of `messages`, `prompt` or `input` begins and ends; it stands in front of everything else."""
    session: str = ""
    """The caller's name for the conversation that the request belongs to; empty for none. Never sent to an engine."""
    flex: bool = False
    """Whether the request may take longer: OpenAI's `service_tier: "flex"`."""
    template: PromptReference | None = None
    """The registry prompt whose messages are still to be put in front; until then, the request may have no other message and no model."""

    @property
    def prompt(self) -> bytes:
        """The value of `messages`, `prompt` or `input` as JSON."""
        return self.fields[self.prompt_at[0] : self.prompt_at[1]]
