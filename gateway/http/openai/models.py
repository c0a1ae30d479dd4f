"""The model list in OpenAI's shape, with the facts by which other clients choose a model. `DataPort` decides which names a caller may see.

The further fields are those that clients read already: `max_model_len` (vLLM), `context_length`, `architecture` and `pricing`
(OpenRouter), `type` (Together). A fact that is not known is left out.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from tenancy.prices import PER_TOKENS, Price

OWNER: Final = "tidegate"
"""The `owned_by` of every model: a model's origin is no matter of callers."""

ANSWERS: Final = {"embedding": ("embeddings",), "rerank": ("scores",)}
"""What a model answers with, by kind; the others answer with text."""


class Abilities(msgspec.Struct, frozen=True):
    """What a pool's model is for, and the kinds of content that it takes."""

    kind: str = "chat"
    modalities: tuple[str, ...] = ("text",)


class ModelFacts(msgspec.Struct, frozen=True):
    """What the list tells of one model."""

    name: str
    abilities: Abilities = Abilities()
    context_tokens: int | None = None
    """The longest prompt and answer together; None where nobody said it."""
    price: Price | None = None
    """The price in force; None where the caller's policy does not show it."""


class _Architecture(msgspec.Struct, frozen=True):
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]


class _Pricing(msgspec.Struct, frozen=True):
    """Dollars per token."""

    prompt: str
    completion: str
    input_cache_read: str
    internal_reasoning: str


class _Model(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    created: int
    object: str
    owned_by: str
    type: str
    architecture: _Architecture
    max_model_len: int | None = None
    context_length: int | None = None
    pricing: _Pricing | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]
    object: str = "list"


def render_models(models: Sequence[ModelFacts], created: int) -> bytes:
    """The body of `GET /v1/models`.

    Args:
        models: the models, in the order of the list.
        created: seconds since the epoch, the same for all models; clients only sort by it.
    """
    return msgspec.json.encode(_Models(tuple([_model(model, created) for model in models])))


def render_model(model: ModelFacts, created: int) -> bytes:
    """The body of `GET /v1/models/{name}`."""
    return msgspec.json.encode(_model(model, created))


def _model(model: ModelFacts, created: int) -> _Model:
    kind = model.abilities.kind
    architecture = _Architecture(model.abilities.modalities, ANSWERS.get(kind, ("text",)))
    pricing = _pricing(model.price) if model.price is not None else None
    return _Model(model.name, created, "model", OWNER, kind, architecture, model.context_tokens, model.context_tokens, pricing)


def _pricing(price: Price) -> _Pricing:
    rates = price.nanousd_per_mtok
    parts = (rates.uncached_input, rates.output, rates.cached_input, rates.reasoning)
    return _Pricing(*[_per_token(nanousd) for nanousd in parts])


def _per_token(nanousd_per_mtok: int) -> str:
    """Dollars per token, exactly: 15 digits behind the point, without trailing zeros."""
    whole, part = divmod(nanousd_per_mtok, 1_000_000_000 * PER_TOKENS)
    return f"{whole}.{part:015d}".rstrip("0").rstrip(".")
