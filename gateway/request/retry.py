"""The retries of one request: whether another backend is tried after a failed attempt, and the fault that its caller gets otherwise.

`RetryState` decides. `PoisonCheck` and `refuse_deadly` keep poison requests, which engines die of, from being tried again
(`backends.poison`).
"""

from collections.abc import Sequence
from math import ceil

from backends import attempt
from backends.contact import LOST
from backends.poison import MAY_KILL, Suspicion, mark_of
from domain.ask import Ask
from domain.faults import NEVER, Fault, Kind
from domain.usage import NO_USAGE
from gateway.deps import Deps
from gateway.placement.place import Placement
from gateway.queue.deadlines import place_back
from gateway.story import Story
from routing.fleet import Backend
from routing.load import Charge


class PoisonCheck:
    """Counts, for one request, the engines that may have died of it."""

    __slots__ = ("_ask", "_deps", "_mark", "_story")

    def __init__(self, ask: Ask, story: Story, deps: Deps) -> None:
        self._ask = ask
        self._story = story
        self._deps = deps
        self._mark = b""

    def struck(self, fault: Fault, backend: str, sent_at: float, now: float) -> Suspicion:
        """Count a failed attempt; returns how sure it is that engines die of this request."""
        deps, story = self._deps, self._story
        if fault.kind not in MAY_KILL:
            return Suspicion.NONE
        tenant = story.asked.caller.tenant if story.asked.caller is not None else ""
        self._mark = self._mark or mark_of(deps.salt_secret, tenant, story.first_model, self._ask.whole)
        return deps.live.suspects.struck(self._mark, tenant, backend, sent_at, now)

    def cleared(self) -> None:
        """Drop the suspicion: the request was answered, so no engine died of it."""
        if self._mark:
            self._deps.live.suspects.cleared(self._mark)


def refuse_deadly(ask: Ask, tenant: str, story: Story, deps: Deps) -> None:
    """Refuse a request that engines have died of lately; called only while such requests are known.

    Raises:
        Fault: CRASHES_ENGINES.
    """
    wait_s = deps.live.suspects.refused_s(mark_of(deps.salt_secret, tenant, story.first_model, ask.whole), deps.clock())
    if wait_s > 0:
        message = f"Two engines stopped while they worked on this request, so it is not tried for {ceil(wait_s)} s. Change it, or leave it."
        raise Fault(Kind.CRASHES_ENGINES, message)


