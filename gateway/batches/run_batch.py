"""One batch on the worker that holds its lease: its input is read, its lines are sent, its files are written.

Each step can be begun again by another worker. Reading the input changes nothing but the state; lines with results are not sent again; and
the output files have ids that follow from the batch, so a file that was written half is written anew.

A line's slot is free only once its result is in the database, and its row of the ledger on the disk before that. So a crash loses at most
the lines that were in flight, and those are sent again: engines are called once per line, and for each crash once more per slot.
"""

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import structlog
from msgspec import structs

from domain.batches import BatchBook, BatchStatus, LeaseLost, LineMistake, LineResult, StoredBatch
from domain.files import StorageBounds, StoredFile, StoresAway, file_key
from gateway.batches.input_lines import InputLine, InputReader, body_of, left
from gateway.batches.line import ledger_record, result_of, send_line, unsent
from gateway.batches.slots import LineSlots, RunnerParts
from gateway.files.service import FileService
from gateway.http.openai.files import BATCH_OUTPUT

PAGE: Final = 500
"""Results read or written at once."""
LOOK_S: Final = 0.05
"""Between two looks for room while there is none."""
PAUSE_S: Final = (0.5, 30.0)
"""The first and the longest pause before a line is sent again; it doubles with each attempt."""
WITHOUT_QUOTA: Final = StorageBounds(files=2**40, bytes=2**60)
"""Output files are written whatever their tenant has stored: what was paid for is not thrown away."""

log = structlog.get_logger("tidegate.batches")


