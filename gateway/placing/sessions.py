"""The backend that served the last turn of each conversation; bounded, the least recently used conversation is dropped first."""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

MAX_SESSIONS: Final = 50_000
"""Conversations remembered in one pool and worker; some 200 bytes each."""


class Sessions:
    """The conversations of one pool; `most` bounds their number."""

    __slots__ = ("_holders", "_life", "_lives", "_most")

    def __init__(self, most: int = MAX_SESSIONS) -> None:
        self._holders: OrderedDict[int, tuple[str, int]] = OrderedDict()
        """The backend of each session, and the life of the backend in which it served it."""
        self._lives: dict[str, int] = {}
        """The number of the current life of each backend: forgetting a backend costs O(1), however many sessions it held."""
        self._life = 0
        self._most = most

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, session: int) -> str:
        """The id of the backend that served the last turn; empty when it is unknown, and for session 0 (none)."""
        entry = self._holders.get(session) if session else None
        return entry[0] if entry is not None and self._lives.get(entry[0]) == entry[1] else ""

    def held(self, session: int, backend_id: str) -> None:
        """Note that a backend serves a turn of a session now."""
        if not session:
            return
        life = self._lives.get(backend_id)
        if life is None:
            self._life += 1
            life = self._lives[backend_id] = self._life
        self._holders[session] = (backend_id, life)
        self._holders.move_to_end(session)
        if len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def forget(self, backend_id: str) -> None:
        """Drop the sessions of a backend that has left or lost its cache."""
        self._lives.pop(backend_id, None)


def session_of(given: str, tenant: str, secret: bytes) -> int:
    """A keyed hash of a caller's name for a conversation, valid in this tenant alone; 0 for no name.

    The names that callers choose may reveal something about them (an address, a chat's title), so they are neither kept nor passed on.
    """
    if not given:
        return 0
    owner = tenant.encode()
    digest = blake2b(b"%d:%b" % (len(owner), owner) + given.encode("utf-8", "surrogatepass"), key=secret[:64], digest_size=8)
    return int.from_bytes(digest.digest(), "little") or 1
