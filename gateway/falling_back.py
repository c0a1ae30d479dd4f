"""Which model answers next where one cannot, as the policy's `fallback` says (`policies.fallback`). Pure.

A model is tried where its entry names the way in which any model before it failed, so that one that stands in for an overloaded model and
finds the prompt too long still leads on to the one with the longer context. Each is tried once at most, in the order of the list.
"""

from domain.faults import Kind
from gateway.ruling import Asked, PolicyMatch, match_fallback
from policies.compile import PolicySet
from policies.fallback import CONDITION_OF, Fallback
from tenancy.rights import Allowed


class Chain:
    """What may answer one request instead of the model that it asked for. Made only where its policy has something for that.

    Args:
        found: what was found for that model.
        key: what requests are dealt out by.
    """

    __slots__ = ("_allowed", "_asked", "_found", "_key", "_left", "_met", "_policies", "asked")

    def __init__(self, policies: PolicySet, asked: Asked, found: PolicyMatch, allowed: Allowed, key: str) -> None:
        self._policies = policies
        self._asked = asked
        self._found = found
        self._allowed = allowed
        self._key = key
        self._left: list[Fallback] = list(found.model.fallback)
        self._met: set[str] = set()
        self.asked = asked.ask
        """The request before any policy changed it."""

    def after(self, kind: Kind, model: str) -> tuple[PolicyMatch, str] | None:
        """The next model, after one that failed in this way, and the condition it is tried on; None where there is none.

        A model that the caller may not use is passed over, and so is one that has failed already because a degradation ladder led to it.
        """
        on = CONDITION_OF.get(kind)
        if on is not None:
            self._met.add(on)
        for one in list(self._left):
            if self._met.isdisjoint(one.on):
                continue
            self._left.remove(one)
            if one.model == model:
                continue
            found = match_fallback(self._policies, self._asked, one.model, self._found.rule, self._allowed, self._key)
            if found is not None:
                return found, on if on in one.on else min(self._met & one.on)
        return None
