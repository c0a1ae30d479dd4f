"""From one model's failure to the next one's turn; tests/e2e/test_fallback.py has whole requests."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from backends.poison import Suspicion
from domain.faults import Fault, Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.usage import Usage
from gateway.record import Record
from gateway.request.fallback import fall_back, release_hold
from gateway.request.fallback_chain import FallbackChain
from gateway.request.holds import OpenHold
from gateway.request.policy_match import Asked, match_policy
from gateway.story import Story
from policies.compile import compiled
from policies.schema import PolicyDocument
from tenancy.hold import Hold
from tenancy.limits import UNUSED, Amounts
from tenancy.prices import FREE
from tenancy.rights import EVERYTHING
from tests.placed import Worker, chat
from tests.stories import with_facts

CALLER = Caller(TenantId("acme"), ProjectId("lab"), KeyId("k"))
GRANT: Any = SimpleNamespace(rights=EVERYTHING)


def away() -> Fault:
    return Fault(Kind.NO_BACKEND, "Nobody.")


def begun(worker: Worker, **values: Any) -> Story:
    """The Story of a request for a model that two others stand in for."""
    models = [{"name": "sim", "pool": "chat", "fallback": [{"to": "b"}, {"to": "c"}]}, {"name": "b", "pool": "chat"}]
    policies = compiled([PolicyDocument.model_validate({"tenant": "acme", "models": [*models, {"name": "c", "pool": "chat"}]})])
    asked = Asked(chat("x"), CALLER, "", {}, 0.0)
    found = match_policy(policies, asked, EVERYTHING, "k")
    assert found is not None
    story = with_facts(Story("mine", worker.now, 0.0, worker.now, "own-1"), caller=CALLER, model="sim", tenant_policy=found.policy)
    story.asked.chain = FallbackChain(policies, asked, found, EVERYTHING, "k")
    return with_facts(story, **values)


def exchange(**values: bool) -> Any:
    return SimpleNamespace(head=SimpleNamespace(headers={}), **{"gone": False, "finished": False, **values})


async def test_the_next_model_has_an_id_of_its_own_and_what_is_left_of_the_time() -> None:
    worker = Worker("a")
    story = begun(worker, queue_s=2.0, dispatched_at=worker.now + 3.0, attempts=2, backend="a", usage=Usage(9, 9))
    worker.now += 10.0
    ask, rule, made = fall_back(away(), GRANT, exchange(), story, worker.deps)
    assert (ask.model, rule.name, made.asked.model, made.asked.asked_model) == ("sim", "b", "b", "sim")
    assert (made.request_id, made.own_id != "own-1", made.started_at, made.queue_s) == ("mine", True, story.started_at, 2.0)
    assert (made.tried.attempts, made.tried.backend, made.attempt.usage, made.asked.asked_wait_s) == (0, "", None, 50.0), (
        "of the class's 60 s"
    )
    assert made.overhead_s(worker.now) == pytest.approx(1.0), "neither the wait nor the engine is ours"
    assert made.first_model == "sim"


async def test_an_answer_that_has_begun_a_deadly_request_and_a_caller_that_left_end_with_what_happened() -> None:
    worker = Worker("a")
    fault = away()
    for story, where in (
        (begun(worker, events=1), exchange()),
        (begun(worker, suspicion=Suspicion.CONFIRMED), exchange()),
        (begun(worker), exchange(gone=True)),
        (begun(worker), exchange(finished=True)),
        (begun(worker, chain=None), exchange()),
        (begun(worker, asked_wait_s=0.0), exchange()),
    ):
        with pytest.raises(Fault) as raised:
            fall_back(fault, GRANT, where, story, worker.deps)
        assert raised.value is fault
        assert story.fell_back == ()
    _, _, second = fall_back(fault, GRANT, exchange(), begun(worker, suspicion=Suspicion.MAYBE), worker.deps)
    assert second.asked.model == "b", "two failed attempts that nobody has seen to be deaths"
    deadly = Fault(Kind.CRASHES_ENGINES, "seen between the models")
    with pytest.raises(Fault) as raised:
        fall_back(deadly, GRANT, exchange(), second, worker.deps)
    assert raised.value is deadly
    ended = Fault(Kind.DEADLINE_PASSED, "x")
    _, _, second = fall_back(fault, GRANT, exchange(), begun(worker), worker.deps)
    with pytest.raises(Fault) as raised:
        fall_back(ended, GRANT, exchange(), second, worker.deps)
    assert raised.value is ended, "the request's time, not the model's"
    with pytest.raises(Fault) as raised:
        fall_back(fault, GRANT, exchange(), begun(worker, end_at=worker.now), worker.deps)
    assert raised.value is fault


async def test_where_all_have_failed_it_is_told_as_what_became_of_the_first() -> None:
    worker = Worker("a")
    story, fault = begun(worker, pool="first", backend="a", attempts=1), away()
    _, _, second = fall_back(fault, GRANT, exchange(), story, worker.deps)
    _, _, third = fall_back(Fault(Kind.TOKEN_LIMIT, "x"), GRANT, exchange(), second, worker.deps)
    with_facts(third, pool="third", backend="c")
    with pytest.raises(Fault) as raised:
        fall_back(Fault(Kind.ENGINE_ERROR, "x"), GRANT, exchange(), third, worker.deps)
    assert raised.value is fault
    assert (third.asked.model, third.asked.asked_model, third.placed.pool, third.tried.backend, third.tried.attempts) == (
        "sim",
        "",
        "first",
        "a",
        1,
    )
    words = [(one.model, one.to, one.outcome) for one in third.fell_back]
    assert words == [("sim", "b", "no_backend"), ("b", "c", "token_limit"), ("c", "", "engine_error")]


async def test_a_rollout_hears_of_what_became_of_its_arm_and_nobody_else_does() -> None:
    worker = Worker("a")
    told: list[Record] = []
    worker.deps = replace(worker.deps, observe=told.append)
    dealt: Any = SimpleNamespace(words="r: canary")
    story = begun(worker, dealt=dealt)
    _, _, second = fall_back(Fault(Kind.ENGINE_ERROR, "x"), GRANT, exchange(), story, worker.deps)
    assert [(one.outcome, one.dealt, one.shadow, one.model) for one in told] == [("engine_error", dealt, True, "sim")]
    assert second.asked.dealt is None


async def test_what_was_held_for_a_model_that_did_not_answer_is_given_back_whole() -> None:
    worker = Worker("a")
    settled: list[tuple[Hold, Amounts]] = []
    told: list[Usage] = []

    class Store:
        in_process = False

        async def settle(self, hold: Hold, actual: Amounts) -> None:
            settled.append((hold, actual))
            if len(settled) > 1:
                raise RuntimeError("a defect")

    story = begun(worker, on_used=told.append, usage=Usage(5, 5))
    grouped: Any = (SimpleNamespace(),)
    deps: Any = SimpleNamespace(holds=worker.deps.holds, counters=Store(), log_defect=lambda *_: told.append(Usage(7, 7)))
    hold = Hold("own-1", CALLER.tenant, Amounts(5, 5), grouped)
    one = deps.holds.open(hold, FREE, story, 5, 5, 1)
    await release_hold(one, deps)
    assert (settled, told, len(deps.holds)) == ([(hold, UNUSED)], [Usage()], 0)
    await release_hold(deps.holds.open(hold, FREE, begun(worker), 5, 5, 1), deps)
    assert told[1:] == [Usage(7, 7)], "written down, and the request goes on"
    await release_hold(None, deps)
    free: OpenHold = deps.holds.open(Hold("own-2", CALLER.tenant, Amounts()), FREE, begun(worker), 5, 5, 1)
    await release_hold(free, deps)
    assert len(settled) == 2, "nobody limits it"
