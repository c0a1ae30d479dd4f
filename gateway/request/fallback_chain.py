"""The order in which fallback models are tried for one request, by the `fallback` list of its policy (`policies.fallback`). Pure.

A model is tried where its entry names a condition on which any earlier model failed. So when the first model is overloaded, and the prompt
is too long for its stand-in, a model that is listed for long prompts is still tried. Each model is tried once at most, in the order of the
list.
"""

from domain.faults import Kind
from gateway.request.policy_match import Asked, PolicyMatch, match_fallback
from policies.compile import PolicySet
from policies.fallback import CONDITION_OF, Fallback
from tenancy.rights import Allowed


class FallbackChain:
    """The models that may answer one request instead of the model that it asked for. Created only where its policy names any.

    Args:
        match: the policy's match for the model that the request asks for.
        key: the sticky key of the request.
    """

    __slots__ = ("_allowed", "_asked", "_conditions_met", "_key", "_policies", "_rule", "_untried", "asked")

    def __init__(self, policies: PolicySet, asked: Asked, match: PolicyMatch, allowed: Allowed, key: str) -> None:
        self._policies = policies
        self._asked = asked
        self._rule = match.rule
        self._allowed = allowed
        self._key = key
        self._untried: list[Fallback] = list(match.model.fallback)
        self._conditions_met: set[str] = set()
        self.asked = asked.ask
        """The request before any policy changed it."""

    def has_for(self, kind: Kind) -> bool:
        """Whether an untried entry of the list names the condition that a fault of this kind meets, or one that was met before."""
        conditions = {CONDITION_OF.get(kind), *self._conditions_met}
        return any(not conditions.isdisjoint(entry.on) for entry in self._untried)

    def after(self, kind: Kind, model: str) -> tuple[PolicyMatch, str] | None:
        """The next model after `model` failed with a fault of this kind, and the condition on which it is tried; None where none is left.

        A model that the caller may not use is passed over, and so is one that has failed already because a degradation ladder led to it.
        """
        condition = CONDITION_OF.get(kind)
        if condition is not None:
            self._conditions_met.add(condition)
        for entry in list(self._untried):
            if self._conditions_met.isdisjoint(entry.on):
                continue
            self._untried.remove(entry)
            if entry.model == model:
                continue
            match = match_fallback(self._policies, self._asked, entry.model, self._rule, self._allowed, self._key)
            if match is not None:
                return match, condition if condition in entry.on else min(self._conditions_met & entry.on)
        return None
