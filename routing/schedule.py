"""The routing decision: an Ask, a pool of the Fleet, the Load, the time and the dice in; a Route with its reasons out.

Pure and synchronous. Stage A takes out who cannot serve; the policy ranks the rest.
"""

import msgspec

from domain.ask import Ask
from domain.clock import Rng
from domain.explain import Candidate, Explanation
from routing.fleet import Backend, Pool
from routing.load import Load
from routing.ports import Ranked
from routing.registry import POLICIES, TERMS


class Route(msgspec.Struct, frozen=True, gc=False):
    """Backends to try, best first, and what the decision was made of."""

    policy: str
    ranked: Ranked
    excluded: tuple[Backend, ...]
    extra: tuple[str, ...] = ()
    """Names of terms that follow the policy's own."""

    @property
    def backends(self) -> list[Backend]:
        """The candidates, best first."""
        return [backend for backend, _ in self.ranked]

    def explanation(self) -> Explanation:
        """The decision with every term, made only when somebody asks: most requests are never explained."""
        names = TERMS[self.policy] + self.extra
        return Explanation(
            policy=self.policy,
            candidates=(
                *(Candidate(b.id, tuple(zip(names, terms, strict=True))) for b, terms in self.ranked),
                *(Candidate(b.id, excluded=b.reason or b.state.value) for b in self.excluded),
            ),
        )


def schedule(ask: Ask, pool: Pool, load: Load, now: float, rng: Rng, policy: str) -> Route:
    """Rank the pool's backends for this Ask. An empty `ranked` means that nobody can serve it now.

    Raises:
        KeyError: no such policy; policy files are checked at load, so this is a defect.
    """
    return Route(policy, POLICIES[policy](ask, pool.up, load, now, rng), pool.not_up)
