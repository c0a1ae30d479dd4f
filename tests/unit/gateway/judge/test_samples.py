"""Which requests the judge looks at: by their ids, their tenants' policies, and the texts that are kept."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from gateway.judge.samples import MOST_SEEN, SETTLE_S, WINDOW_S, JudgeSamples
from gateway.request_log.reader import PromptedMessage, PromptedRequest, RequestContent, sealed_content
from policies.compile import PolicySet, compiled
from policies.rollout.in_force import NOTHING, ActiveRollouts, Running
from policies.schema import PolicyDocument
from tenancy.keys import Pepper
from tenancy.request_log import LoggedRequest
from tenancy.responses import ResponseSealer
from tenancy.stores.memory import MemoryRequests

NOW = 1_800_000_000.0
SEALER = ResponseSealer([Pepper("k1", b"p" * 32)], lambda size: b"n" * size)
TEXTS = RequestContent("user: hello", "hello to you")
HALF = Running("ro_1", "v2", "chat", "chat-v2", 0.5, 0.0, counting=True, interval_s=10.0, judged=True)


def policies(*more: dict[str, Any], **judge: Any) -> PolicySet:
    everyone = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "judge": {"share": 1.0, **judge}}
    return compiled([PolicyDocument.model_validate(document) for document in (everyone, *more)])


def logged(number: int, **fields: Any) -> LoggedRequest:
    fields = {"at_us": int((NOW - 60) * 1e6) + number, "tenant": "acme", "project": "web", "model": "sim", "pool": "chat", **fields}
    return LoggedRequest(id=f"req-{number}", duration_us=1_000_000, expires_us=2**60, **fields)


class Setting:
    """A request log in memory, and the judge's view of it."""

    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryRequests()
        self.samples = JudgeSamples(self.store, SEALER, lambda: self.now, ("ops", "judge"))

    async def keep(self, requests: Sequence[LoggedRequest], texts: RequestContent | None = TEXTS) -> None:
        contents = [] if texts is None else [sealed_content(SEALER, request, texts) for request in requests]
        await self.store.add(requests, contents)

    async def ids(self, policy_set: PolicySet, rollouts: ActiveRollouts = NOTHING) -> list[str]:
        return [sample.request.id for sample in await self.samples.new(policy_set, rollouts)]


@pytest.fixture
def log() -> Setting:
    return Setting()


async def test_a_finished_request_with_texts_is_found_once_and_the_oldest_first(log: Setting) -> None:
    await log.keep([logged(n) for n in range(3)])
    (first, *_) = samples = await log.samples.new(policies(), NOTHING)
    assert [sample.request.id for sample in samples] == ["req-0", "req-1", "req-2"]
    assert (first.content, first.scored, first.compared) == (TEXTS, True, None)
    await log.keep([logged(3)])
    assert await log.ids(policies()) == ["req-3"]


async def test_what_is_left_out(log: Setting) -> None:
    await log.keep([logged(1, outcome="engine_error"), logged(2, tenant="ops", project="judge"), logged(3, tenant="none")])
    await log.keep([logged(4)], None)
    await log.keep([logged(5)], structs.replace(TEXTS, answer=""))
    await log.keep([logged(6, at_us=int((NOW - WINDOW_S - 1) * 1e6))])
    await log.keep([logged(7, tenant="ops", project="other")])
    without = {"tenant": "none", "judge": None}
    assert await log.ids(policies(without)) == ["req-7"]


async def test_texts_have_time_to_arrive_and_what_ended_before_the_turn_is_another_ones(log: Setting) -> None:
    await log.keep([logged(1, at_us=int((NOW - 1 - SETTLE_S / 2) * 1e6))])
    assert await log.ids(policies()) == []
    log.now += SETTLE_S
    assert await log.ids(policies()) == ["req-1"]
    await log.keep([logged(2)])
    log.samples.begin()
    assert await log.ids(policies()) == []


async def test_the_share_is_by_id_and_the_same_for_everybody(log: Setting) -> None:
    await log.keep([logged(n) for n in range(400)])
    some = await log.ids(policies(share=0.2))
    assert 40 < len(some) < 120  # 80, give or take five standard deviations
    other = Setting()
    await other.keep([logged(n) for n in range(400)])
    assert await other.ids(policies(share=0.2)) == some
    more = Setting()
    await more.keep([logged(n) for n in range(400)])
    assert set(some) < set(await more.ids(policies(share=0.4)))


