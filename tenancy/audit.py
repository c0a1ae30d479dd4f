"""The audit chain, pure: who changed what, each row bound to all rows before it by its hash.

A row's hash is SHA-256 over the hash before it and the row as canonical JSON, so that a row that is changed, removed or inserted
makes every later hash wrong. An attacker who can write the whole database could compute a new chain; so the last hash is a value to
keep elsewhere (`tidegate audit verify` prints it).
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any, Final

import msgspec

GENESIS: Final = bytes(32)
"""The hash before the first row."""

_ORDERED: Final = msgspec.json.Encoder(order="deterministic")


class Entry(msgspec.Struct, frozen=True):
    """One change as recorded. `before` and `after` are canonical JSON, empty for nothing; neither holds a secret."""

    actor: str
    """`bootstrap`, or `key` and a public id."""
    role: str
    """The role that allowed it."""
    address: str
    """Where the request came from."""
    action: str
    """The action, for instance `key.create`."""
    target: str
    """The object of the action, for instance `tenant/acme/key/abcdefghij`."""
    tenant: str = ""
    """The tenant that the target belongs to; empty when it belongs to none."""
    before: str = ""
    after: str = ""


class AuditRow(msgspec.Struct, frozen=True):
    """An entry with its place in the chain."""

    seq: int
    """From 1, without gaps."""
    at_unix_ms: int
    entry: Entry
    hash: bytes


class ChainCheck(msgspec.Struct, frozen=True):
    """The result of checking the chain."""

    rows: int
    """Rows from the first on that are as they were written."""
    head: bytes
    """Hash of the last of these rows."""
    broken_at: int | None = None
    """Number of the first row that is not as it was written; None when every row is."""
    why: str = ""


def next_row(seq: int, previous: bytes, at_unix_ms: int, entry: Entry) -> AuditRow:
    """The row that follows the row with hash `previous`."""
    return AuditRow(seq, at_unix_ms, entry, _hash(seq, previous, at_unix_ms, entry))


class Walk:
    """Checks rows in the order of their numbers, page by page."""

    def __init__(self) -> None:
        self._finding = ChainCheck(0, GENESIS)

    def feed(self, rows: Iterable[AuditRow]) -> bool:
        """Take the next rows; False once the chain is broken."""
        for row in rows:
            if self._finding.broken_at is not None:
                break
            self._finding = self._after(row)
        return self._finding.broken_at is None

    def _after(self, row: AuditRow) -> ChainCheck:
        rows = self._finding.rows
        head = self._finding.head
        if row.seq != rows + 1:
            return ChainCheck(rows, head, rows + 1, f"row {rows + 1} is missing; row {row.seq} follows")
        if not hmac.compare_digest(row.hash, _hash(row.seq, head, row.at_unix_ms, row.entry)):
            return ChainCheck(rows, head, row.seq, f"row {row.seq} is not what was written, or a row before it was replaced")
        return ChainCheck(row.seq, row.hash)

    def end(self, seq: int, head: bytes) -> ChainCheck:
        """The result, compared with the number and hash that the database keeps of the last row."""
        finding = self._finding
        if finding.broken_at is None and (finding.rows, finding.head) != (seq, head):
            return ChainCheck(finding.rows, finding.head, finding.rows + 1, f"{seq} rows were written, {finding.rows} are there")
        return finding


def canonical(value: Any) -> str:
    """JSON with sorted names and no white space."""
    return _ORDERED.encode(value).decode()


def shadow(secret: bytes, value: bytes) -> str:
    """A fingerprint of a secret for the audit: it shows that the secret changed and cannot be used (HMAC-SHA256, 16 hex digits)."""
    return hmac.digest(secret, b"tidegate audit v1" + value, "sha256").hex()[:16]


def _hash(seq: int, previous: bytes, at_unix_ms: int, entry: Entry) -> bytes:
    return hashlib.sha256(previous + msgspec.json.encode((seq, at_unix_ms, *msgspec.structs.astuple(entry)))).digest()
