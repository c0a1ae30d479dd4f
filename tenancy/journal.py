"""What the admin API needs of the books: changes that are written down in the transaction that makes them, and the audit for readers."""

from typing import Protocol

import msgspec

from tenancy.audit import AuditRow, Entry, Finding


class Remembered(msgspec.Struct, frozen=True):
    """What a POST with an `Idempotency-Key` was answered, so that it is answered again and not done again.

    The secret of a new key is not in it: it is made again from what the caller sends and a nonce.
    """

    request: bytes
    """SHA-256 of the request."""
    status: int
    body: str
    etag: str = ""
    nonce: bytes = b""
    """What its key was made with; empty where no key was made."""


class JournalAway(Exception):
    """The database cannot be written or read now; nothing was changed. The message says why."""


class TooManyRemembered(Exception):
    """No more idempotency keys can be kept within their day. The message says of whom.

    Args:
        own: the holder's own share is used up; everybody else's is not.
    """

    def __init__(self, said: str, *, own: bool) -> None:
        super().__init__(said)
        self.own = own


class Change(Protocol):
    """One transaction of the books: what is done through it is durable together with its audit row, or not at all."""

    async def write_down(self, entry: Entry) -> None:
        """Append to the chain."""
        ...

    async def remembered(self, actor: str, key: bytes) -> Remembered | None:
        """What a request with this idempotency key was answered within the last day."""
        ...

    async def remember(self, actor: str, holder: str, key: bytes, answer: Remembered) -> None:
        """Keep an answer for a day. Raises TooManyRemembered.

        Args:
            holder: whose share of what can be kept it takes; actors of one tenant have one together.
        """
        ...


class AuditLog(Protocol):
    """The chain, for readers."""

    async def page(self, after: int, limit: int, tenant: str | None = None) -> list[AuditRow]:
        """Rows with numbers above `after`, oldest first. Raises JournalAway."""
        ...

    async def newest(self, before: int | None, limit: int, tenant: str | None = None) -> list[AuditRow]:
        """Rows with numbers below `before` (None: from the end), newest first. Raises JournalAway."""
        ...

    async def verify(self) -> Finding:
        """Walk the whole chain. Raises JournalAway."""
        ...
