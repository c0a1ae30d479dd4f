"""Which backend had the last turn of each conversation: bounded, the ones that have been quiet for longest go first."""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

MAX_SESSIONS: Final = 50_000
"""In one pool and worker; some 200 bytes each."""


class Sessions:
    """One per pool."""

    __slots__ = ("_holders", "_life", "_lives", "_most")

    def __init__(self, most: int = MAX_SESSIONS) -> None:
        self._holders: OrderedDict[int, tuple[str, int]] = OrderedDict()
        self._lives: dict[str, int] = {}
        """Of each backend that holds any, which of its lives that is: forgetting one costs nothing, however many it held."""
        self._life = 0
        self._most = most

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, session: int) -> str:
        """The id of the backend that had the last turn; empty when nobody knows, and for no session at all."""
        found = self._holders.get(session) if session else None
        return found[0] if found is not None and self._lives.get(found[0]) == found[1] else ""

    def held(self, session: int, backend_id: str) -> None:
        """That backend has a turn now."""
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
        """It has left, or has lost its cache: it holds none any more."""
        self._lives.pop(backend_id, None)


def session_of(given: str, tenant: str, secret: bytes) -> int:
    """A caller's name of a conversation as a number that means it in this tenant alone and cannot be had without the secret; 0 for none.

    What callers choose as names may say something of them (an address, a chat's title), so it is neither kept nor passed on.
    """
    if not given:
        return 0
    owner = tenant.encode()
    digest = blake2b(b"%d:%b" % (len(owner), owner) + given.encode("utf-8", "surrogatepass"), key=secret[:64], digest_size=8)
    return int.from_bytes(digest.digest(), "little") or 1
