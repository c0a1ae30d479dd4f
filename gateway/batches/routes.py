"""`/v1/batches`: a batch is created, listed, shown and cancelled. A worker finds it and runs it (`runner.py`)."""

from typing import Final

from msgspec import structs

from domain.batches import BatchBook, StoredBatch
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.files.file_routes import visible_file
from gateway.files.service import BATCHES, FileService, answered, entered, json_body, nothing_found, refusals
from gateway.http.edge.exchange import Exchange
from gateway.http.openai.batches import WINDOW_S, BatchRequest, batch_object, check_request
from gateway.http.openai.files import BATCH, BATCH_OUTPUT, keep_s, page_object, read_json, read_page_query
from gateway.story import Story

PAGE: Final = 20
MOST: Final = 100
"""Batches of a page where the caller names no number, and at most, as OpenAI has it."""


async def _entered(exchange: Exchange, story: Story, deps: Deps) -> tuple[Caller, FileService, BatchBook]:
    caller, service = await entered(BATCHES, exchange, story, deps)
    assert service.batches is not None, "`entered` has checked it"
    return caller, service, service.batches


async def create_batch(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `POST /v1/batches`.

    Raises:
        Fault: the key, the body, the input file or the number of open batches is why there is no batch.
    """
    caller, service, batches = await _entered(exchange, story, deps)
    asked = read_json(await json_body(exchange, caller, story, deps), BatchRequest)
    check_request(asked)
    file = await visible_file(asked.input_file_id, caller, service, deps, "input_file_id")
    if file.purpose != BATCH:
        message = f"The input file of a batch has the purpose '{BATCH}', and this one has '{file.purpose}'."
        raise Fault(Kind.INVALID_VALUE, message, param="input_file_id")
    now = deps.wall()
    batch = StoredBatch(
        id=service.new_id("batch_"),
        tenant=caller.tenant,
        # the network of the key was checked now; the lines come from no network
        caller=structs.replace(caller, networks=()),
        endpoint=asked.endpoint,
        input_file_id=file.id,
        completion_window=asked.completion_window,
        created_unix=now,
        expires_unix=now + WINDOW_S,
        metadata=asked.metadata,
        output_keep_s=keep_s(asked.output_expires_after, BATCH_OUTPUT),
    )
    with refusals():
        await batches.create(batch, service.max_open_batches)
    answered(batch_object(batch), exchange, story, deps)


async def list_batches(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `GET /v1/batches`. Raises Fault."""
    caller, _, batches = await _entered(exchange, story, deps)
    wanted = read_page_query(exchange.head.query, PAGE, MOST)
    after: StoredBatch | None = None
    with refusals():
        if wanted.after:
            after = await batches.find(caller.tenant, wanted.after)
            if after is None:
                raise nothing_found("Batch", wanted.after, "after")
        found = await batches.page(caller.tenant, after, wanted.limit + 1)
    page = [batch_object(batch) for batch in found[: wanted.limit]]
    answered(page_object(page, has_more=len(found) > wanted.limit), exchange, story, deps)


async def show_batch(exchange: Exchange, story: Story, deps: Deps, batch_id: str) -> None:
    """Answer `GET /v1/batches/{id}`. Raises Fault."""
    caller, _, batches = await _entered(exchange, story, deps)
    with refusals():
        batch = await batches.find(caller.tenant, batch_id)
    if batch is None:
        raise nothing_found("Batch", batch_id, "batch_id")
    answered(batch_object(batch), exchange, story, deps)


async def cancel_batch(exchange: Exchange, story: Story, deps: Deps, batch_id: str) -> None:
    """Answer `POST /v1/batches/{id}/cancel`. The worker that runs the batch learns of it within a third of its lease.

    Raises:
        Fault: OBJECT_NOT_FOUND; INVALID_VALUE for a batch that has ended; STORAGE_UNAVAILABLE.
    """
    caller, _, batches = await _entered(exchange, story, deps)
    with refusals():
        batch = await batches.cancel(caller.tenant, batch_id, deps.wall())
    if batch is None:
        raise nothing_found("Batch", batch_id, "batch_id")
    if batch.status not in ("cancelling", "cancelled"):
        raise Fault(Kind.INVALID_VALUE, f"A batch that is '{batch.status}' cannot be cancelled.", param="batch_id")
    answered(batch_object(batch), exchange, story, deps)
