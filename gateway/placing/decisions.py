"""The decisions about the last requests of this worker, kept so that somebody can ask about one of them; bounded.

What is kept is values that the decision made anyway; they are put into words when somebody asks. Of a prompt nothing is kept but
its length.
"""

from collections import deque
from typing import Final

import msgspec

from gateway.placing.explained import Explained, contenders
from routing.demand import Demand
from routing.disaggregation import Split
from routing.schedule import Route

MAX_DECISIONS: Final = 1_000
MAX_CANDIDATES: Final = 20_000
"""Over all decisions kept, so that it makes no difference whether pools have two backends or a thousand."""


class Decision(msgspec.Struct, gc=False, eq=False):
    """One request's placing."""

    route: Route
    ids: tuple[str, ...]
    """The request's: the caller's own, and the gateway's."""
    at_unix: float
    tenant: str
    model: str
    pool: str
    prompt_tokens: int
    output_tokens: int
    output_tokens_p90: int
    blocks: int
    lora: str
    session: bool
    split: Split | None = None
    """What was thought of sharing it between two backends."""
    served_by: str = ""
    """The backend that was tried last."""
    queued: str = ""
    """How its wait for its turn ended, or "waiting"; empty when it did not wait."""
    queued_s: float = 0.0
    queued_ahead: int = 0
    """Tokens that were to be served before it."""
    asked_model: str = ""
    steps: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    rule: str = ""
    rollout: str = ""
    fell_back: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Backends in it."""
        return len(self.route.ranked) + len(self.route.excluded)

    def explained(self) -> Explained:
        """It in words and numbers."""
        route = self.route
        chosen = route.ranked[0][0].id if route.ranked else ""
        return Explained(
            self.ids[0],
            self.at_unix,
            self.tenant,
            self.model,
            self.pool,
            route.policy,
            chosen,
            self.prompt_tokens,
            self.output_tokens,
            self.output_tokens_p90,
            contenders(route),
            self.lora,
            self.session,
            self.blocks,
            route.why,
            self.served_by if self.served_by != chosen else "",
            self.split.sentence() if self.split is not None else "",
            self.queued,
            self.queued_s,
            self.queued_ahead,
            self.asked_model,
            self.steps,
            self.passed_over,
            self.rule,
            self.rollout,
            self.fell_back,
        )


def decision(
    route: Route, demand: Demand, ids: tuple[str, ...], at_unix: float, model: str, pool: str, split: Split | None = None
) -> Decision:
    """What is kept of one request's placing."""
    return Decision(
        route,
        ids,
        at_unix,
        demand.tenant,
        model,
        pool,
        demand.prompt_tokens,
        demand.output_tokens,
        demand.output_tokens_p90,
        len(demand.chain),
        demand.lora,
        demand.session != 0,
        split,
    )


class Decisions:
    """The last ones, by either id."""

    __slots__ = ("_by_id", "_candidates", "_kept", "_max_candidates", "_max_decisions")

    def __init__(self, max_decisions: int = MAX_DECISIONS, max_candidates: int = MAX_CANDIDATES) -> None:
        self._kept: deque[Decision] = deque()
        self._by_id: dict[str, Decision] = {}
        self._candidates = 0
        self._max_decisions = max_decisions
        self._max_candidates = max_candidates

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, made: Decision) -> None:
        """One more; the oldest go. A caller's id that comes again stands for its last request."""
        kept, by_id = self._kept, self._by_id
        kept.append(made)
        for one in made.ids:
            by_id[one] = made
        self._candidates += made.size
        while (len(kept) > self._max_decisions or self._candidates > self._max_candidates) and len(kept) > 1:
            old = kept.popleft()
            self._candidates -= old.size
            for one in old.ids:
                if by_id.get(one) is old:
                    del by_id[one]

    def find(self, request_id: str) -> Explained | None:
        """The decision about a request; None when there was none, or it is gone."""
        found = self._by_id.get(request_id)
        return None if found is None else found.explained()
