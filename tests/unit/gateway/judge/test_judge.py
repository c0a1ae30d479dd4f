"""The judge's loop: whose turn it is, what the day's tokens allow, and what becomes of verdicts."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gateway.judge.fleet_model import ModelAnswer
from gateway.judge.judge import MOST_WAITING, Judge, JudgeParts, JudgeTerms, arm_question, request_text
from gateway.judge.pair_samples import LostPair
from gateway.judge.questions import PAIR_FORM, SCORE_FORM, Message, ModelQuestion
from gateway.judge.samples import JudgeSample
from gateway.request_log.reader import PromptedMessage, PromptedRequest, RequestContent
from policies.compile import PolicySet, compiled
from policies.rollout.in_force import NOTHING, ActiveRollouts, Running
from policies.schema import JudgePolicy
from tenancy.feedback import Feedback, FeedbackAway, FeedbackFull, FeedbackQuery, RatedRequest
from tenancy.request_log import LoggedRequest

NOW = 1_800_000_000.0
HALF = Running("ro_1", "v2", "chat", "chat-v2", 0.5, 0.0, counting=True, interval_s=10.0, judged=True)
TERMS = JudgeTerms("big", 1000, 1, 256, 512, 5.0, structured=True, keep_s=60.0, most_ratings=9)


def sample(number: int, *, scored: bool = True, compared: Running | None = None) -> JudgeSample:
    request = LoggedRequest(at_us=1, id=f"req-{number}", duration_us=1, tenant="acme", model="sim", end_user="digest")
    return JudgeSample(request, RequestContent("user: hi", f"answer {number}"), JudgePolicy(rubric="Be kind."), scored, compared)


class Setting:
    """Everything that the judge works with, in memory. Each reply uses 100 tokens."""

    def __init__(self, reply: Callable[[list[Message], str], str | None]) -> None:
        self.reply = reply
        self.samples: list[JudgeSample] = []
        self.begun = 0
        self.asked: list[tuple[str, str, int, float | None]] = []
        self.forms: list[dict[str, object] | None] = []
        self.counts: Counter[str] = Counter()
        self.scores: list[tuple[str, str, int]] = []
        self.pairs: list[tuple[str, str]] = []
        self.lost: list[LostPair] = []
        self.kept: list[Feedback] = []
        self.turns: list[int | None] = []
        """What the next calls for the turn say; after them, it is ours with what was added."""
        self.used = 0
        self.full = False
        self.drains = False
        self.now = NOW
        self.judge = Judge(TERMS, self.parts())

    def parts(self) -> JudgeParts:
        return JudgeParts(
            owner="worker-1",
            samples=self,  # type: ignore[arg-type]  # `begin` and `new` are all that is asked of it
            models=self,
            turn=self,
            ratings=self,
            agreement=None,
            policies=lambda: compiled([]),
            rollouts=lambda: NOTHING,
            observe_pair=lambda running, lost: self.lost.append(lost),
            count=lambda outcome: self.counts.update([outcome]),
            count_score=lambda *score: self.scores.append(score),
            count_pair=lambda *pair: self.pairs.append(pair),
            count_tokens=lambda tokens: self.counts.update({"tokens": tokens}),
            wall=lambda: self.now,
            new_mark=lambda: "MARK",
            draining=lambda: self.drains,
        )

    def begin(self) -> None:
        self.begun += 1

    async def new(self, _policies: PolicySet, _rollouts: ActiveRollouts) -> list[JudgeSample]:
        samples, self.samples = self.samples, []
        return samples

    async def ask(self, model: str, question: ModelQuestion, pool: str = "") -> ModelAnswer:
        self.asked.append((model, pool, question.most_tokens, question.temperature))
        self.forms.append(question.form)
        said = self.reply(question.messages, pool)
        return ModelAnswer("", 100, "failed", "engine_error") if said is None else ModelAnswer(said, 100)

    async def take(self, owner: str, now_unix: float, until_unix: float, day: int, tokens: int) -> int | None:
        assert (owner, day) == ("worker-1", int(NOW // 86400))
        if self.turns:
            used = self.turns.pop(0)
            if used is None:
                return None
            self.used = used
        self.used += tokens
        return self.used

    async def put(self, given: Feedback, most: int) -> None:
        if self.full:
            raise FeedbackFull
        assert most == TERMS.most_ratings
        self.kept.append(given)

    async def page(self, query: FeedbackQuery, before: tuple[float, str, str] | None, limit: int) -> list[RatedRequest]:
        raise NotImplementedError


def scoring(text: str) -> Callable[[list[Message], str], str | None]:
    return lambda _messages, _pool: text


async def test_a_score_is_counted_and_kept_for_the_requests_tenant() -> None:
    setting = Setting(scoring('{"score": 4}'))
    setting.samples = [sample(1)]
    await setting.judge.look()
    assert setting.asked == [("big", "", 256, 0.0)]
    assert setting.forms == [SCORE_FORM]
    assert setting.scores == [("acme", "sim", 4)]
    (kept,) = setting.kept
    assert (kept.tenant, kept.request_id, kept.source, kept.rating, kept.score) == ("acme", "req-1", "judge", "up", 4)
    assert (kept.end_user, kept.expires_unix - kept.at_unix) == ("digest", 60.0)
    assert setting.counts == {"scored": 1, "tokens": 100}


@pytest.mark.parametrize(("reply", "outcome"), [("no idea", "unreadable"), (None, "failed")])
async def test_what_is_no_verdict_scores_nothing(reply: str | None, outcome: str) -> None:
    setting = Setting(lambda _messages, _pool: reply)
    setting.samples = [sample(1)]
    await setting.judge.look()
    assert (setting.scores, setting.kept) == ([], [])
    assert setting.counts == {outcome: 1, "tokens": 100}, "its tokens count all the same"


async def test_the_day_has_so_many_tokens_whoever_used_them() -> None:
    setting = Setting(scoring('{"score": 1}'))
    setting.turns = [750]
    setting.samples = [sample(n) for n in range(5)]
    await setting.judge.look()
    assert setting.counts == {"scored": 3, "over_budget": 2, "tokens": 300}
    setting.samples = [sample(9)]
    await setting.judge.look()
    assert setting.used == 1050, "what was used is written with the next look"
    assert setting.counts["over_budget"] == 3


async def test_nothing_is_judged_out_of_turn_and_a_new_turn_begins_anew() -> None:
    setting = Setting(scoring('{"score": 1}'))
    setting.turns = [None, 0]
    for _ in range(2):
        setting.samples = [sample(1)]
        await setting.judge.look()
    assert (setting.counts["scored"], setting.begun) == (1, 1)
    setting.turns = [None]
    await setting.judge.look()
    await setting.judge.look()
    assert setting.begun == 2


async def test_a_worker_that_drains_begins_nothing() -> None:
    setting = Setting(scoring('{"score": 1}'))
    setting.samples, setting.drains = [sample(1)], True
    await setting.judge.look()
    assert not setting.asked


async def test_what_waits_is_bounded() -> None:
    setting = Setting(scoring("no verdict"))
    setting.used = -(10**9)
    setting.samples = [sample(n) for n in range(MOST_WAITING + 7)]
    await setting.judge.look()
    assert setting.counts == {"unreadable": MOST_WAITING, "too_many": 7, "tokens": 100 * MOST_WAITING}


async def test_an_outage_of_the_database_ends_a_look_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(scoring('{"score": 2}'))

    async def away(*_: Any) -> int:
        raise FeedbackAway("gone")

    monkeypatch.setattr(setting, "take", away)
    await setting.judge.look()
    monkeypatch.undo()
    setting.full = True
    setting.samples = [sample(1)]
    await setting.judge.look()
    assert (setting.counts["scored"], setting.kept) == (1, []), "a tenant with all its ratings is scored nevertheless"


def preferring(word: str) -> Callable[[list[Message], str], str | None]:
    """Each pool answers with its name, and the judge prefers the answer that has the word."""

    def reply(messages: list[Message], pool: str) -> str | None:
        if pool:
            return f"I am {pool}."
        lines = messages[-1]["content"].splitlines()
        return f'{{"better": "{"A" if word in lines[3] else "B"}"}}'

    return reply


async def test_both_arms_are_asked_and_compared_in_both_orders() -> None:
    setting = Setting(preferring("chat."))
    setting.samples = [sample(1, scored=False, compared=HALF)]
    await setting.judge.look()
    assert setting.asked == [("sim", "chat-v2", 512, None), ("sim", "chat", 512, None), ("big", "", 256, 0.0), ("big", "", 256, 0.0)]
    assert setting.forms == [None, None, PAIR_FORM, PAIR_FORM], "answers have any form"
    assert (setting.pairs, setting.lost) == ([("sim", "baseline")], [])
    setting.samples = [sample(2, scored=False, compared=HALF)]
    await setting.judge.look()
    assert setting.lost == [LostPair(canary_lost=True, baseline_lost=False)]
    assert setting.counts == {"compared": 2, "tokens": 800}


async def test_a_judge_that_follows_the_order_finds_neither_better() -> None:
    setting = Setting(lambda _messages, pool: "words" if pool else '{"better": "A"}')
    setting.samples = [sample(n, scored=False, compared=HALF) for n in range(2)]
    await setting.judge.look()
    assert [better for _, better in setting.pairs] == ["swayed", "swayed"]
    assert setting.lost == [LostPair(canary_lost=False, baseline_lost=False)]


async def test_an_arm_that_does_not_answer_is_no_lost_comparison() -> None:
    setting = Setting(lambda _messages, pool: None if pool == "chat-v2" else "words")
    setting.samples = [sample(1, scored=False, compared=HALF)]
    await setting.judge.look()
    assert (setting.pairs, setting.counts["failed"]) == ([], 1)


def test_versions_of_a_prompt_are_asked_the_same_and_the_judge_reads_neither() -> None:
    rollout = Running("ro_2", "help-2", "help@1", "help@2", 0.5, 0.0, counting=True, interval_s=10.0, judged=True, of_prompt=True)
    own = PromptedRequest("help", 1, {"name": "Ann", "bought": ["a lamp"]}, (PromptedMessage("user", "Where is it?"),))
    content = RequestContent("system: version one says so\nuser: Where is it?", prompted=own)
    old, new = (arm_question(content, rollout, arm, 512) for arm in ("help@1", "help@2"))
    assert old.messages == new.messages == [{"role": "user", "content": "Where is it?"}]
    variables = {"name": "Ann", "bought": ["a lamp"]}
    assert (old.prompt, new.prompt) == tuple({"id": "help", "version": at, "variables": variables} for at in ("1", "2"))
    assert request_text(content, rollout) == 'name: "Ann"\nbought: ["a lamp"]\nuser: Where is it?'
