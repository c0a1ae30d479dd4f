"""Which end users of a tenant have counters of their own. Pure; its Lua twin is in `stores/valkey/lua/books.lua`.

Callers choose labels, so their number is not bounded. An end user that comes when the tenant has as many as the bound allows counts
as the end user that stands for all others, until the time of another one is over.
"""

from tenancy.counting import MAX_COUNT


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
