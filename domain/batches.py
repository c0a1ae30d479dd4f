"""Batches: requests in a file, which the gateway sends by itself when there is room. Values, and the port of their store.

A worker that runs a batch holds a lease on it, in the book, and renews it. Whatever it writes is refused once another worker has taken the
lease (`LeaseLost`). The result of a line is written before the line counts as done, so whoever takes the batch over knows which lines are
left.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from domain.identity import Caller

BatchStatus = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]

OPEN: Final[tuple[BatchStatus, ...]] = ("validating", "in_progress", "finalizing", "cancelling")
"""The states in which a batch needs a worker."""
MAX_LINES: Final = 50_000
"""Requests of one batch, as OpenAI has it."""
MAX_OPEN: Final = 100
"""Open batches of one tenant: their lines, the results of which wait in SQL, are bounded with them."""


class LeaseLost(Exception):
    """Another worker runs the batch now, or nobody may any more."""


class TooManyBatches(Exception):
    """The tenant has as many open batches as it may; the message is for the caller."""


class LineMistake(msgspec.Struct, frozen=True):
    """One reason why a batch failed."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class TokenSums(msgspec.Struct, frozen=True):
    """Tokens of the lines that are done."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch. Times are seconds since the epoch, None until they come."""

    id: str
    tenant: str
    caller: Caller
    """Who created the batch; every line is a request of this caller."""
    endpoint: str
    input_file_id: str
    completion_window: str = "24h"
    status: BatchStatus = "validating"
    created_unix: float
    expires_unix: float
    metadata: dict[str, str] | None = None
    output_keep_s: float | None = None
    """How long the output files are kept; None for as long as other files of batches."""
    model: str = ""
    mistakes: tuple[LineMistake, ...] = ()
    output_file_id: str = ""
    error_file_id: str = ""
    in_progress_unix: float | None = None
    finalizing_unix: float | None = None
    completed_unix: float | None = None
    failed_unix: float | None = None
    expired_unix: float | None = None
    cancelling_unix: float | None = None
    cancelled_unix: float | None = None
    ends_as: BatchStatus = "completed"
    """The state that follows `finalizing`."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: TokenSums = TokenSums()

    @property
    def is_open(self) -> bool:
        """Whether the batch needs a worker."""
        return self.status in OPEN


class LineResult(msgspec.Struct, frozen=True):
    """The result of one line of the input file."""

    line: int
    """Its number, from 0."""
    failed: bool
    """Whether it stands in the error file."""
    output: str
    """The line of the output or error file, without the end of the line."""
    usage: TokenSums = TokenSums()


class BatchBook(Protocol):
    """The batches and the results of their lines. Every method raises `domain.files.StoresAway`."""

    async def create(self, batch: StoredBatch, most_open: int) -> None:
        """Enter a batch. Raises TooManyBatches."""
        ...

    async def find(self, tenant: str, batch_id: str) -> StoredBatch | None:
        """A batch of the tenant; None where there is none."""
        ...

    async def page(self, tenant: str, after: StoredBatch | None, limit: int) -> list[StoredBatch]:
        """The tenant's batches, the newest first; `after` is the last one of the page before."""
        ...

    async def cancel(self, tenant: str, batch_id: str, now_unix: float) -> StoredBatch | None:
        """Turn a batch that is validating or in progress to `cancelling`. Returns the batch as it is afterwards."""
        ...

    async def take(self, owner: str, now_unix: float, until_unix: float) -> StoredBatch | None:
        """Take the lease of the oldest open batch that no worker holds; None where there is none."""
        ...

    async def renew(self, batch_id: str, owner: str, until_unix: float) -> StoredBatch:
        """Renew a lease; an `until_unix` in the past gives it back. Returns the batch as it is. Raises LeaseLost."""
        ...

    async def write(self, batch: StoredBatch, owner: str, before: BatchStatus) -> bool:
        """Write what a worker has changed in a batch, where its state is still `before`; False where a caller has changed it. The counts
        are left alone. Raises LeaseLost."""
        ...

    async def note(self, batch_id: str, owner: str, results: Sequence[LineResult]) -> None:
        """Write results of lines; one that is there already is kept. Raises LeaseLost."""
        ...

    async def done(self, batch_id: str) -> set[int]:
        """The numbers of the lines that have results."""
        ...

    async def results(self, batch_id: str, failed: bool, after: int, limit: int) -> list[LineResult]:
        """Results in the order of their lines, from the line behind `after`."""
        ...

    async def finish(self, batch: StoredBatch, owner: str) -> None:
        """Write a batch that has ended, give its lease back and drop its results. Raises LeaseLost."""
        ...
