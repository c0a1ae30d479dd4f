"""What one worker knows of its pools for placing requests: their boards, one index of prefixes over all of them, whom to believe, and
what policies remember. Kept current by `gateway.fleet`; decisions read it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from backends.recovery import Recovery
from domain.membership import NO_TRAITS, Traits
from gateway.placing.holders import Holders
from gateway.placing.limits import Limits
from gateway.placing.sessions import Sessions
from gateway.placing.traits import Usual, effective, facts_of, rates_of
from policies.routing_choice import Routing
from routing.board import Board
from routing.calibration import Calibration
from routing.chain import BLOCK_TOKENS
from routing.choosing import Choosing
from routing.event_check import EventCheck
from routing.fleet import Backend, Pool
from routing.prefix import PrefixIndex
from routing.trust import Trusts

log = structlog.get_logger("tidegate.routing")

DEFAULT_INDEX_BLOCKS: Final = 1_000_000
UNSAID_CAPACITY_TOKENS: Final = 131_072
"""What the cache of an engine is taken to hold that says neither what it holds nor how large it is: 16 GB of an 8B model's KV, so less
than nearly all of them have. Too little loses some matches; too much promises what is gone."""
KNOWN_WELL: Final = 64
"""Samples of a backend's speed."""
MAX_CHOOSINGS: Final = 256
"""Ways to choose that are remembered for a pool; of more, the one first used longest ago is begun anew when it is used again."""
STALE_S: Final = 3.0
"""Seconds after which an engine's word on its load is not believed alone: longer than the pause between two readings of a slow one."""


class Ground:
    """One pool."""

    __slots__ = ("_among", "_choosings", "_up", "board", "holders", "name", "recovery", "sessions")

    def __init__(self, name: str, kept_free: float = 0.0) -> None:
        self.name = name
        self.holders = Holders(kept_free)
        self.board = Board()
        self.recovery = Recovery()
        """Holds back what a pool gets that was out of service as a whole."""
        self.sessions = Sessions()
        self._choosings: dict[str, Choosing] = {}
        self._up: tuple[Backend, ...] = ()
        self._among: frozenset[str] = frozenset()

    def choosing(self, routing: Routing) -> Choosing:
        """The policy with its memory. Tenants whose files say the same share one: what it remembers is about backends, and about
        tenants only so that it can be fair between them."""
        found = self._choosings.get(routing.key)
        if found is None:
            found = self._choosings[routing.key] = routing.choosing()
            if len(self._choosings) > MAX_CHOOSINGS:  # policy files were changed that often
                del self._choosings[next(iter(self._choosings))]
        return found

    def recovering(self, pool: Pool, now: float) -> None:
        """Look at how it comes back; to be called some times a second."""
        board = self.board
        rows = [board.row_of[one.id] for one in pool.up if one.id in board.row_of]
        queued_s = min([board.queue_tokens[row] * board.prefill_s_token[row] for row in rows], default=0.0)
        self.recovery.look(bool(rows), queued_s, now)

    def among(self, pool: Pool) -> frozenset[str]:
        """Ids of the backends that are up; worked out once for each snapshot of the fleet."""
        if self._up is not pool.up:
            self._up, self._among = pool.up, frozenset(one.id for one in pool.up)
        return self._among


class _Source:
    """How the index knows what one backend holds."""

    __slots__ = ("capacity", "check", "lost", "told", "useless")

    def __init__(self) -> None:
        self.capacity = UNSAID_CAPACITY_TOKENS // BLOCK_TOKENS
        """Blocks."""
        self.check: EventCheck | None = None
        """Of its events, where those say it."""
        self.told = 0
        """Blocks they told of."""
        self.lost = False
        """They do not come just now."""
        self.useless = ""
        """Why it is guessed at all the same; empty when it is not."""


