"""The retries of one request: whether another backend is tried after a failed attempt, and the fault that its caller gets otherwise."""

from collections.abc import Sequence

from backends import attempt
from domain.ask import Ask
from domain.faults import NEVER, Fault, Kind
from gateway.deadly import PoisonCheck
from gateway.deps import Deps
from gateway.story import Story
from routing.fleet import Backend


class RetryState:
    """One request's failed attempts. Made only once an attempt has failed.

    Args:
        first_at: when the request was sent for the first time.
    """

    __slots__ = ("_deps", "_first_at", "_poison", "_retrying", "_sent_at", "_spent", "_story")

    def __init__(self, ask: Ask, story: Story, deps: Deps, first_at: float) -> None:
        self._deps = deps
        self._story = story
        self._first_at = first_at
        self._sent_at = first_at
        self._poison = PoisonCheck(ask, story, deps)
        self._retrying = False
        self._spent = False

    def may_retry(self, fault: Fault, backend: Backend, left: Sequence[Backend], first_token_s: float) -> bool:
        """An attempt failed: whether the first of the backends that are left is tried. If so, `attempt_over` has to be called when that
        attempt ends.

        Args:
            first_token_s: the deadline of the first token of the attempt that failed.
        """
        story, tried, deps = self._story, self._story.tried, self._deps
        engine, now = tried.backend if tried.prefill else backend.id, deps.clock()
        # what a copy does to a canary must not be held against the tenant whose request it is a copy of
        tried.deadly = not story.asked.shadow and self._poison.struck(fault, engine, self._sent_at, now)
        self._sent_at = now
        if fault.kind is Kind.LORA_UNAVAILABLE and left:
            return True  # nothing was sent, so going on is no retry
        # an adapter's load is bounded by a time of its own, and says nothing of how fast engines answer
        share = (now - self._first_at - story.lora_wait_s) / first_token_s
        begun, budget, retries = story.attempt.events > 0, deps.budget, len(tried.failed)
        allowed = attempt.may_retry(fault.kind, retries=retries, answer_begun=begun, spent_share=share, budget=budget)
        if tried.deadly or not left or not allowed:
            self._spent = tried.deadly or tried.failed != () or not budget.allows()
            return False
        budget.retry()
        self._retrying = True
        tried.failed += (engine,)
        return True

    def attempt_over(self) -> None:
        """The attempt that followed ended, however."""
        if self._retrying:
            self._retrying = False
            self._deps.budget.retrying -= 1

    def answered(self) -> None:
        """The request was answered whole after all."""
        self._poison.cleared()

    def final_fault(self, fault: Fault) -> Fault:
        """The fault that the caller gets. Where our own retry failed as well, or so many fail that no retry is to be had, the caller is
        told not to retry either: that would only add to the trouble."""
        if self._spent and fault.kind not in (Kind.ENGINE_BUSY, Kind.LORA_UNAVAILABLE):
            fault.retry, fault.message = NEVER, fault.message.removesuffix(" Try again.")
        return fault
