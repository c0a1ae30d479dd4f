"""What a routing policy is, and what a decision needs of those who look things up for it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from domain.clock import Rng
from domain.strict import Strict
from routing.board import Board
from routing.demand import Demand

Column = Sequence[float]


class Match(Protocol):
    """What the index found for one prompt; counts are blocks of the Demand's chain, from its beginning."""

    @property
    def common(self) -> float:
        """Blocks that nearly every backend holds."""
        ...

    def held(self, backend_id: str, /) -> float:
        """Blocks that this backend holds; 0 for one that the index does not know."""
        ...


class Unmatched:
    """What the index says when there is none."""

    common: Final = 0.0

    def held(self, backend_id: str, /) -> float:
        """See `Match`."""
        return 0.0


UNMATCHED: Final = Unmatched()


class Adapters(NamedTuple):
    """Where the adapter is that a request is answered with."""

    there: Collection[str]
    """Ids of backends that have it or are getting it."""
    unable: Mapping[str, str]
    """Why others cannot get it, by id."""
    load_s: float = 1.0
    """Seconds that a load usually takes."""


class Sight(NamedTuple):
    """What one decision sees beside the Board. Columns have one value per eligible backend, in the order of `rows`."""

    rows: Sequence[int]
    """Rows of the Board that are eligible; at least one."""
    matched: Column
    """Tokens of the prompt that each holds, as far as its index is trusted; at most the prompt less one token."""
    common: float = 0.0
    """Tokens of those that nearly every backend holds: a match no longer than this says nothing."""
    lora_s: Column = ()
    """Seconds until the adapter is loaded there, 0 where it is; empty for the base model."""
    sticky: int = -1
    """Position in `rows` of the backend that had the session's last turn, or -1."""
    shares: Column = ()
    """What each may carry of what it could, while it warms up (`routing.warmth`); empty when all may carry all."""


class Scores(NamedTuple):
    """A policy's judgement."""

    cost: Column
    """One value per eligible backend; the least wins."""
    terms: tuple[Column, ...]
    """What the cost was made of, in the order of the policy's `terms`."""
    margin: float = 0.0
    """Costs within this of the least count as equal; in the unit of `cost`."""
    barred: Mapping[int, str] = {}
    """Positions that the policy does not want at all, each with the reason."""


class Memory(Protocol):
    """What a policy remembers of its own placements; most have none."""

    def placed(self, demand: Demand, backend_id: str, uncached_tokens: float, now: float) -> None:
        """The request went there."""
        ...


Score = Callable[[Demand, Sight, Board, Any, Any, float, Rng], Scores]
"""(demand, sight, board, params, memory or None, now in monotonic seconds, rng) -> Scores. Changes nothing but the dice."""


class Policy(NamedTuple):
    """One way to place requests: a file in `policies/` and a line in `registry.py`."""

    score: Score
    params: type[Strict]
    """What a policy file may set of it; every field has a default."""
    terms: tuple[str, ...]
    memory: Callable[[Any], Memory] | None = None
    """Makes its memory from its params."""
    blind: bool = False
    """It looks at nobody's cache, so a prompt need not be read for it."""
    in_seconds: bool = False
    """Its costs are seconds, so that costs can be told to be nearly equal: stage C prefers among those the session's backend, then
    the best match, then the fewest requests, and explores. Of other policies the least cost wins, and ties are drawn."""


class Nothing(Strict):
    """Parameters of a policy that has none."""
