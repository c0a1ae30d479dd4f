"""The interfaces of a routing decision: what a policy implements and returns, and the lookups that the gateway hands in."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from domain.clock import Rng
from domain.strict import Strict
from routing.board import Board
from routing.demand import Demand

Column = Sequence[float]
"""One value per candidate backend."""


class Match(Protocol):
    """The prefix match of one prompt; counts are leading blocks of the request's chain."""

    @property
    def common(self) -> float:
        """Blocks that nearly every backend holds."""
        ...

    def held(self, backend_id: str, /) -> float:
        """Blocks that this backend holds; 0 for one that the index does not know."""
        ...


class Unmatched:
    """The match when there is no prefix index: no backend holds anything."""

    common: Final = 0.0

    def held(self, backend_id: str, /) -> float:
        return 0.0


UNMATCHED: Final = Unmatched()


class Adapters(NamedTuple):
    """Where a request's LoRA adapter is loaded, or can be."""

    there: Collection[str]
    """Ids of the backends that have the adapter or are loading it."""
    unable: Mapping[str, str]
    """Backends that cannot load it, by id, each with the reason."""
    load_s: float = 1.0
    """Seconds that a load usually takes."""


class Sight(NamedTuple):
    """The eligible backends of one decision, as filters, scorers and policies see them beside the load table. Columns have one value per
    eligible backend, in the order of `rows`."""

    rows: Sequence[int]
    """Rows of the eligible backends in the load table; at least one."""
    matched: Column
    """Tokens of the prompt that each holds, as far as its index is trusted; at most the prompt less one token."""
    common: float = 0.0
    """Tokens of the prompt that nearly every backend holds: a match no longer than this distinguishes none."""
    lora_s: Column = ()
    """Seconds until the adapter is loaded there, 0 where it is; empty for the base model."""
    sticky: int = -1
    """Position in `rows` of the backend that had the session's last turn, or -1."""
    shares: Column = ()
    """Share of its usual load that each may take during slow start (`routing.warmth`); empty when no backend is warming up."""


class Scores(NamedTuple):
    """What a policy returns: a cost per eligible backend."""

    cost: Column
    """One value per eligible backend; the least wins."""
    terms: tuple[Column, ...]
    """The parts of the cost, in the order of the policy's `terms`."""
    margin: float = 0.0
    """Costs within this of the least count as equal; in the unit of `cost`."""
    barred: Mapping[int, str] = {}
    """Positions that the policy excludes, each with the reason."""


class Memory(Protocol):
    """What a policy remembers of its own decisions; most policies have none."""

    def placed(self, demand: Demand, backend_id: str, uncached_tokens: float, now: float) -> None:
        """Record that the request was sent to this backend."""
        ...


Score = Callable[[Demand, Sight, Board, Any, Any, float, Rng], Scores]
"""(demand, sight, board, params, memory or None, now in monotonic seconds, rng) -> Scores. Changes no state but that of `rng`."""


class Policy(NamedTuple):
    """One routing policy: a file in `policies/` and a line in `registry.py`."""

    score: Score
    params: type[Strict]
    """The parameters that a policy file may set; every field has a default."""
    terms: tuple[str, ...]
    memory: Callable[[Any], Memory] | None = None
    """Makes the policy's memory from its params."""
    blind: bool = False
    """The policy ignores prefix matches, so a prompt need not be tokenized for it."""
    in_seconds: bool = False
    """The costs are seconds, so that nearly equal costs can be recognised: among those, stage C prefers the session's backend, then the
    best match, then the fewest requests, and explores. For other policies the least cost wins, and ties are drawn at random."""


class Nothing(Strict):
    """Parameters of a policy that has none."""
