"""What one request wants, after it was parsed and checked. Made by `gateway/http/openai/`, read by every step."""

from collections.abc import Mapping
from enum import Enum

import msgspec


class Endpoint(Enum):
    """The inference routes of the data port. The value is the path, on our side and on the engine's."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"


class PromptReference(msgspec.Struct, frozen=True):
    """A prompt of the registry, as a request refers to it; nothing of it is checked against the registry."""

    id: str
    version: int | None
    """None for whichever its tenant's policy says."""
    variables: Mapping[str, object]


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One checked request, ready to be placed.

    `fields` is the checked object re-serialised as JSON *without* `model` and without any engine-control
    field; a backend's dialect writes those in front (`backends.dialects.body_for`). It always ends in `}`
    and is `{}` when nothing else was asked. So what is forwarded is what was checked, byte for byte.
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
    """How many sequences the engine generates for it: `choices`, and more where it is asked to pick the best."""
    user: str = ""
    """The caller's label of its own end user; empty for none."""
    logprobs: int = 0
    """Alternatives per token it asks for."""
    token_ids: int | None = None
    """Tokens of a prompt that is ids throughout; None for one with text."""
    media: int = 0
    """Parts of its messages that are or have something else than text."""
    image_bytes: int = 0
    """Of `prompt_bytes`, those of images."""
    names: frozenset[str] = frozenset()
    """Names of the members of `fields`, so that nobody has to read them again to know whether an engine takes them."""
    prompt_at: tuple[int, int] = (0, 0)
    """Where in `fields` the value of `messages`, `prompt` or `input` begins and ends; it stands in front of everything else."""
    session: str = ""
    """What the caller calls the conversation it belongs to; empty for none. Never sent to an engine."""
    flex: bool = False
    """Whether it may take longer: OpenAI's `service_tier: "flex"`."""
    template: PromptReference | None = None
    """The prompt whose messages are still to be put in front; until then there may be no other message, and no model."""

    @property
    def prompt(self) -> bytes:
        """The value of `messages`, `prompt` or `input` as JSON."""
        return self.fields[self.prompt_at[0] : self.prompt_at[1]]
