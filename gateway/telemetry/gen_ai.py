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
from gateway.telemetry.exemplars import Slots, note
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
    """The cells of one combination of labels, and where their exemplars are kept."""

    duration: list[float]
    first_token: list[float]
    per_token: list[float]
    tokens_in: list[float]
    tokens_out: list[float]
    duration_slots: Slots
    first_token_slots: Slots
    per_token_slots: Slots
    in_slots: Slots
    out_slots: Slots


def gen_ai_cells(cells: Mapping[str, Cells], models: tuple[str, str], provider: str, operation: str, outcome: str) -> GenAiCells:
    """The cells for requests of one kind.

    Args:
        models: labels of the model that was asked for and of the one that answered.
        outcome: `ok` or the kind of the fault.
    """
    labels = (*models, provider, operation)
    by_error, to_engine, from_engine = (*labels, _ERROR_OF.get(outcome, OTHER)), (*labels, "input"), (*labels, "output")
    duration, first_token, per_token, tokens = (cells[family.name] for family in (GEN_AI_DURATION, GEN_AI_TTFT, GEN_AI_TPOT, GEN_AI_TOKENS))
    return GenAiCells(
        duration.cell(by_error),
        first_token.cell(labels),
        per_token.cell(labels),
        tokens.cell(to_engine),
        tokens.cell(from_engine),
        duration.slots(by_error),
        first_token.slots(labels),
        per_token.slots(labels),
        tokens.slots(to_engine),
        tokens.slots(from_engine),
    )


def count_gen_ai(cells: GenAiCells, record: Record, *, settled: bool) -> None:
    """Count one request; with a trace it may become the exemplar of its buckets.

    Args:
        settled: whether its usage is the engine's own; the conventions want no estimates.
    """
    trace_id, at_unix = record.trace_id, record.at_unix + record.duration_s
    duration = cells.duration
    at = bisect_left(GEN_AI_DURATION_BOUNDS_S, record.duration_s)
    duration[at] += 1
    duration[-1] += record.duration_s
    if trace_id:
        note(cells.duration_slots, at, trace_id, record.duration_s, at_unix)
    if settled:
        usage = record.usage
        tokens = cells.tokens_in
        at = bisect_left(GEN_AI_TOKEN_BOUNDS, usage.prompt_tokens)
        tokens[at] += 1
        tokens[-1] += usage.prompt_tokens
        if trace_id:
            note(cells.in_slots, at, trace_id, usage.prompt_tokens, at_unix)
        if usage.completion_tokens:
            tokens = cells.tokens_out
            at = bisect_left(GEN_AI_TOKEN_BOUNDS, usage.completion_tokens)
            tokens[at] += 1
            tokens[-1] += usage.completion_tokens
            if trace_id:
                note(cells.out_slots, at, trace_id, usage.completion_tokens, at_unix)
    if record.stream and record.ttft_s is not None and record.outcome == OK:  # both are of successes alone
        times = cells.first_token
        at = bisect_left(GEN_AI_TTFT_BOUNDS_S, record.ttft_s)
        times[at] += 1
        times[-1] += record.ttft_s
        if trace_id:
            note(cells.first_token_slots, at, trace_id, record.ttft_s, at_unix)
        if record.decode_s is not None and record.usage.completion_tokens > 1:
            per_token = record.decode_s / (record.usage.completion_tokens - 1)
            times = cells.per_token
            at = bisect_left(GEN_AI_TPOT_BOUNDS_S, per_token)
            times[at] += 1
            times[-1] += per_token
            if trace_id:
                note(cells.per_token_slots, at, trace_id, per_token, at_unix)
