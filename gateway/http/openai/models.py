"""The model list in OpenAI's shape. Who may see which name is decided before."""

from collections.abc import Sequence
from typing import Final

import msgspec

OWNER: Final = "tidegate"
"""What `owned_by` says for every model: where a model really comes from is no caller's matter."""


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
        names: public model names, in the order they shall be listed.
        created: seconds since the epoch, for all of them; clients sort by it and nothing else.
    """
    return msgspec.json.encode(_Models(tuple(_Model(name, created) for name in names)))


def render_model(name: str, created: int) -> bytes:
    """The body of `GET /v1/models/{name}`."""
    return msgspec.json.encode(_Model(name, created))
