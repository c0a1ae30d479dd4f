"""The model list in OpenAI's shape. `DataPort` decides which names a caller may see."""

from collections.abc import Sequence
from typing import Final

import msgspec

OWNER: Final = "tidegate"
"""The `owned_by` of every model: a model's origin is no matter of callers."""


class _Model(msgspec.Struct, frozen=True):
    id: str
    created: int
    object: str = "model"
    owned_by: str = OWNER


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]
    object: str = "list"


def render_models(names: Sequence[str], created: int) -> bytes:
    """The body of `GET /v1/models`.

    Args:
        names: public model names, in the order of the list.
        created: seconds since the epoch, the same for all models; clients only sort by it.
    """
    return msgspec.json.encode(_Models(tuple(_Model(name, created) for name in names)))


def render_model(name: str, created: int) -> bytes:
    """The body of `GET /v1/models/{name}`."""
    return msgspec.json.encode(_Model(name, created))
