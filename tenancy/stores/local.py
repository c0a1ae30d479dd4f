"""Counters that outlive the shared store: while it is away, this process decides on its share, and says so.

    store answers         its decision
    store is away         this process's own, on its share of every limit (`tenancy.shares`), marked `degraded`
    store is back         its decision again; settlements that could not be delivered are, and heartbeats tell it of open holds

No method raises for a store that is away, except `look`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from domain.clock import Clock
from tenancy.hold import Admission, Admitted, Beat, Hold, LineState, Standing
from tenancy.limits import UNUSED, Amounts, Group, Line, Meter
from tenancy.ports import Counters, CountersAway
from tenancy.shares import LastKnown, alone, shares_of

CALM_S: Final = 2.0
"""Without a failure for this long, the store counts as back: one slow answer is told for two seconds, a flapping store all the
time."""
FORGET_S: Final = 60.0
"""What was decided alone counts for so long after the last failure; a store that flaps then gives no fresh share each time. A
minute, because that is how long a rate looks back."""
MAX_UNDELIVERED: Final = 50_000
"""Settlements kept for the store; beyond it the oldest is given up: its hold is reaped, and the ledger has it all the same.
50 s at 1,000 requests a second."""
DELIVERED_AT_ONCE: Final = 64
MAX_SHARES: Final = 10_000
"""Groups whose shares are kept worked out."""

_SLOTS: Final = int(Meter.CONCURRENT_REQUESTS)


class GuardedCounters:
    """`ports.Counters` around shared ones, whose `admit` and `beat` raise CountersAway when the store is away, and which keep
    settlements that cannot be made until the next beat (`ValkeyCounters`).

    Args:
        fresh: makes empty counters of this process, for the time that it decides alone.
        replicas: how many processes decide on the shared counters, as far as known; at least 1.
    """

    in_process = False

    def __init__(self, shared: Counters, fresh: Callable[[], Counters], replicas: Callable[[], int], clock: Clock) -> None:
        self._shared, self._fresh, self._replicas, self._clock = shared, fresh, replicas, clock
        self._known = LastKnown()
        self._open: dict[str, Hold] = {}
        """Opened by the store and not settled yet: bounded by the requests of this process."""
        self._alone: dict[str, Hold] = {}
        """Opened here."""
        self._owed: deque[tuple[Hold, Amounts]] = deque()
        """Settlements of holds that were opened here: the store is told of the hold first."""
        self._local: Counters | None = None
        self._crowded_alone = 0
        """By counters of this process that are forgotten."""
        self._shares: dict[int, tuple[Group, Group]] = {}
        """By identity of the group, which is kept alive beside it."""
        self._since: float | None = None
        self._last_failure = 0.0
        self.why = ""
        """The last failure, in words."""
        self.given_up = 0
        """Settlements that were not kept for the store."""

    @property
    def degraded(self) -> bool:
        """Whether decisions are made here now, or were within `CALM_S`."""
        return self._since is not None

    @property
    def degraded_s(self) -> float:
        """For how long; 0 when not."""
        return 0.0 if self._since is None else self._clock() - self._since

    @property
    def crowded(self) -> int:
        """See the port."""
        return self._shared.crowded + self._crowded_alone + (self._local.crowded if self._local is not None else 0)

    @property
    def undelivered(self) -> int:
        """Settlements that wait for the store."""
        return len(self._owed)

    async def admit(self, hold: Hold) -> Admission:
        """See the port; `degraded` says who decided."""
        try:
            admission = await self._shared.admit(hold)
        except CountersAway as away:
            await self.failed(away)
            return await self._admit_alone(hold)
        if self._since is not None:
            self._answered()
        if admission.__class__ is Admitted:
            self._open[hold.id] = hold
            now = self._clock()
            for standing in admission.standings:
                line = standing.line
                if not line.burst and line.meter != _SLOTS:
                    self._known.note(line, standing.remaining, standing.reset_us, now)
        return admission

    async def beat(self, beats: Sequence[Beat]) -> None:
        """See the port. Once the store is back it learns from this of the holds that were opened without it."""
        try:
            await self._shared.beat(beats)
        except CountersAway as away:
            await self.failed(away)
        local = self._local
        if local is not None:
            await local.beat([self._own_beat(beat) for beat in beats])

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """See the port; delivered later when the store is away."""
        self._open.pop(hold.id, None)
        own = self._alone.pop(hold.id, None) is not None
        if self._local is not None:
            await self._local.settle(self._own(hold), actual if own else UNUSED)
        if not own:
            await self._shared.settle(hold, actual)
            return
        if len(self._owed) >= MAX_UNDELIVERED:
            self._owed.popleft()
            self.given_up += 1
        self._owed.append((hold, actual))

    async def look(self, group: Group) -> list[LineState]:
        """See the port."""
        return await self._shared.look(group)

    async def deliver(self) -> bool:
        """Hand the store what it is owed, and forget the time alone when it is over; True when nothing is owed any more.

        To be called every quarter of a second or so, and by one task.
        """
        left = len(self._owed)
        while left > 0:
            batch = [self._owed.popleft() for _ in range(min(DELIVERED_AT_ONCE, left))]
            left -= len(batch)
            if not await self._tell(batch):
                # of a cluster only a part may be away
                kept = [owed for owed in batch if not await self._tell([owed])]
                self._owed.extend(kept)
                if len(kept) == len(batch):
                    break
        try:
            await self._shared.beat(())  # settlements that the shared counters kept
        except CountersAway as away:
            await self.failed(away)
            return False
        if self._local is not None and not self._alone and self._clock() - self._last_failure > FORGET_S:
            self._crowded_alone += self._local.crowded
            self._local = None
        return not self._owed

    async def _tell(self, batch: Sequence[tuple[Hold, Amounts]]) -> bool:
        try:
            await self._shared.beat([Beat(hold, actual, actual) for hold, actual in batch])
        except CountersAway as away:
            await self.failed(away)
            return False
        for hold, actual in batch:
            await self._shared.settle(hold, actual)
        return True

    def heard(self) -> None:
        """The store answered somebody else's question: it is back even when nobody asks for a decision."""
        if self._since is not None:
            self._answered()

    async def _admit_alone(self, hold: Hold) -> Admission:
        assert self._local is not None
        admission = await self._local.admit(self._own(hold))
        whole: dict[str, Line] = {line.key: line for group in hold.groups for line in group.lines}
        if isinstance(admission, Admitted):
            self._alone[hold.id] = hold
            told = (Standing(whole[s.line.key], s.remaining, s.reset_us) for s in admission.standings)
            return Admitted(tuple(told), degraded=True)
        return alone(admission, whole[admission.line.key])

    async def failed(self, away: CountersAway) -> None:
        """The store did not answer, us or somebody beside us."""
        self._last_failure = self._clock()
        self.why = str(away)
        if self._since is None:
            self._since = self._last_failure
            self._shares.clear()  # what is left and how many we are may have changed since the last time
        if self._local is None:
            self._local = local = self._fresh()
            # what runs here already takes its places; of everything else it was counted by the store
            await local.beat([Beat(self._own(hold), UNUSED, UNUSED) for hold in self._open.values()])

    def _answered(self) -> None:
        if self._clock() - self._last_failure > CALM_S:
            self._since = None

    def _own(self, hold: Hold) -> Hold:
        return Hold(hold.id, hold.tenant, hold.amounts, tuple(map(self._share, hold.groups)))

    def _own_beat(self, beat: Beat) -> Beat:
        own = beat.hold.id in self._alone
        return Beat(self._own(beat.hold), beat.delivered if own else UNUSED, beat.at_most if own else UNUSED)

    def _share(self, group: Group) -> Group:
        found = self._shares.get(id(group))
        if found is None:
            if len(self._shares) >= MAX_SHARES:
                self._shares.clear()
            found = (group, shares_of(group, max(self._replicas(), 1), self._known, self._clock()))
            self._shares[id(group)] = found
        return found[1]
