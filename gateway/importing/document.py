"""Reads `tidegate-import.json`: the objects that belong into the database, written by an import or by hand.

An unknown field is refused, because it would be lost silently.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.importing.plan import FORMAT
from tenancy.accounts import DEFAULT_PROJECT
from tenancy.prices import ANY_REVISION

MAX_BYTES: Final = 16 * 1024 * 1024
"""Largest file: some 100,000 keys with their limits."""


class BadDocument(Exception):
    """The file is no such document; the message names the place and the remedy."""


class NewTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to make."""

    name: str
    label: str = ""
    disabled: bool = False


class KeyLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A limit of a key that is not made yet."""

    meter: str
    window: str
    amount: int


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to make."""

    tenant: str
    project: str = DEFAULT_PROJECT
    label: str = ""
    expires_at: str | None = None
    """Expiry in ISO 8601; UTC where it has no zone."""
    models: list[str] | None = None
    priority_class: Literal["critical", "interactive", "default", "batch"] | None = None
    """The highest class of its requests."""
    limits: list[KeyLimit] = []

    def expires_unix(self) -> float | None:
        """The expiry in seconds since 1970; None for never. Raises ValueError for a text that is no moment."""
        if self.expires_at is None:
            return None
        at = datetime.fromisoformat(self.expires_at)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


class LimitScope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scope of a limit."""

    level: str
    name: str = ""


class NewLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A limit to set."""

    scope: LimitScope
    meter: str
    window: str
    amount: int


class NewPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A price to set; money is nano-dollars."""

    model: str
    nanousd_per_mtok: dict[str, int]
    revision: str = ANY_REVISION


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    format: str
    tenants: list[NewTenant] = []
    keys: list[NewKey] = []
    limits: list[NewLimit] = []
    prices: list[NewPrice] = []


def read_document(path: Path) -> Document:
    """The document in a file.

    Raises:
        BadDocument: the file cannot be read, or is no such document.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadDocument(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise BadDocument(f"{path} has over {MAX_BYTES} bytes; split its lists")
    try:
        document = msgspec.json.decode(raw, type=Document)
    except msgspec.DecodeError as error:
        raise BadDocument(f"{path}: {error}; it should be what `tidegate import` writes") from None
    if document.format != FORMAT:
        raise BadDocument(f"{path}: its format is {document.format[:64]!r}, and this version takes {FORMAT!r}")
    return document
