"""An engine's model list: the models it serves, and the adapters it has loaded on top of them. Pure.

Engines list a loaded adapter beside their models and name the model it belongs to as its `parent` (vLLM, SGLang).
"""

from typing import Any, Final

import msgspec

MAX_CONTEXT_TOKENS: Final = 100_000_000
"""As in `pools[].context_tokens`; a larger number is a sentinel, not a context."""


class ModelListing(msgspec.Struct, frozen=True):
    """The models and adapters that an engine lists, by its own names."""

    models: tuple[str, ...]
    loras: tuple[str, ...]
    """Adapters."""
    context_tokens: int | None = None
    """The longest prompt and answer together that the engine takes, of its models the least; None where it does not say."""


class _Card(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: Any = None
    """vLLM's and SGLang's context; of any type, because an engine is not down for an odd number here."""
    meta: Any = None
    """An object of llama.cpp, with its context in `n_ctx`."""


class _Cards(msgspec.Struct):
    data: list[_Card]


_decode = msgspec.json.Decoder(_Cards).decode


def read_model_list(body: bytes) -> ModelListing:
    """Read the reply of `/v1/models`. Raises ValueError when it is no model list."""
    try:
        cards = _decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no model list: {error}") from None
    stated = [card.meta.get("n_ctx") if isinstance(card.meta, dict) else card.max_model_len for card in cards]
    contexts = [tokens for tokens in stated if isinstance(tokens, int) and 0 < tokens <= MAX_CONTEXT_TOKENS]
    return ModelListing(
        models=tuple(card.id for card in cards if not card.parent),
        loras=tuple(card.id for card in cards if card.parent),
        context_tokens=min(contexts, default=None),
    )
