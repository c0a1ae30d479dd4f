"""Batches as OpenAI's API shows them: the request for one, and the object in answers."""

from typing import Any, Final

import msgspec

from domain.ask import Endpoint
from domain.batches import StoredBatch
from domain.faults import Fault, Kind
from gateway.http.openai.files import ExpiresAfter
from gateway.http.openai.metadata import check_metadata
from gateway.http.responses import PATH as RESPONSES

WINDOW: Final = "24h"
WINDOW_S: Final = 86_400.0


class BatchRequest(msgspec.Struct):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


def check_request(asked: BatchRequest) -> None:
    """Check the members of a request for a batch. Raises Fault: INVALID_VALUE."""
    # a line of a batch is JSON, and so is its answer
    endpoints = [*(endpoint.path for endpoint in Endpoint if not (endpoint.sound or endpoint.duplex)), RESPONSES]
    if asked.endpoint not in endpoints:
        raise Fault(Kind.INVALID_VALUE, f"'endpoint' is one of {', '.join(endpoints)}.", param="endpoint")
    if asked.completion_window != WINDOW:
        raise Fault(Kind.INVALID_VALUE, f"'completion_window' is '{WINDOW}'.", param="completion_window")
    check_metadata(asked.metadata)


def batch_object(batch: StoredBatch) -> dict[str, Any]:
    """A batch as answers show it."""
    usage = batch.usage
    mistakes = [
        {"code": mistake.code, "message": mistake.message, "line": mistake.line, "param": mistake.param} for mistake in batch.mistakes
    ]
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": mistakes} if mistakes else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        "created_at": int(batch.created_unix),
        "in_progress_at": _seconds(batch.in_progress_unix),
        "expires_at": int(batch.expires_unix),
        "finalizing_at": _seconds(batch.finalizing_unix),
        "completed_at": _seconds(batch.completed_unix),
        "failed_at": _seconds(batch.failed_unix),
        "expired_at": _seconds(batch.expired_unix),
        "cancelling_at": _seconds(batch.cancelling_unix),
        "cancelled_at": _seconds(batch.cancelled_unix),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
        "metadata": batch.metadata,
    }


def _seconds(at_unix: float | None) -> int | None:
    return None if at_unix is None else int(at_unix)
