"""What one request wants, after it was parsed and checked. Made by `gateway/http/openai/`, read by every step."""

from enum import Enum

import msgspec


class Endpoint(Enum):
    """The inference routes of the data port. The value is the path, on our side and on the engine's."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"


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
    """The caller's own cap per choice, or None."""
    names: frozenset[str] = frozenset()
    """Names of the members of `fields`, so that nobody has to read them again to know whether an engine takes them."""
