"""`GET /v1/models` and `GET /v1/models/{name}` as Anthropic's API answers them, for callers that send `anthropic-version`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from gateway.http.openai.models import ModelFacts

VERSION_HEADER: Final = b"anthropic-version"
"""The header that clients of the API send with every request."""


class _MessagesModel(msgspec.Struct, frozen=True, tag="model"):
    id: str
    display_name: str
    created_at: str
    lifecycle: str = "active"
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class _MessagesModels(msgspec.Struct, frozen=True):
    data: tuple[_MessagesModel, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


def render_messages_models(models: Sequence[ModelFacts], created: int) -> bytes:
    """The list, whole: there is no further page.

    Args:
        created: seconds since the epoch, the same for all models.
    """
    rows = tuple([_row(model, created) for model in models])
    return msgspec.json.encode(_MessagesModels(rows, rows[0].id if rows else None, rows[-1].id if rows else None))


def render_messages_model(model: ModelFacts, created: int) -> bytes:
    """One model."""
    return msgspec.json.encode(_row(model, created))


def _row(model: ModelFacts, created: int) -> _MessagesModel:
    at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _MessagesModel(model.name, model.name, at, max_input_tokens=model.context_tokens, max_tokens=model.context_tokens)
