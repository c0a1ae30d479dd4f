"""Versions of the policies in a database: whole sets of files. A version is never changed; a rollback makes a new one."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

MAX_VERSIONS: Final = 1000
"""Versions kept; the oldest are deleted first."""
MAX_NOTE_CHARS: Final = 500
"""Length of a note."""


class PolicyVersion(msgspec.Struct, frozen=True):
    """One version of the policies, without its files."""

    version: int
    """From 1, without gaps."""
    digest: str
    """Digest of the compiled policies (`policies.compile.PolicySet.digest`)."""
    author: str
    """Author of the change, as in the audit log."""
    note: str
    at_unix: float
    files: int
    """Number of files."""


class PolicyVersions(Protocol):
    """The versions of one database, for every gateway on it."""

    async def current(self) -> int:
        """Number of the newest version; 0 while there is none. Cheap enough to read every second."""
        ...

    async def find(self, version: int) -> PolicyVersion | None:
        """The version with this number; None when it is not kept."""
        ...

    async def files(self, version: int) -> Mapping[str, str] | None:
        """The text of each file of a version, by name; None when the version is not kept."""
        ...

    async def newest(self, before: int | None, limit: int) -> Sequence[PolicyVersion]:
        """At most `limit` versions before `before` (None: from the newest), newest first."""
        ...

    async def append(self, files: Mapping[str, str], digest: str, author: str, note: str, now_unix: float) -> PolicyVersion:
        """Make a new version. The caller holds a transaction that excludes other writers (`tenancy.journal.Change`)."""
        ...
