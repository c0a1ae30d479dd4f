"""The backends that operators registered, as a source of the fleet: the store's change counter is read often, the rows only when it
moved."""

from collections.abc import Sequence
from math import inf
from typing import Final

from domain.membership import Member, MemberStore, SourceError

LOOK_EVERY_S: Final = 2.0
"""Seconds between two reads of the counter: every worker of every gateway sees a registration within 5 s (two reads and a load), as
with keys."""


class RegisteredSource:
    """The registered backends of the database as a source of members."""

    name = "admin API"
    owner: Final = "registered"
    pool = ""
    every_s = LOOK_EVERY_S
    keep_s = inf

    def __init__(self, store: MemberStore) -> None:
        self._store = store
        self._version = -1
        self._last: Sequence[Member] = ()

    async def read(self) -> Sequence[Member]:
        """Read the counter, and load the rows when it moved. Raises SourceError."""
        try:
            version = await self._store.version()
            if version != self._version:
                self._last = await self._store.load()
                self._version = version
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the last answer stays in force
            raise SourceError(f"the database cannot be read ({type(error).__name__}: {error})"[:200]) from None
        return self._last