class BatchRun:
    """Runs one batch to its end, or until its lease is lost."""

    def __init__(self, batch: StoredBatch, service: FileService, parts: RunnerParts, slots: LineSlots) -> None:
        assert service.batches is not None
        self._batch = batch
        self._service = service
        self._book: BatchBook = service.batches
        self._parts = parts
        self._slots = slots
        self._attempts: dict[int, int] = {}
        """Attempts by the number of the line, of lines that have to be sent again."""
        self._results: list[tuple[LineResult, asyncio.Future[None]]] = []
        self._come = asyncio.Event()
        self._held_until = 0.0

    async def run(self) -> None:
        """Run the batch. What can be tried again, by this worker or another one, is logged and left."""
        deps = self._parts.deps
        working = asyncio.ensure_future(self._work())
        renewing = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            else:
                renewing.result()
        except LeaseLost:
            log.info("another worker runs the batch", batch=self._batch.id)
        except StoresAway as error:
            log.warning("a batch waits for its storage", batch=self._batch.id, reason=str(error))
        except Exception as error:  # noqa: BLE001 - nobody awaits this task; the batch is tried again once its lease is over
            deps.log_defect(error, self._batch.id)
        finally:
            for task in (working, renewing):
                task.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)
            if self._batch.is_open:
                await self._give_back()

    async def _give_back(self) -> None:
        with contextlib.suppress(LeaseLost, StoresAway):  # then it ends by itself
            await self._book.renew(self._batch.id, self._parts.owner, self._parts.deps.wall() - 1.0)

    async def _renew(self) -> None:
        """Renew the lease until cancelled, and learn that the batch is cancelled. Raises LeaseLost once the lease is over."""
        lease_s, wall = self._parts.lease_s, self._parts.deps.wall
        self._held_until = wall() + lease_s
        while True:
            await asyncio.sleep(lease_s / 3)
            until = wall() + lease_s
            try:
                seen = await self._book.renew(self._batch.id, self._parts.owner, until)
            except StoresAway as error:
                if wall() >= self._held_until:
                    raise LeaseLost(str(error)) from None
                continue
            self._held_until = until
            if seen.status == "cancelling" and self._batch.status in ("validating", "in_progress"):
                self._batch = structs.replace(self._batch, status=seen.status, cancelling_unix=seen.cancelling_unix)

    # --- the steps --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        lines = await self._read()
        if self._batch.status == "failed":
            return
        if self._batch.status == "validating":
            now = self._parts.deps.wall()
            started = structs.replace(self._batch, status="in_progress", in_progress_unix=now)
            await self._write(started, "validating")
        if self._batch.status in ("in_progress", "cancelling"):
            done = await self._book.done(self._batch.id)
            await self._send(left(lines, done))
            await self._end_lines(lines)
            await self._finalize()
        await self._finish()

    async def _write(self, wanted: StoredBatch, before: BatchStatus) -> None:
        """Write a new state, or take that of a caller who cancelled the batch meanwhile."""
        if await self._book.write(wanted, self._parts.owner, before):
            self._batch = wanted
        else:
            seen = await self._book.renew(self._batch.id, self._parts.owner, self._held_until)
            self._batch = structs.replace(seen, total=wanted.total, model=wanted.model)

    async def _read(self) -> list[InputLine]:
        """The lines of the input file; ends the batch as failed where they have mistakes."""
        batch = self._batch
        if batch.status == "finalizing":
            return []
        file = await self._service.files.find(batch.tenant, batch.input_file_id)
        reader = InputReader(batch.endpoint, self._service.max_lines)
        if file is None or file.status != "ready":
            reader.mistakes.append(LineMistake("input_file_not_found", "The input file was deleted."))
            if batch.status != "validating":  # what is done is kept
                self._batch = structs.replace(batch, mistakes=tuple(reader.mistakes), ends_as="failed")
                return []
        else:
            async for piece in self._service.contents.stream(file_key(file.id)):
                await asyncio.to_thread(reader.feed, piece)
        count = reader.count
        lines = await asyncio.to_thread(reader.end)
        self._batch = structs.replace(self._batch, total=count, model=reader.model)
        if reader.mistakes:
            failed = structs.replace(
                self._batch, status="failed", failed_unix=self._parts.deps.wall(), mistakes=tuple(reader.mistakes), total=0
            )
            await self._book.finish(failed, self._parts.owner)
            self._batch = failed
        return lines

    def _over(self) -> bool:
        """Whether no further line may be sent."""
        return self._batch.status == "cancelling" or self._parts.deps.wall() >= self._batch.expires_unix

    async def _send(self, lines: list[InputLine]) -> None:
        """Send lines while there is room, until all have results or the batch is over."""
        clock = self._parts.deps.clock
        todo = deque(lines)
        later: list[tuple[float, InputLine]] = []
        running: set[asyncio.Task[InputLine | None]] = set()
        writing = asyncio.ensure_future(self._write_results())
        try:
            while running or ((todo or later) and not self._over()):
                now = clock()
                todo.extend(line for at, line in later if at <= now)
                later = [(at, line) for at, line in later if at > now]
                while todo and not self._over() and not self._parts.draining() and (place := self._slots.take(self._batch)) is not None:
                    running.add(asyncio.ensure_future(self._one(todo.popleft(), place)))
                if running:
                    await asyncio.wait((*running, writing), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(LOOK_S)
                if writing.done():
                    writing.result()
                ended = {task for task in running if task.done()}
                running -= ended
                for again in (line for task in ended if (line := task.result()) is not None):
                    pause_s = min(PAUSE_S[1], PAUSE_S[0] * 2 ** min(self._attempts[again.number], 10))
                    later.append((clock() + pause_s, again))
        finally:
            for task in (writing, *running):
                task.cancel()
            await asyncio.gather(writing, *running, return_exceptions=True)

    async def _one(self, line: InputLine, place: tuple[str, ...]) -> InputLine | None:
        """Send one line and write its result; returns the line where it has to be sent again."""
        try:
            data = await self._service.contents.piece(file_key(self._batch.input_file_id), line.start, line.length)
            outcome = await send_line(self._batch, body_of(data), self._parts.price_percent, self._parts.holds, self._parts.deps)
            attempts = self._attempts[line.number] = self._attempts.get(line.number, 0) + 1
            self._parts.note(outcome.record)
            if not outcome.is_final(attempts):
                self._parts.count("again", 1)
                return line
            del self._attempts[line.number]
            self._parts.book(ledger_record(outcome.record, self._batch, line.number))
            written: asyncio.Future[None] = self._parts.deps.loop.create_future()
            self._results.append((result_of(outcome, self._batch, line.number, line.custom_id), written))
            self._come.set()
            await written
            return None
        finally:
            self._slots.give_back(place)

    async def _write_results(self) -> None:
        """Write results as they come, those together that came while the last ones were written."""
        while True:
            await self._come.wait()
            self._come.clear()
            count = len(self._results)
            await self._parts.durable()
            # not those that came meanwhile: their rows of the ledger may be in memory alone, and a line with a result is never sent again
            results = self._results[:count]
            del self._results[:count]
            await self._book.note(self._batch.id, self._parts.owner, [result for result, _ in results])
            for result, written in results:
                self._parts.count("failed" if result.failed else "succeeded", 1)
                if not written.done():
                    written.set_result(None)

    async def _end_lines(self, lines: list[InputLine]) -> None:
        """Say in the error file of each line that was not sent why it was not."""
        code, message = "batch_cancelled", "The batch was cancelled before this request was sent."
        if self._batch.status != "cancelling":
            code, message = "batch_expired", "This request could not be executed before the completion window expired."
        done = await self._book.done(self._batch.id)
        missing = [unsent(self._batch, line.number, line.custom_id, code, message) for line in left(lines, done)]
        for begin in range(0, len(missing), PAGE):
            page = missing[begin : begin + PAGE]
            await self._book.note(self._batch.id, self._parts.owner, page)
            self._parts.count(code.removeprefix("batch_"), len(page))
        if missing and self._batch.status == "in_progress":
            self._batch = structs.replace(self._batch, ends_as="expired")

    async def _finalize(self) -> None:
        before = self._batch.status
        ends_as: BatchStatus = "cancelled" if before == "cancelling" else self._batch.ends_as
        wanted = structs.replace(self._batch, status="finalizing", finalizing_unix=self._parts.deps.wall(), ends_as=ends_as)
        await self._write(wanted, before)
        if self._batch.status == "cancelling":  # every line has its result already, but the caller was told so
            await self._write(structs.replace(self._batch, status="finalizing", ends_as="cancelled"), "cancelling")

    async def _finish(self) -> None:
        """Write the output files, and end the batch."""
        output, errors = await self._file(failed=False), await self._file(failed=True)
        status, now = self._batch.ends_as, self._parts.deps.wall()
        ended = structs.replace(self._batch, status=status, output_file_id=output, error_file_id=errors, **{f"{status}_unix": now})
        await self._book.finish(ended, self._parts.owner)
        self._batch = ended

    async def _file(self, *, failed: bool) -> str:
        """Write the output file or the error file. Returns its id; empty where it would have no line."""
        batch, wall = self._batch, self._parts.deps.wall
        if not await self._book.results(batch.id, failed, -1, 1):
            return ""
        kind = "errors" if failed else "output"
        file_id = f"file-{hashlib.sha256(f'{batch.id}/{kind}'.encode()).hexdigest()[:32]}"
        file = await self._service.files.find(batch.tenant, file_id)
        if file is None:
            file = StoredFile(
                id=file_id,
                tenant=batch.tenant,
                project=batch.caller.project,
                filename=f"{batch.id}_{kind}.jsonl",
                purpose=BATCH_OUTPUT,
                size_bytes=0,
                created_unix=wall(),
            )
            await self._service.files.enter(file, WITHOUT_QUOTA)
        size = [0]
        await self._service.contents.put(file_key(file_id), self._lines_of(failed, size))
        keep_s = batch.output_keep_s
        expires_unix = None if keep_s is None else wall() + keep_s
        await self._service.files.ready(structs.replace(file, size_bytes=size[0], expires_unix=expires_unix))
        return file_id

    async def _lines_of(self, failed: bool, size: list[int]) -> AsyncIterator[bytes]:
        after = -1
        while page := await self._book.results(self._batch.id, failed, after, PAGE):
            after = page[-1].line
            data = "".join(f"{result.output}\n" for result in page).encode()
            size[0] += len(data)
            yield data
