"""Rolling windows: usage of the last days, counted in buckets of an hour. Pure; the Lua twin is in `stores/valkey/lua/books.lua`.

A window of N days has 24 * N + 1 buckets, the current hour and those before it. A moment N days ago lies within the oldest one, so that
no N days on end ever exceed the amount, whichever moment they begin at; usage counts up to an hour longer than N days in return.

A hold counts in the bucket of the hour it was opened in, whenever it ends, and no more once that bucket has left the window.
"""

from tenancy.rates import HOURS_A_DAY, MAX_COUNT

_SETTLED, _HELD = 0, 1
"""Indexes into a bucket and into the sums of a window."""


class RollingWindow:
    """One rolling window: what is settled and held in each hour, and the sums. Hours are numbered since 1970."""

    __slots__ = ("_days", "_first", "_hours", "held", "settled")

    def __init__(self, days: int, hour: int) -> None:
        self._days = days
        self._first = hour
        """No bucket is older."""
        self._hours: dict[int, list[int]] = {}
        """By hour: settled, held."""
        self.settled = 0
        self.held = 0

    def __len__(self) -> int:
        return len(self._hours)

    def turn_to(self, hour: int) -> None:
        """Forget the buckets that have left the window. Comes before every other call of the same moment."""
        lowest = hour - HOURS_A_DAY * self._days
        if self._first >= lowest:
            return
        hours = self._hours
        # a jump over more hours than there are buckets is walked by bucket
        gone = range(self._first, lowest) if lowest - self._first < len(hours) else [one for one in hours if one < lowest]
        for one in gone:
            bucket = hours.pop(one, None)
            if bucket is not None:
                self.settled -= bucket[_SETTLED]
                self.held -= bucket[_HELD]
        self._first = lowest

    def move(self, of_hour: int, hour: int, settled: tuple[int, int], held: tuple[int, int]) -> None:
        """In the bucket of a hold's hour put other amounts in the place of those that were counted, each given as `(old, new)`."""
        if of_hour < hour - HOURS_A_DAY * self._days:
            return
        bucket = self._hours.get(of_hour)
        if bucket is None:
            bucket = self._hours[of_hour] = [0, 0]
            self._first = min(self._first, of_hour)
        # a correction may have taken away already what is to be taken away
        less = min(settled[0], bucket[_SETTLED])
        more = min(settled[1], MAX_COUNT - self.settled + less) - less
        bucket[_SETTLED] += more
        self.settled += more
        less = min(held[0], bucket[_HELD])
        more = min(held[1], MAX_COUNT - self.held + less) - less
        bucket[_HELD] += more
        self.held += more

    def settled_of(self, hour: int) -> int:
        """The settled amount of one hour."""
        bucket = self._hours.get(hour)
        return bucket[_SETTLED] if bucket is not None else 0

    def fits_at(self, n: int, amount: int) -> int:
        """The hour at which `n` fits into the amount, if nothing else comes; 0 where it fits now. `n` is at most the amount."""
        over = self.settled + self.held + n - amount
        if over <= 0:
            return 0
        for one in sorted(self._hours):
            over -= sum(self._hours[one])
            if over <= 0:
                return one + HOURS_A_DAY * self._days + 1
        return 0
