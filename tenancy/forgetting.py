"""When what is over is forgotten: one order over all tags, so that a tag that nobody asks about any more keeps nothing either. Pure.

There is an entry for every request of two minutes, so it is made of no object of its own: two references, beside the id and the time
that the tag's own dictionary has.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 64
"""Entries forgotten by one decision, which is what a request of another caller may be made to wait for."""


class Forgetting:
    """Of all tags. Times must not go backwards."""

    __slots__ = ("_ids", "_later", "_of")

    def __init__(self) -> None:
        self._ids: deque[str] = deque()
        self._of: deque[dict[str, int]] = deque()
        """For each of the ids, where it stands until when it is remembered: all of these are remembered for the same time."""
        self._later: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._ids) + len(self._later)

    def remember(self, of: dict[str, int], hold_id: str, until_us: int) -> None:
        """The id stands in this dictionary until then."""
        of[hold_id] = until_us
        self._ids.append(hold_id)
        self._of.append(of)

    def at(self, until_us: int, forget: Callable[[], None]) -> None:
        """Call this then: for the few that are remembered for longer, all of them for the same time."""
        self._later.append((until_us, forget))

    def forget(self, now_us: int) -> None:
        """What is over, `AT_ONCE` of each kind at most."""
        ids, all_of, left = self._ids, self._of, AT_ONCE
        while ids and left:
            of, hold_id = all_of[0], ids[0]
            until_us = of.get(hold_id)
            if until_us is not None:
                if until_us > now_us:
                    break
                del of[hold_id]
            ids.popleft()
            all_of.popleft()
            left -= 1
        later, left = self._later, AT_ONCE
        while later and left and later[0][0] <= now_us:
            later.popleft()[1]()
            left -= 1
