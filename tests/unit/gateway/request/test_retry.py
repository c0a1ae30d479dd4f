import pytest

from backends.poison import Suspicion
from domain.faults import NEVER, Fault, Kind, Retry
from gateway.request.retry import RetryState
from gateway.story import Story
from routing.fair_tier import QueuedRequest
from routing.fleet import Backend
from tests.placed import Worker, chat

A, B, C = (Backend(one, "chat") for one in "abc")


def fault(kind: Kind = Kind.ENGINE_ERROR) -> Fault:
    return Fault(kind, "It failed. Try again.", retry=Retry(should=True, after_s=1.0))


def begun(worker: Worker) -> tuple[RetryState, Story]:
    story = Story("req-1", worker.now, 0.0, worker.now)
    worker.deps.budget.active += 1
    worker.deps.budget.arrived += 1
    return RetryState(chat("x"), story, worker.deps, worker.now), story


@pytest.mark.req("R11")
async def test_one_retry_elsewhere_and_then_the_caller_is_told_to_stop() -> None:
    worker = Worker("a", "b", "c")
    tries, story = begun(worker)
    assert tries.may_retry(fault(), A, [B, C], 10.0)
    assert (story.tried.failed, worker.deps.budget.retrying) == (("a",), 1)
    tries.attempt_over()
    assert not tries.may_retry(fault(), B, [C], 10.0)
    said = tries.final_fault(fault())
    assert (said.retry, said.message) == (NEVER, "It failed.")
    assert tries.final_fault(fault(Kind.ENGINE_BUSY)).retry.should, "waiting helps"
    tries.attempt_over()
    assert worker.deps.budget.retrying == 0


@pytest.mark.req("R11")
async def test_never_after_the_first_byte_nor_late_nor_to_nobody() -> None:
    worker = Worker("a", "b")
    tries, story = begun(worker)
    assert not tries.may_retry(fault(), A, [], 10.0)
    assert tries.final_fault(fault()).retry.should, "nothing was retried, so the caller may"
    story.attempt.events = 1
    assert not tries.may_retry(fault(), A, [B], 10.0)
    story.attempt.events = 0
    worker.now += 6.0
    assert not tries.may_retry(fault(), A, [B], 10.0)
    story.lora_wait_s = 5.0
    assert tries.may_retry(fault(), A, [B], 10.0), "the wait for an adapter does not count"


async def test_where_the_budget_is_used_up_callers_are_told_not_to_retry_either() -> None:
    worker = Worker("a", "b")
    tries, _ = begun(worker)
    worker.deps.budget.saved = 0.0
    assert not tries.may_retry(fault(), A, [B], 10.0)
    assert tries.final_fault(fault()).retry == NEVER


async def test_an_adapter_that_cannot_be_loaded_here_costs_no_retry() -> None:
    worker = Worker("a", "b")
    tries, story = begun(worker)
    assert tries.may_retry(fault(Kind.LORA_UNAVAILABLE), A, [B], 10.0)
    assert (story.tried.failed, worker.deps.budget.retrying) == ((), 0)


@pytest.mark.parametrize(("lacked_slot", "left_s", "again"), [(True, 5.0, True), (True, 0.0, False), (False, 5.0, False)])
async def test_a_slot_that_another_process_took_is_waited_for_again_in_the_time_that_is_left(
    lacked_slot: bool, left_s: float, again: bool
) -> None:
    worker = Worker("a", "b")
    tries, story = begun(worker)
    story.tried.lacked_slot = lacked_slot
    placement = await worker.placed(chat())
    story.tried.charge = worker.load_table.charge("a", 10.0, 20.0, worker.now)
    entry = QueuedRequest("acme", 2, False, 30, worker.now + left_s, worker.now - 1.0, 10, 0)
    story.placed.queue_place = entry
    assert not tries.may_retry(fault(Kind.LORA_UNAVAILABLE), A, [], 10.0)
    saved = worker.deps.budget.saved
    assert tries.returns_to_queue(fault(Kind.LORA_UNAVAILABLE), A, placement) is again
    place = story.placed.queue_place
    assert (place.deadline, place.entered_at, place.back) == (entry.deadline, entry.entered_at, again)
    assert worker.deps.budget.saved == saved, "nothing was sent"


@pytest.mark.req("R11")
async def test_an_adapter_that_cannot_be_loaded_never_begins_an_answer_anew() -> None:
    worker = Worker("a", "b")
    tries, story = begun(worker)
    story.tried.lacked_slot = True
    story.tried.charge = worker.load_table.charge("a", 10.0, 20.0, worker.now)
    story.placed.queue_place = QueuedRequest("acme", 2, False, 30, worker.now + 60.0, worker.now, 10, 0)
    placement = await worker.placed(chat())
    story.attempt.events = 1
    assert not tries.may_retry(fault(Kind.LORA_UNAVAILABLE), A, [B], 10.0)
    assert not tries.returns_to_queue(fault(Kind.LORA_UNAVAILABLE), A, placement)


@pytest.mark.req("R1")
async def test_what_two_engines_may_have_died_of_is_not_tried_on_a_third() -> None:
    worker = Worker("a", "b", "c")
    first, _ = begun(worker)
    assert first.may_retry(fault(Kind.RESET_BEFORE_REPLY), A, [B, C], 10.0)
    first.attempt_over()
    second, story = begun(worker)  # the same body once more
    assert not second.may_retry(fault(Kind.RESET_BEFORE_REPLY), B, [C], 10.0)
    assert second.final_fault(fault()).retry == NEVER
    assert story.tried.suspicion is Suspicion.MAYBE, "no poll has looked: another model may answer"
    assert len(list(worker.deps.live.suspects.look(lambda _: worker.now, worker.now))) == 1
    third, story = begun(worker)
    assert not third.may_retry(fault(Kind.RESET_BEFORE_REPLY), C, [A], 10.0)
    assert story.tried.suspicion is Suspicion.CONFIRMED, "so no other model is tried either"
