"""Poison requests, which engines die of: where the steps meet `backends.poison`."""

from math import ceil

from backends.poison import MAY_KILL, mark_of
from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.deps import Deps
from gateway.story import Story


class PoisonCheck:
    """Counts, for one request, the engines that may have died of it."""

    __slots__ = ("_ask", "_deps", "_mark", "_story")

    def __init__(self, ask: Ask, story: Story, deps: Deps) -> None:
        self._ask = ask
        self._story = story
        self._deps = deps
        self._mark = b""

    def struck(self, fault: Fault, backend: str, sent_at: float, now: float) -> bool:
        """An attempt failed: whether so many engines have died of this request that it must not be tried once more."""
        deps, story = self._deps, self._story
        if fault.kind not in MAY_KILL:
            return False
        tenant = story.asked.caller.tenant if story.asked.caller is not None else ""
        self._mark = self._mark or mark_of(deps.salt_secret, tenant, story.first_model, self._ask.fields)
        return deps.live.suspects.struck(self._mark, tenant, backend, sent_at, now)

    def cleared(self) -> None:
        """The request was answered, so no engine died of it."""
        if self._mark:
            self._deps.live.suspects.cleared(self._mark)


def refuse_deadly(ask: Ask, tenant: str, story: Story, deps: Deps) -> None:
    """Refuse a request that engines have died of lately; called only while there is any.

    Raises:
        Fault: CRASHES_ENGINES.
    """
    wait_s = deps.live.suspects.refused_s(mark_of(deps.salt_secret, tenant, story.first_model, ask.fields), deps.clock())
    if wait_s > 0:
        message = f"Two engines stopped while they worked on this request, so it is not tried for {ceil(wait_s)} s. Change it, or leave it."
        raise Fault(Kind.CRASHES_ENGINES, message)
