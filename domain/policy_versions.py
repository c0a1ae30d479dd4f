"""Policies that a database keeps: whole sets of files, one version after the other. None is ever changed; going back makes a new one."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

MAX_VERSIONS: Final = 1000
"""That are kept; older ones are forgotten, oldest first."""
MAX_NOTE_CHARS: Final = 500


class PolicyVersion(msgspec.Struct, frozen=True):
    """One of them, without its files."""

    version: int
    """From 1, without gaps."""
    digest: str
    """Of what its files mean (`policies.compile.PolicySet.digest`)."""
    author: str
    """Whose change it was, as the audit names them."""
    note: str
    at_unix: float
    files: int
    """How many."""


class PolicyVersions(Protocol):
    """The versions of one database, for every gateway on it."""

    async def current(self) -> int:
        """The newest version; 0 while there is none. Cheap enough to ask every second."""
        ...

    async def find(self, version: int) -> PolicyVersion | None:
        """One of those that are kept."""
        ...

    async def files(self, version: int) -> Mapping[str, str] | None:
        """The text of each of its files, by name."""
        ...

    async def newest(self, before: int | None, limit: int) -> Sequence[PolicyVersion]:
        """Newest first, those before a version; None from the newest."""
        ...

    async def append(self, files: Mapping[str, str], digest: str, author: str, note: str, now_unix: float) -> PolicyVersion:
        """Make a new version, in a transaction in which nobody else does (`tenancy.journal.Change`)."""
        ...
