"""Ports of the admin API's database: changes that are recorded in the audit by the transaction that makes them, and the audit for
readers."""

from typing import Protocol

import msgspec

from tenancy.audit import AuditRow, ChainCheck, Entry


class Remembered(msgspec.Struct, frozen=True):
    """The answer to a POST with an `Idempotency-Key`, kept so that a repeated request is answered again and not executed again.

    The secret of a new key is not in it: the secret is derived again from what the caller sends and a nonce.
    """

    request: bytes
    """SHA-256 of the request."""
    status: int
    body: str
    etag: str = ""
    nonce: bytes = b""
    """The nonce that the key's secret was derived with; empty where no key was made."""


class JournalAway(Exception):
    """The database cannot be written or read now; nothing was changed. The message says why."""


class TooManyRemembered(Exception):
    """No more idempotency keys can be kept within a day. The message says whose share is used up.

    Args:
        own: only the holder's own share is used up.
    """

    def __init__(self, message: str, *, own: bool) -> None:
        super().__init__(message)
        self.own = own


class Change(Protocol):
    """One transaction of the database: what is done through it is durable together with its audit row, or not at all."""

    async def write_down(self, entry: Entry) -> None:
        """Append an entry to the audit chain."""
        ...

    async def remembered(self, actor: str, key: bytes) -> Remembered | None:
        """The answer to an earlier request with this idempotency key within the last day; None for none."""
        ...

    async def remember(self, actor: str, holder: str, key: bytes, answer: Remembered) -> None:
        """Keep an answer for a day. Raises TooManyRemembered.

        Args:
            holder: counts the answer towards its share of the table; all actors of one tenant have one share together.
        """
        ...


class AuditLog(Protocol):
    """The audit chain, for readers."""

    async def page(self, after: int, limit: int, tenant: str | None = None) -> list[AuditRow]:
        """Rows with numbers above `after`, oldest first. Raises JournalAway."""
        ...

    async def newest(self, before: int | None, limit: int, tenant: str | None = None, action: str | None = None) -> list[AuditRow]:
        """Rows with numbers below `before` (None: from the end), newest first. Raises JournalAway.

        Args:
            action: an action, or the part of actions before a dot: `key` for `key.create` and its like.
        """
        ...

    async def verify(self) -> ChainCheck:
        """Walk the whole chain. Raises JournalAway."""
        ...
