"""One request's failed attempts: whether it is tried once more, and what its caller is told otherwise. Made only once one has failed."""

from collections.abc import Sequence

from backends.attempt import may_retry
from domain.ask import Ask
from domain.faults import NEVER, Fault, Kind
from gateway.deadly import Marked
from gateway.deps import Deps
from gateway.story import Story
from routing.fleet import Backend


class Tries:
    """See the module.

    Args:
        first_at: when it was sent for the first time.
    """

    __slots__ = ("_deps", "_first_at", "_marked", "_retrying", "_sent_at", "_spent", "_story")

    def __init__(self, ask: Ask, story: Story, deps: Deps, first_at: float) -> None:
        self._deps = deps
        self._story = story
        self._first_at = self._sent_at = first_at
        self._marked = Marked(ask, story, deps)
        self._retrying = False
        self._spent = False

    def another(self, fault: Fault, backend: Backend, left: Sequence[Backend], first_token_s: float) -> bool:
        """An attempt failed: whether the first of those that are left is tried. Then `over` has to be called at its end.

        Args:
            first_token_s: the deadline of this attempt's first token.
        """
        story, deps = self._story, self._deps
        engine, now = story.backend if story.prefill else backend.id, deps.clock()
        # what a copy does to a canary must not be held against the tenant whose request it is a copy of
        deadly = story.deadly = not story.shadow and self._marked.struck(fault, engine, self._sent_at, now)
        self._sent_at = now
        if fault.kind is Kind.LORA_UNAVAILABLE and left:
            return True  # nothing was sent, so going on is no retry
        # an adapter's load is bounded by a time of its own, and says nothing of how fast engines answer
        share = (now - self._first_at - story.lora_wait_s) / first_token_s
        begun, budget = story.events > 0, deps.budget
        if deadly or not left or not may_retry(fault.kind, retries=len(story.failed), answer_begun=begun, spent_share=share, budget=budget):
            self._spent = deadly or story.failed != () or not budget.allows()
            return False
        budget.retry()
        self._retrying = True
        story.failed += (engine,)
        return True

    def over(self) -> None:
        """The attempt that followed ended, however."""
        if self._retrying:
            self._retrying = False
            self._deps.budget.retrying -= 1

    def answered(self) -> None:
        """It was answered whole after all."""
        self._marked.cleared()

    def last_word(self, fault: Fault) -> Fault:
        """The fault that the caller hears of. Our own retry failed as well, or so many fail that there is none to be had: the caller's
        would only add to the trouble."""
        if self._spent and fault.kind not in (Kind.ENGINE_BUSY, Kind.LORA_UNAVAILABLE):
            fault.retry, fault.message = NEVER, fault.message.removesuffix(" Try again.")
        return fault