async def test_only_rollouts_that_ask_for_it_are_compared(log: Setting) -> None:
    terms = policies(share=0.000001, pair_share=1.0)
    requests = [logged(1, pool="chat"), logged(2, pool="chat-v2"), logged(3, pool="other"), logged(4, tenant="bolt")]
    await log.keep(requests)
    of_acme = structs.replace(HALF, tenants=frozenset({"acme"}))
    samples = await log.samples.new(terms, ActiveRollouts({"chat": of_acme}))
    assert [(sample.request.id, sample.scored, sample.compared) for sample in samples] == [
        ("req-1", False, of_acme),
        ("req-2", False, of_acme),
    ]
    for other in (structs.replace(HALF, judged=False), structs.replace(HALF, counting=False)):
        again = Setting()
        await again.keep(requests)
        assert await again.ids(terms, ActiveRollouts({"chat": other})) == []


async def test_a_prompt_that_was_cut_is_scored_and_not_answered_again(log: Setting) -> None:
    await log.keep([logged(1)], structs.replace(TEXTS, prompt_cut=True))
    (sample,) = await log.samples.new(policies(pair_share=1.0), ActiveRollouts({"chat": HALF}))
    assert (sample.scored, sample.compared) == (True, None)


async def test_a_project_of_its_own_may_be_judged_alone(log: Setting) -> None:
    document = {"tenant": "acme", "judge": None, "for_project": {"lab": {"judge": {"share": 1.0, "rubric": "Be brief."}}}}
    everyone = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}]}
    policy_set = compiled([PolicyDocument.model_validate(one) for one in (everyone, document)])
    await log.keep([logged(1), logged(2, project="lab")])
    (sample,) = await log.samples.new(policy_set, NOTHING)
    assert (sample.request.id, sample.policy.rubric) == ("req-2", "Be brief.")


async def test_without_a_policy_that_allows_it_the_log_is_not_asked(log: Setting) -> None:
    nobody = compiled([PolicyDocument.model_validate({"tenant": "*", "models": [{"name": "sim", "pool": "chat"}]})])
    log.samples._store = None  # type: ignore[assignment]
    assert await log.ids(nobody) == []


async def test_what_was_seen_is_bounded(log: Setting) -> None:
    log.samples._seen.update((f"old-{n}", None) for n in range(MOST_SEEN + 5))
    await log.keep([logged(1)])
    await log.ids(policies())
    assert len(log.samples._seen) == MOST_SEEN


OF_PROMPT = Running("ro_2", "help-2", "help@1", "help@2", 0.5, 0.0, counting=True, interval_s=10.0, judged=True, of_prompt=True)
PROMPTED = structs.replace(TEXTS, prompted=PromptedRequest("help", 1, {"name": "Ann"}, (PromptedMessage("user", "hi"),)))


def line(prompt: str, rollout: str) -> bytes:
    return f'{{"prompt":"{prompt}","rollout":"{rollout}","model":"sim"}}'.encode()


async def test_requests_of_a_prompts_rollout_are_compared_where_what_they_said_is_kept(log: Setting) -> None:
    rollouts = ActiveRollouts({}, {"help@1": OF_PROMPT})
    took_part = [logged(1, line=line("help@1", "help-2")), logged(2, line=line("help@2", "other,help-2"))]
    did_not = [logged(3, line=line("help@1", "")), logged(4, line=line("help@3", "help-2")), logged(5), logged(6, line=line("", "help-2"))]
    await log.keep([*took_part, *did_not], PROMPTED)
    await log.keep([logged(7, line=line("help@1", "help-2"))], TEXTS)
    found = await log.samples.new(policies(share=1e-9, pair_share=1.0), rollouts)
    assert {sample.request.id: sample.compared for sample in found} == {"req-1": OF_PROMPT, "req-2": OF_PROMPT}


async def test_a_request_of_two_rollouts_is_compared_for_one_of_them_by_its_id(log: Setting) -> None:
    rollouts = ActiveRollouts({"chat": HALF}, {"help@1": OF_PROMPT})
    await log.keep([logged(n, line=line("help@1", "v2,help-2")) for n in range(400)], PROMPTED)
    found = await log.samples.new(policies(share=1e-9, pair_share=1.0), rollouts)
    of_prompt = sum(sample.compared is OF_PROMPT for sample in found)
    assert len(found) == 400
    assert 150 < of_prompt < 250  # 200, give or take five standard deviations
