import pytest

from backends.poison import Suspicion
from domain.faults import Fault, Kind
from domain.identity import Caller, TenantId
from gateway.request.retry import PoisonCheck, refuse_deadly
from gateway.story import Story
from tests.placed import Worker, chat


def story_of(tenant: str) -> Story:
    story = Story("req-1", 0.0, 0.0, 0.0)
    story.asked.caller, story.asked.model = Caller(TenantId(tenant), "default", "key"), "sim"
    return story


async def test_who_ended_two_engines_is_refused_and_nobody_else_is() -> None:
    worker = Worker("a", "b")
    deps, ask, story = worker.deps, chat("deadly"), story_of("acme")
    check = PoisonCheck(ask, story, deps)
    assert not check.struck(Fault(Kind.CONNECT_FAILED, "x"), "a", worker.now, worker.now), "nothing was sent"
    assert not check.struck(Fault(Kind.RESET_BEFORE_REPLY, "x"), "a", worker.now, worker.now)
    assert check.struck(Fault(Kind.BROKEN_STREAM, "x"), "b", worker.now, worker.now) is Suspicion.MAYBE
    assert len(list(deps.live.suspects.look(lambda _: worker.now, worker.now))) == 1
    with pytest.raises(Fault) as refused:
        refuse_deadly(ask, "acme", story, deps)
    assert refused.value.kind is Kind.CRASHES_ENGINES
    assert "120 s" in refused.value.message
    refuse_deadly(chat("harmless"), "acme", story, deps)
    refuse_deadly(ask, "bolt", story_of("bolt"), deps)
    check.cleared()
    refuse_deadly(ask, "acme", story, deps)


async def test_it_is_the_same_request_where_another_model_is_tried() -> None:
    worker = Worker("a", "b")
    ask, story = chat("deadly"), story_of("acme")
    assert not PoisonCheck(ask, story, worker.deps).struck(Fault(Kind.RESET_BEFORE_REPLY, "x"), "a", worker.now, worker.now)
    other = story.instead("own-2", worker.now)
    other.asked.model = "other"
    assert PoisonCheck(ask, other, worker.deps).struck(Fault(Kind.RESET_BEFORE_REPLY, "x"), "b", worker.now, worker.now) is Suspicion.MAYBE