class RetryState:
    """The failed attempts of one request. Created after the first of them.

    Args:
        first_at: when the request was sent for the first time.
    """

    __slots__ = ("_deps", "_first_at", "_poison", "_retrying", "_sent_at", "_share", "_spent", "_story")

    def __init__(self, ask: Ask, story: Story, deps: Deps, first_at: float) -> None:
        self._deps = deps
        self._story = story
        self._first_at = first_at
        self._sent_at = first_at
        self._poison = PoisonCheck(ask, story, deps)
        self._retrying = False
        self._share = 0.0
        """The share of the first token's deadline that was spent when the last attempt failed."""
        self._spent = False

    def may_retry(
        self, fault: Fault, backend: Backend, remaining: Sequence[Backend], first_token_s: float, *, goes_on: bool = False
    ) -> bool:
        """Whether the first of the remaining candidates is tried after a failed attempt. If so, `attempt_over` has to be called when that
        attempt ends.

        Args:
            first_token_s: the deadline of the first token of the attempt that failed.
            goes_on: whether the next engine goes on with an answer that has begun, so that the budget alone decides. Answers that a
                drain has cut need none of it: there are no more of them than ran on the drained engine, and no overload has cut them.
        """
        story, tried, deps = self._story, self._story.tried, self._deps
        engine, now = tried.backend if tried.prefill else backend.id, deps.clock()
        # an engine that dies of a shadow copy must not count against the tenant of the original request
        tried.suspicion = Suspicion.NONE if story.asked.shadow else self._poison.struck(fault, engine, self._sent_at, now)
        self._sent_at = now
        if fault.kind is Kind.LORA_UNAVAILABLE and remaining and not story.attempt.begun:
            return True  # nothing was sent, so the next attempt is no retry
        # an adapter's load has its own time limit, and says nothing about the speed of answers
        share = self._share = (now - self._first_at - story.lora_wait_s) / first_token_s
        begun, budget, retries = story.attempt.begun, deps.budget, len(tried.failed)
        drained = goes_on and fault.kind is Kind.BACKEND_DRAINED
        allowed = drained or (goes_on and budget.allows())
        if not goes_on:
            allowed = attempt.may_retry(fault.kind, retries=retries, answer_begun=begun, spent_share=share, budget=budget)
        if tried.suspicion or not remaining or not allowed:
            self._spent = tried.suspicion > Suspicion.NONE or tried.failed != () or not budget.allows()
            return False
        if not drained:
            budget.retry()
            self._retrying = True
        tried.failed += (engine,)
        return True

    def returns_to_queue(self, fault: Fault, backend: Backend, placement: Placement) -> bool:
        """Whether the request waits for an engine of its pool after its last attempt, because the attempt's connection was refused or
        broken, or another gateway process took the slot that its adapter was to have; its new queue entry is made then. Its deadline
        stays.

        An attempt whose connection was refused has asked nothing of an engine, so the request may return as often as that happens. One
        whose connection was broken may have reached its engine: what follows is a retry like any other. Where another backend of
        the pool can be reached, what follows counts against the retry budget in any case.
        """
        story, tried, deps = self._story, self._story.tried, self._deps
        chain, charge, budget = story.asked.chain, tried.charge, deps.budget
        if tried.suspicion or story.attempt.begun or charge is None:
            return False
        if fault.kind is Kind.LORA_UNAVAILABLE:
            return tried.lacked_slot and not (chain is not None and chain.has_for(fault.kind)) and self._queued_again(charge)
        if fault.kind not in LOST:
            return False
        if chain is not None and (chain.has_for(fault.kind) or chain.has_for(Kind.NO_BACKEND)):
            return False
        sent = fault.kind is not Kind.CONNECT_FAILED
        out = deps.live.contacts.none_left(deps.live.fleet.pools[placement.pool.name].up_ids)
        if sent and not attempt.may_retry(
            fault.kind, retries=len(tried.failed), answer_begun=False, spent_share=self._share, budget=budget
        ):
            return False
        if not sent and not out and not budget.allows():
            return False
        if not self._queued_again(charge):
            return False
        if sent or not out:
            budget.saved -= 1.0
        if sent:
            tried.failed += (tried.backend if tried.prefill else backend.id,)
        return True

    def _queued_again(self, charge: Charge) -> bool:
        """Make the queue entry of a request that waits once more; False where it has no time left."""
        story, placed = self._story, self._story.placed
        place = place_back(story, charge)
        if place.deadline <= self._deps.clock():
            return False
        if placed.on_used is not None:
            placed.on_used(NO_USAGE)  # the queue returns the charge to the request's tenant
        placed.queue_place, placed.on_used, placed.returned = place, None, story.tried.attempts
        story.tried.lacked_slot, story.tried.loading_s = False, 0.0
        return True

    def attempt_over(self) -> None:
        """Note that the retry has ended, however it ended."""
        if self._retrying:
            self._retrying = False
            self._deps.budget.retrying -= 1

    def answered(self) -> None:
        """Note that a retry gave a complete answer."""
        self._poison.cleared()

    def final_fault(self, fault: Fault) -> Fault:
        """The fault for the caller. Where the gateway's own retry failed as well, or the retry budget is exhausted, the caller is told not
        to retry either: a retry would only add to the load."""
        if self._spent and fault.kind not in (Kind.ENGINE_BUSY, Kind.LORA_UNAVAILABLE):
            fault.retry, fault.message = NEVER, fault.message.removesuffix(" Try again.")
        return fault
