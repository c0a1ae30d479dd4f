"""The routing decisions about the last requests of this worker, kept for `tidegate explain`; bounded.

A decision keeps only values that routing computed anyway; they are put into words on demand. Of a prompt only its length is kept.
"""

from collections import deque
from typing import Final

import msgspec

from gateway.placing.explained import Explained, contenders
from routing.disaggregation import Split
from routing.ports import RoutingRequest
from routing.schedule import Route

MAX_DECISIONS: Final = 1_000
"""Decisions kept."""

MAX_CANDIDATES: Final = 20_000
"""Candidates over all decisions kept: bounds memory alike for pools of two backends and of a thousand."""


class Decision(msgspec.Struct, gc=False, eq=False):
    """The routing decision about one request."""

    route: Route
    ids: tuple[str, ...]
    """The request's ids: the caller's own, and the gateway's."""
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
    """The decision about disaggregated prefill and decode; None where the pool has none."""
    served_by: str = ""
    """The backend that was tried last."""
    queued: str = ""
    """How the request's wait in the queue ended, or "waiting"; empty when it did not wait."""
    queued_s: float = 0.0
    queued_ahead: int = 0
    """Tokens queued ahead of the request when its wait began."""
    asked_model: str = ""
    steps: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    rule: str = ""
    rollout: str = ""
    fell_back: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of backends in the decision."""
        return len(self.route.ranked) + len(self.route.excluded)

    def explained(self) -> Explained:
        """The decision in words and numbers."""
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
    route: Route, demand: RoutingRequest, ids: tuple[str, ...], at_unix: float, model: str, pool: str, split: Split | None = None
) -> Decision:
    """The values of one request's placement that are kept."""
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
    """The last decisions, found by either id of the request."""

    __slots__ = ("_by_age", "_by_id", "_candidates", "_max_candidates", "_max_decisions")

    def __init__(self, max_decisions: int = MAX_DECISIONS, max_candidates: int = MAX_CANDIDATES) -> None:
        self._by_age: deque[Decision] = deque()
        self._by_id: dict[str, Decision] = {}
        self._candidates = 0
        self._max_decisions = max_decisions
        self._max_candidates = max_candidates

    def __len__(self) -> int:
        return len(self._by_age)

    def keep(self, decision: Decision) -> None:
        """Keep one more decision and drop the oldest ones. A caller's id that is used again finds its last request."""
        by_age = self._by_age
        by_id = self._by_id
        by_age.append(decision)
        for request_id in decision.ids:
            by_id[request_id] = decision
        self._candidates += decision.size
        while (len(by_age) > self._max_decisions or self._candidates > self._max_candidates) and len(by_age) > 1:
            oldest = by_age.popleft()
            self._candidates -= oldest.size
            for request_id in oldest.ids:
                if by_id.get(request_id) is oldest:
                    del by_id[request_id]

    def find(self, request_id: str) -> Explained | None:
        """The decision about a request; None when there was none, or it has been dropped."""
        decision = self._by_id.get(request_id)
        return None if decision is None else decision.explained()