class Grounds:
    """Every pool of one worker.

    Args:
        pools: what is usual in each, by their names.
        index_blocks: bound of the index.
    """

    def __init__(self, pools: Mapping[str, Usual], index_blocks: int = DEFAULT_INDEX_BLOCKS) -> None:
        self.index = PrefixIndex(index_blocks)
        self.index_bound = index_blocks
        self.trusts = Trusts()
        self.limits = Limits()
        self._calibrations: dict[str, Calibration] = {}
        self._answers = 0
        self._usual = dict(pools)
        self._by_pool = {name: Ground(name, usual.kept_free) for name, usual in pools.items()}
        self._of: dict[str, Ground] = {}
        self._sources: dict[str, _Source] = {}

    def __getitem__(self, pool: str) -> Ground:
        """A pool's. Raises KeyError."""
        return self._by_pool[pool]

    def of(self, backend_id: str) -> Ground | None:
        """That of the pool that a backend is in; None once it has left."""
        return self._of.get(backend_id)

    def add(self, pool: str, backend_id: str, traits: Traits = NO_TRAITS) -> None:
        """A backend joins, with nothing in flight and nothing known of its cache."""
        ground = self._of[backend_id] = self._by_pool[pool]
        usual = self._usual[pool]
        facts, rates = facts_of(traits, usual), rates_of(traits, usual)
        ground.board.add(backend_id, rates, facts)
        self._calibrations[backend_id] = Calibration(rates)
        self.limits.add(pool, backend_id, ground.board, usual.bounds)
        log.info("routing facts", pool=pool, backend=backend_id, **effective(facts, traits, usual))
        self._sources[backend_id] = _Source()
        self._size(backend_id, self._sources[backend_id])

    def configure(self, backend_id: str, traits: Traits) -> None:
        """Something else is said of a backend that is there. What was learned of its speed stands; a new prior is for its next life."""
        ground = self._of.get(backend_id)
        if ground is not None:
            facts = facts_of(traits, self._usual[ground.name])
            ground.board.set_facts(backend_id, facts)
            log.info("routing facts", pool=ground.name, backend=backend_id, **effective(facts, traits, self._usual[ground.name]))

    def drop(self, backend_id: str) -> None:
        """A backend has left: it matches nothing from now on. Raises ValueError while something is in flight on it."""
        ground = self._of.get(backend_id)
        if ground is None:
            return
        ground.board.drop(backend_id)
        self.limits.drop(backend_id)
        ground.sessions.forget(backend_id)
        self.index.forget(backend_id)
        self.trusts.forget(backend_id)
        del self._of[backend_id], self._sources[backend_id], self._calibrations[backend_id]

    def in_flight(self, backend_id: str) -> int:
        """Requests of this worker on a backend; 0 for one that has left."""
        ground = self._of.get(backend_id)
        return 0 if ground is None else ground.board.in_flight(backend_id)

    def total(self) -> int:
        """Requests of this worker on all backends; one that two of them share counts on both."""
        return sum(ground.board.total() for ground in self._by_pool.values())

    def stale(self, now: float) -> None:
        """Look for engines that have not told of their load lately."""
        for ground in self._by_pool.values():
            ground.board.stale(now, STALE_S)
        self.limits.tick(now)

    def residual_s(self, backend_id: str) -> float:
        """Seconds by which 9 of 10 predicted times to the first token were wrong at most; 0 while none was measured."""
        found = self._calibrations.get(backend_id)
        return found.residual_p90_s if found is not None and found.samples else 0.0

    def to_learn(self, backend_id: str) -> Calibration | None:
        """The same for one more sample; None for a backend that has left, and for seven of eight answers of one that is known well: a
        sample takes some 20 us."""
        found = self._calibrations.get(backend_id)
        self._answers += 1
        return None if found is None or (found.samples > KNOWN_WELL and self._answers & 7) else found

    def learned(self, backend_id: str, calibration: Calibration) -> None:
        """It took a sample."""
        self._of[backend_id].board.set_rates(backend_id, calibration.rates, calibration.residual_s)

    # --- what caches hold -----------------------------------------------------------------------------------------

    def capacity(self, backend_id: str, tokens: int | None) -> None:
        """An engine told how large its KV cache is; what it is taken to hold is bounded by that, where its events do not say it."""
        source = self._sources.get(backend_id)
        blocks = max(1, (tokens or UNSAID_CAPACITY_TOKENS) // BLOCK_TOKENS)
        if source is not None and source.capacity != blocks:
            source.capacity = blocks
            self._size(backend_id, source)

    def exact(self, backend_id: str) -> None:
        """What this backend holds is told by its events from now on."""
        source = self._sources.get(backend_id)
        if source is not None:
            source.check, source.told, source.lost, source.useless = EventCheck(), 0, False, ""
            self.index.cleared(backend_id)
            self._size(backend_id, source)

    def guessed(self, backend_id: str) -> None:
        """It is told by them no more."""
        source = self._sources.get(backend_id)
        if source is not None and source.check is not None:
            source.check, source.lost, source.useless = None, False, ""
            self.index.cleared(backend_id)
            self._size(backend_id, source)
            self._believe(backend_id, source)

    def events(self, backend_id: str, *, connected: bool, stored: int, now: float) -> None:
        """How the events of a backend stand: whether they come, and the blocks they have told of. Looks whether they are about the
        prompts that were sent there, and guesses where they are not (routers no. 26)."""
        source = self._sources.get(backend_id)
        if source is None or source.check is None:
            return
        source.told = stored
        check, index = source.check, self.index
        for block in check.due(now):
            check.found(index.told(backend_id, block), stored)
        if check.reason != source.useless:
            source.useless = check.reason
            tell = log.warning if check.reason else log.info
            tell("kv events of no use" if check.reason else "kv events of use again", backend=backend_id, reason=check.reason)
            self._size(backend_id, source)
        if source.lost is connected:
            source.lost = not connected
            self._believe(backend_id, source)

    def is_exact(self, backend_id: str) -> bool:
        """Whether its events say what it holds."""
        source = self._sources.get(backend_id)
        return source is not None and source.check is not None and not source.useless

    def answered(self, backend_id: str, chain: Sequence[int], now: float) -> None:
        """It has begun to answer the prompt with this chain."""
        source = self._sources.get(backend_id)
        if source is not None and source.check is not None:
            source.check.answered(chain, now)

    def restarted(self, backend_id: str) -> None:
        """Its process is another one, so its cache is empty. Where events say what it holds, they say that too."""
        ground = self._of.get(backend_id)
        if ground is None:
            return
        self.limits.restarted(backend_id)
        ground.sessions.forget(backend_id)
        self.trusts.forget(backend_id)
        source = self._sources[backend_id]
        if source.check is None:
            self.index.cleared(backend_id)
        self._believe(backend_id, source)

    def _size(self, backend_id: str, source: _Source) -> None:
        self.index.size(backend_id, 0 if source.check is not None and not source.useless else source.capacity)

    def compared(self, backend_id: str, predicted: float, actual: float) -> None:
        """An engine said how much of a prompt it had cached, where the index had said how much it would."""
        source = self._sources.get(backend_id)
        if source is None:
            return
        trust = self.trusts.of(backend_id)
        before = trust.alarm
        trust.observe(predicted, actual)
        if trust.alarm is not before:
            tell = log.warning if trust.alarm else log.info
            tell("prefix index off" if trust.alarm else "prefix index right again", backend=backend_id, median_error=trust.median_error)
        self._believe(backend_id, source)

    def _believe(self, backend_id: str, source: _Source) -> None:
        self._of[backend_id].board.set_trust(backend_id, 0.0 if source.lost else self.trusts.share(backend_id))
