"""One line of a batch as a request of the batch's caller (`gateway/background/own_request.py`).

Limits, guard rules, fallback, routing, explanations and metrics are those of any other request. Two things differ. What would make the line
fail for no fault of its own is not its result: the line is sent again later. And the ledger's row of the line has an id that follows from
the batch and the line, and the day on which the batch began, so that a line that is sent again after a crash is booked once. Such a line
has no row while it is in flight: the row comes with its result.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec

from domain.batches import LineResult, StoredBatch, TokenSums
from domain.faults import SOURCE, Kind, Source
from gateway.background.own_request import send_own
from gateway.deps import Deps
from gateway.http.edge.exchange import OwnRequest
from gateway.record import OK, Record
from gateway.request.holds import OpenHolds

LATER: Final = frozenset(
    {
        *(Kind.OVERLOADED, Kind.SHUTTING_DOWN, Kind.QUOTA_UNKNOWN, Kind.IDENTITY_UNAVAILABLE, Kind.GUARD_UNAVAILABLE),
        *(Kind.REQUEST_LIMIT, Kind.TOKEN_LIMIT, Kind.CONCURRENCY_LIMIT, Kind.CLIENT_GONE),
        *(Kind.NO_BACKEND, Kind.ENGINE_BUSY, Kind.LORA_UNAVAILABLE),
    }
)
"""Faults after which a line is sent again, however often: nothing has come of it, and the batch has its whole window."""
ATTEMPTS: Final = 3
"""How often a line is sent whose engine fails, each time with the retries that every request has."""


class LineOutcome(msgspec.Struct, frozen=True):
    """What came of sending a line once."""

    record: Record
    status: int
    body: bytes

    def is_final(self, attempts: int) -> bool:
        """Whether it is the line's result, after so many attempts."""
        if self.record.outcome == OK:
            return True
        kind = Kind(self.record.outcome)
        if kind in LATER:
            return False
        return SOURCE[kind] is Source.CALLER or attempts >= ATTEMPTS


async def send_line(batch: StoredBatch, body: bytes, price_percent: int, holds: OpenHolds, deps: Deps) -> LineOutcome:
    """Send one line.

    Args:
        body: the request in JSON.
        holds: the open holds of lines, which the ledger does not write down while they are open.
    """
    own = OwnRequest(batch.caller, price_percent)
    reply = await send_own(own, batch.endpoint, body, replace(deps, holds=holds))
    return LineOutcome(reply.record, reply.status, reply.body)


def ledger_record(record: Record, batch: StoredBatch, line: int) -> Record:
    """The Record as the ledger books it: with the id of the line, and the time at which the batch began."""
    at_unix = batch.created_unix if batch.in_progress_unix is None else batch.in_progress_unix
    return msgspec.structs.replace(record, engine_request_id=line_id(batch.id, line), at_unix=at_unix)


def line_id(batch_id: str, line: int) -> str:
    """The id of a line in output files and in the ledger; it follows from the batch and the line's number."""
    return f"batch_req_{hashlib.sha256(f'{batch_id}/{line}'.encode()).hexdigest()[:32]}"


def result_of(outcome: LineOutcome, batch: StoredBatch, line: int, custom_id: str) -> LineResult:
    """The line of the output file, or of the error file."""
    record = outcome.record
    answered = record.outcome == OK
    response = {"status_code": outcome.status, "request_id": record.gateway_id, "body": one_line(outcome.body)}
    usage = record.usage
    sums = TokenSums(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens)
    return LineResult(line, not answered, _output(batch, line, custom_id, response=response), sums if answered else TokenSums())


def unsent(batch: StoredBatch, line: int, custom_id: str, code: str, message: str) -> LineResult:
    """The result of a line that was not sent before its batch ended."""
    return LineResult(line, True, _output(batch, line, custom_id, error={"code": code, "message": message}))


def _output(batch: StoredBatch, line: int, custom_id: str, *, response: object = None, error: object = None) -> str:
    whole = {"id": line_id(batch.id, line), "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(whole).decode()


def one_line(body: bytes) -> Any:
    """A reply's JSON without line breaks; a text where it is no JSON."""
    try:
        return msgspec.Raw(msgspec.json.format(body, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")


Note = Callable[[Record], None]
"""Called with a finished request."""
