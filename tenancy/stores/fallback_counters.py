"""Counters that outlive the shared store: while it is away, this process decides on its share, and says so.

    store answers         its decision
    store is away         this process's own, on its share of every limit (`tenancy.shares`), marked `degraded`
    store is back         its decision again; owed settlements are delivered, and heartbeats open the holds that it does not know

No method raises for a store that is away, except `look`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from domain.clock import Clock
from tenancy.hold import Admission, Admitted, Beat, Hold, LimitStatus, LimitUsage, Refused
from tenancy.limits import UNUSED, Amounts, Group, LimitLine, Meter, Rolling, Window
from tenancy.ports import Counters, CountersAway
from tenancy.rates import leaves_us
from tenancy.shares import LastKnown, alone, shares_of

CALM_S: Final = 2.0
"""Without a failure for this long, the store counts as back: one slow answer is reported as an outage for two seconds, a flapping store
all the time."""
FORGET_S: Final = 60.0
"""How long after the last failure this process's own decisions count: a flapping store must not give a fresh share each time. A
minute, because that is how long a rate looks back."""
MAX_UNDELIVERED: Final = 50_000
"""Settlements kept for the store; beyond it the oldest is given up: its hold is reaped, and the ledger has its usage all the same.
50 s at 1,000 requests a second."""
DELIVERED_AT_ONCE: Final = 64
MAX_SHARES: Final = 10_000
"""Groups whose shares are cached."""

_SLOTS: Final = int(Meter.CONCURRENT_REQUESTS)


class FallbackCounters:
    """Implements `tenancy.ports.Counters` around shared counters, and decides alone while their store is away.

    Args:
        shared: counters whose `admit` and `beat` raise CountersAway when the store is away, and which keep settlements that cannot be
            made until the next `beat` (`ValkeyCounters`).
        fresh: makes empty counters of this process, for the time that it decides alone.
        replicas: how many processes decide on the shared counters, as far as known; at least 1.
    """

    in_process = False

    def __init__(self, shared: Counters, fresh: Callable[[], Counters], replicas: Callable[[], int], clock: Clock) -> None:
        self._shared = shared
        self._fresh = fresh
        self._replicas = replicas
        self._clock = clock
        self._known = LastKnown()
        self._open: dict[str, Hold] = {}
        """Holds opened by the store and not settled yet: bounded by the requests of this process."""
        self._alone: dict[str, Hold] = {}
        """Holds opened by this process alone and not settled yet."""
        self._owed: deque[tuple[Hold, Amounts]] = deque()
        """Settlements of holds that this process opened alone: the store gets the hold first, by a heartbeat."""
        self._local: Counters | None = None
        self._crowded_alone = 0
        """The count of `crowded` in earlier local counters, which are dropped."""
        self._shares: dict[int, tuple[Group, Group]] = {}
        """Group and its share, by identity of the group, which is kept alive by this entry."""
        self._since: float | None = None
        self._last_failure = 0.0
        self.why = ""
        """The last failure, in words."""
        self.given_up = 0
        """Settlements that were not kept for the store."""

    @property
    def degraded(self) -> bool:
        """Whether this process decides alone now, or did within `CALM_S`."""
        return self._since is not None

    @property
    def degraded_s(self) -> float:
        """Seconds since this process has been deciding alone; 0 when it is not."""
        return 0.0 if self._since is None else self._clock() - self._since

    @property
    def crowded(self) -> int:
        return self._shared.crowded + self._crowded_alone + (self._local.crowded if self._local is not None else 0)

    @property
    def undelivered(self) -> int:
        """Settlements that wait for the store."""
        return len(self._owed)

    async def admit(self, hold: Hold) -> Admission:
        """Implements the port; the answer is `degraded` when this process decided alone."""
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
            for standing in admission.limit_statuses:
                line = standing.line
                if not line.burst and line.meter != _SLOTS:
                    self._known.note(line, standing.remaining, standing.reset_us, now)
        elif isinstance(admission, Refused):
            self._note_refusal(admission)
        return admission

    async def beat(self, beats: Sequence[Beat]) -> None:
        """Implements the port. Once the store is back, heartbeats open in it the holds that were opened without it."""
        try:
            await self._shared.beat(beats)
        except CountersAway as away:
            await self.failed(away)
        local = self._local
        if local is not None:
            await local.beat([self._own_beat(beat) for beat in beats])

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """Implements the port; the settlement is delivered later when the store is away."""
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

    async def look(self, group: Group) -> list[LimitUsage]:
        return await self._shared.look(group)

    async def deliver(self) -> bool:
        """Deliver the settlements that the store is owed, and drop the local counters `FORGET_S` after the last failure. Returns whether
        nothing is owed any more.

        To be called every quarter of a second or so, and by one task.
        """
        left = len(self._owed)
        while left > 0:
            batch = [self._owed.popleft() for _ in range(min(DELIVERED_AT_ONCE, left))]
            left -= len(batch)
            if not await self._deliver_batch(batch):
                # of a cluster only a part may be away
                undelivered = [owed for owed in batch if not await self._deliver_batch([owed])]
                self._owed.extend(undelivered)
                if len(undelivered) == len(batch):
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

    async def _deliver_batch(self, batch: Sequence[tuple[Hold, Amounts]]) -> bool:
        try:
            await self._shared.beat([Beat(hold, actual, actual) for hold, actual in batch])
        except CountersAway as away:
            await self.failed(away)
            return False
        for hold, actual in batch:
            await self._shared.settle(hold, actual)
        return True

    def store_answered(self) -> None:
        """Note that the store answered another call: it is back even when no request asks for a decision."""
        if self._since is not None:
            self._answered()

    def _note_refusal(self, refused: Refused) -> None:
        """Note the remainder that a refusal reports: other processes may have spent the limit since this one's last admission, and without
        this note each outage would give this process its share of what they spent."""
        line = refused.line
        if line.burst or line.meter == _SLOTS:
            return
        if line.window is Window.EVER:
            self._known.note(line, refused.remaining, 0, self._clock())
        elif isinstance(line.window, Rolling):  # the wait is for this request: the whole amount is there again when all usage has ended
            self._known.note(line, refused.remaining, leaves_us(0, line.window.days), self._clock())
        elif refused.wait_us is not None:  # the time until the period ends; unknown for a request larger than the limit
            self._known.note(line, refused.remaining, refused.wait_us, self._clock())

    async def _admit_alone(self, hold: Hold) -> Admission:
        assert self._local is not None
        admission = await self._local.admit(self._own(hold))
        whole: dict[str, LimitLine] = {line.key: line for group in hold.groups for line in group.lines}
        if isinstance(admission, Admitted):
            self._alone[hold.id] = hold
            statuses = (LimitStatus(whole[s.line.key], s.remaining, s.reset_us) for s in admission.limit_statuses)
            return Admitted(tuple(statuses), degraded=True)
        return alone(admission, whole[admission.line.key])

    async def failed(self, away: CountersAway) -> None:
        """Note that the store did not answer this or another call; from now on this process decides alone."""
        self._last_failure = self._clock()
        self.why = str(away)
        if self._since is None:
            self._since = self._last_failure
            self._shares.clear()  # the remainders and the number of processes may have changed since the last time
        if self._local is None:
            self._local = local = self._fresh()
            # requests that run here already take their concurrency; all their other amounts were counted by the store
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
        cached = self._shares.get(id(group))
        if cached is None:
            if len(self._shares) >= MAX_SHARES:
                self._shares.clear()
            cached = (group, shares_of(group, max(self._replicas(), 1), self._known, self._clock()))
            self._shares[id(group)] = cached
        return cached[1]
