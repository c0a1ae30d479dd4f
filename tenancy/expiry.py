"""The entries of the counters that end by themselves: holds that are over, and end users that have counters of their own. Pure.

`Forgetting` drops settled and reaped holds in one order over all tags, so that a tag without requests keeps nothing either; an entry for
every request of the last two minutes is no object of its own. `EndUsers` says which end users of a tenant have counters of their own;
callers choose labels, so an end user beyond the bound counts as the one that stands for all others, until another one's time is over
(its Lua twin is in `stores/valkey/lua/books.lua`).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from tenancy.rates import MAX_COUNT

AT_ONCE: Final = 64
"""The most entries of each kind that one decision forgets: the request that is being decided waits meanwhile."""


class Forgetting:
    """The entries of all tags that are to be forgotten. Times must not go backwards."""

    __slots__ = ("_expiries", "_ids", "_later", "due_us")

    def __init__(self) -> None:
        self._ids: deque[str] = deque()
        self._expiries: deque[dict[str, int]] = deque()
        """For each id the dictionary that has its expiry: all these ids are remembered for the same time, so their order is that of
        their expiries."""
        self._later: deque[tuple[int, Callable[[], None]]] = deque()
        self.due_us = MAX_COUNT
        """No entry is to be forgotten before this time."""

    def __len__(self) -> int:
        return len(self._ids) + len(self._later)

    def remember(self, expiry: dict[str, int], hold_id: str, until_us: int) -> None:
        """Keep the id in `expiry`, with its time, until then."""
        expiry[hold_id] = until_us
        if until_us < self.due_us:
            self.due_us = until_us
        self._ids.append(hold_id)
        self._expiries.append(expiry)

    def at(self, until_us: int, forget: Callable[[], None]) -> None:
        """Call `forget` at a time: for the few holds that are remembered for longer, all of them for the same time."""
        self.due_us = min(self.due_us, until_us)
        self._later.append((until_us, forget))

    def forget(self, now_us: int) -> None:
        """Forget entries whose time is over, at most `AT_ONCE` of each kind."""
        due_us = MAX_COUNT
        ids = self._ids
        expiries = self._expiries
        left = AT_ONCE
        while ids:
            expiry = expiries[0]
            hold_id = ids[0]
            until_us = expiry.get(hold_id, 0)
            if until_us > now_us or not left:
                due_us = until_us
                break
            expiry.pop(hold_id, None)
            ids.popleft()
            expiries.popleft()
            left -= 1
        later = self._later
        left = AT_ONCE
        while later and left and later[0][0] <= now_us:
            later.popleft()[1]()
            left -= 1
        self.due_us = min(due_us, later[0][0]) if later else due_us


class EndUsers:
    """The end users of one tag that have counters of their own, by the digest of their label."""

    __slots__ = ("_due_us", "_until_us")

    def __init__(self) -> None:
        self._until_us: dict[str, int] = {}
        """Until when each end user counts towards the bound. Callers keep it bounded: they ask `crowded_out` before `keep`."""
        self._due_us = 0
        """No end user's time is over before."""

    def __len__(self) -> int:
        return len(self._until_us)

    def crowded_out(self, label: str, most: int, now_us: int) -> bool:
        """Whether there are `most` end users besides this one."""
        known = self._until_us
        if known.get(label, 0) > now_us or len(known) < most:
            return False
        if now_us >= self._due_us:
            known = self._until_us = {digest: until_us for digest, until_us in known.items() if until_us > now_us}
            self._due_us = min(known.values(), default=0)
        return len(known) >= most

    def keep(self, label: str, keep_us: int, now_us: int) -> None:
        """Count the end user towards the bound for `keep_us` from now; stored anew only when half of its time is over."""
        if self._until_us.get(label, 0) - now_us < keep_us / 2:
            until_us = self._until_us[label] = min(now_us + keep_us, MAX_COUNT)
            self._due_us = min(self._due_us, until_us)
