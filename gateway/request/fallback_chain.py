"""Which model answers next where one cannot, as the policy's `fallback` says (`policies.fallback`). Pure.

A model is tried where its entry names the way in which any model before it failed, so that one that stands in for an overloaded model and
finds the prompt too long still leads on to the one with the longer context. Each is tried once at most, in the order of the list.
"""

from domain.faults import Kind
from gateway.request.policy_match import Asked, PolicyMatch, match_fallback
from policies.compile import PolicySet
from policies.fallback import CONDITION_OF, Fallback
from tenancy.rights import Allowed


class FallbackChain:
    """The models that may answer one request instead of the model that it asked for. Made only where its policy names any.

    Args:
        match: what the policy says of the request for the model it asked for.
        key: the key that rollouts and shares deal the request out by.
    """

    __slots__ = ("_allowed", "_asked", "_key", "_left", "_met", "_policies", "_rule", "asked")

    def __init__(self, policies: PolicySet, asked: Asked, match: PolicyMatch, allowed: Allowed, key: str) -> None:
        self._policies = policies
        self._asked = asked
        self._rule = match.rule
        self._allowed = allowed
        self._key = key
        self._left: list[Fallback] = list(match.model.fallback)
        self._met: set[str] = set()
        self.asked = asked.ask
        """The request before any policy changed it."""

    def after(self, kind: Kind, model: str) -> tuple[PolicyMatch, str] | None:
        """The next model, after one that failed in this way, and the condition it is tried on; None where there is none.

        A model that the caller may not use is passed over, and so is one that has failed already because a degradation ladder led to it.
        """
        condition = CONDITION_OF.get(kind)
        if condition is not None:
            self._met.add(condition)
        for entry in list(self._left):
            if self._met.isdisjoint(entry.on):
                continue
            self._left.remove(entry)
            if entry.model == model:
                continue
            match = match_fallback(self._policies, self._asked, entry.model, self._rule, self._allowed, self._key)
            if match is not None:
                return match, condition if condition in entry.on else min(self._met & entry.on)
        return None
