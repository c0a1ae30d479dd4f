"""Counts requests under the names of OpenTelemetry's conventions for generative AI, beside our own families: `gen_ai.server.*`, which
are what callers see, and `gen_ai.client.token.usage`.

The conventions' attributes are labels here, with underscores. `gen_ai_request_model` is the name that was asked for,
`gen_ai_response_model` the one that answered; both are names of the policies. `gen_ai_provider_name` is the dialect of the pool's engines,
since the conventions' list has no engines that people run themselves, and lets one add to it. `error_type` says whose failure it was: one
of three, because a label for each kind of fault would take the room of the models.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from domain.ask import Endpoint
from domain.faults import SOURCE
from gateway.record import OK, Record
from gateway.telemetry.cells import Cells
from gateway.telemetry.families import (
    GEN_AI_DURATION,
    GEN_AI_DURATION_BOUNDS_S,
    GEN_AI_TOKEN_BOUNDS,
    GEN_AI_TOKENS,
    GEN_AI_TPOT,
    GEN_AI_TPOT_BOUNDS_S,
    GEN_AI_TTFT,
    GEN_AI_TTFT_BOUNDS_S,
    OTHER,
)

CHAT: Final = "chat"
OPERATIONS: Final[Mapping[str, str]] = {
    Endpoint.CHAT.value: CHAT,
    "/v1/messages": CHAT,
    "/v1/responses": CHAT,
    Endpoint.COMPLETIONS.value: "text_completion",
    Endpoint.EMBEDDINGS.value: "embeddings",
    Endpoint.RERANK.value: "rerank",
    Endpoint.SCORE.value: "score",
    Endpoint.CLASSIFY.value: "classify",
    Endpoint.POOLING.value: "pooling",
    Endpoint.TRANSCRIPTIONS.value: "transcription",
    Endpoint.TRANSLATIONS.value: "translation",
    Endpoint.SPEECH.value: "speech",
    Endpoint.REALTIME.value: "realtime",
}
"""`gen_ai.operation.name` by endpoint. The first three words are the conventions' own; they have none for the others, and allow further
ones. Endpoints without an entry, such as the model list, are no operation of a model and are not counted here."""

GENERATING: Final = frozenset({CHAT, "text_completion"})
"""The operations whose answers are generated text."""

_ERROR_OF: Final[Mapping[str, str]] = {kind.value: source.value for kind, source in SOURCE.items()} | {OK: ""}


class GenAiCells(NamedTuple):
    """The cells of one combination of labels."""

    duration: list[float]
    first_token: list[float]
    per_token: list[float]
    tokens_in: list[float]
    tokens_out: list[float]


def gen_ai_cells(cells: Mapping[str, Cells], models: tuple[str, str], provider: str, operation: str, outcome: str) -> GenAiCells:
    """The cells for requests of one kind.

    Args:
        models: labels of the model that was asked for and of the one that answered.
        outcome: `ok` or the kind of the fault.
    """
    labels = (*models, provider, operation)
    return GenAiCells(
        cells[GEN_AI_DURATION.name].cell((*labels, _ERROR_OF.get(outcome, OTHER))),
        cells[GEN_AI_TTFT.name].cell(labels),
        cells[GEN_AI_TPOT.name].cell(labels),
        cells[GEN_AI_TOKENS.name].cell((*labels, "input")),
        cells[GEN_AI_TOKENS.name].cell((*labels, "output")),
    )


def count_gen_ai(cells: GenAiCells, record: Record, *, settled: bool) -> None:
    """Count one request.

    Args:
        settled: whether its usage is the engine's own; the conventions want no estimates.
    """
    duration = cells.duration
    duration[bisect_left(GEN_AI_DURATION_BOUNDS_S, record.duration_s)] += 1
    duration[-1] += record.duration_s
    if settled:
        usage = record.usage
        tokens = cells.tokens_in
        tokens[bisect_left(GEN_AI_TOKEN_BOUNDS, usage.prompt_tokens)] += 1
        tokens[-1] += usage.prompt_tokens
        if usage.completion_tokens:
            tokens = cells.tokens_out
            tokens[bisect_left(GEN_AI_TOKEN_BOUNDS, usage.completion_tokens)] += 1
            tokens[-1] += usage.completion_tokens
    if record.stream and record.ttft_s is not None and record.outcome == OK:  # both are of successes alone
        times = cells.first_token
        times[bisect_left(GEN_AI_TTFT_BOUNDS_S, record.ttft_s)] += 1
        times[-1] += record.ttft_s
        if record.decode_s is not None and record.usage.completion_tokens > 1:
            per_token = record.decode_s / (record.usage.completion_tokens - 1)
            times = cells.per_token
            times[bisect_left(GEN_AI_TPOT_BOUNDS_S, per_token)] += 1
            times[-1] += per_token
