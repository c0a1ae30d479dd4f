"""Which end users of a tenant are counted by themselves. Pure; the twin of what `stores/valkey/lua/books.lua` says of labels.

Callers choose labels, so there may be as many as they like. One that comes when there are as many as there may be counts as the end user
that stands for all others, until another one's time is over.
"""

from tenancy.counting import MAX_COUNT


class EndUsers:
    """Those of one tag, by the digest of their label."""

    __slots__ = ("_due_us", "_until_us")

    def __init__(self) -> None:
        self._until_us: dict[str, int] = {}
        """Until when each counts as one: bounded by whoever asks `crowded_out` first."""
        self._due_us = 0
        """None of them ends before."""

    def __len__(self) -> int:
        return len(self._until_us)

    def crowded_out(self, label: str, most: int, now_us: int) -> bool:
        """Whether there are `most` without this one."""
        known = self._until_us
        if known.get(label, 0) > now_us or len(known) < most:
            return False
        if now_us >= self._due_us:
            known = self._until_us = {one: until_us for one, until_us in known.items() if until_us > now_us}
            self._due_us = min(known.values(), default=0)
        return len(known) >= most

    def keep(self, label: str, keep_us: int, now_us: int) -> None:
        """It counts as one for so long; written down only when half of its time is over."""
        if self._until_us.get(label, 0) - now_us < keep_us / 2:
            until_us = self._until_us[label] = min(now_us + keep_us, MAX_COUNT)
            self._due_us = min(self._due_us, until_us)
