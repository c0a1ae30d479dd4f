"""An engine's model list: the models it serves, and the adapters it has loaded on top of them. Pure.

Engines list a loaded adapter beside their models and name the model it belongs to as its `parent` (vLLM, SGLang).
"""

import msgspec


class ModelListing(msgspec.Struct, frozen=True):
    """The models and adapters that an engine lists, by its own names."""

    models: tuple[str, ...]
    loras: tuple[str, ...]
    """Adapters."""


class _Card(msgspec.Struct):
    id: str
    parent: str | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


_decode = msgspec.json.Decoder(_Cards).decode


def read_model_list(body: bytes) -> ModelListing:
    """Read the reply of `/v1/models`. Raises ValueError when it is no model list."""
    try:
        cards = _decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no model list: {error}") from None
    return ModelListing(
        models=tuple(card.id for card in cards if not card.parent),
        loras=tuple(card.id for card in cards if card.parent),
    )
