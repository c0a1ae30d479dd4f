"""Expiry of settled and reaped holds, in one order over all tags, so that a tag without requests keeps nothing either. Pure.

There is an entry for every request of the last two minutes, so an entry is no object of its own: two references, beside the id and the
time that the tag's own dictionary has.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 64
"""The most entries of each kind that one decision forgets: the request that is being decided waits meanwhile."""


class Forgetting:
    """The entries of all tags that are to be forgotten. Times must not go backwards."""

    __slots__ = ("_expiries", "_ids", "_later")

    def __init__(self) -> None:
        self._ids: deque[str] = deque()
        self._expiries: deque[dict[str, int]] = deque()
        """For each id the dictionary that has its expiry: all these ids are remembered for the same time, so their order is that of
        their expiries."""
        self._later: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._ids) + len(self._later)

    def remember(self, expiry: dict[str, int], hold_id: str, until_us: int) -> None:
        """Keep the id in `expiry`, with its time, until then."""
        expiry[hold_id] = until_us
        self._ids.append(hold_id)
        self._expiries.append(expiry)

    def at(self, until_us: int, forget: Callable[[], None]) -> None:
        """Call `forget` at a time: for the few holds that are remembered for longer, all of them for the same time."""
        self._later.append((until_us, forget))

    def forget(self, now_us: int) -> None:
        """Forget entries whose time is over, at most `AT_ONCE` of each kind."""
        ids = self._ids
        expiries = self._expiries
        left = AT_ONCE
        while ids and left:
            expiry = expiries[0]
            hold_id = ids[0]
            until_us = expiry.get(hold_id)
            if until_us is not None:
                if until_us > now_us:
                    break
                del expiry[hold_id]
            ids.popleft()
            expiries.popleft()
            left -= 1
        later = self._later
        left = AT_ONCE
        while later and left and later[0][0] <= now_us:
            later.popleft()[1]()
            left -= 1
