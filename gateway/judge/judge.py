"""The judge's loop: it finds samples, asks the judging model within the day's tokens, and hands on what it said.

One worker of all gateways on a database judges at a time: it has the judge's turn, which the next one gets when it ends. With the turn goes
the number of tokens that were used on the day, so no start and no further gateway makes the budget anew.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from domain.clock import WallClock
from gateway.judge.fleet_model import AsksModels
from gateway.judge.measuring import AgreementCourse
from gateway.judge.pair_samples import LostPair, PairSamples
from gateway.judge.questions import (
    PAIR_FORM,
    PASS_FROM,
    SCORE_FORM,
    Better,
    Message,
    ModelQuestion,
    better_in,
    outcome_of,
    pair_question,
    score_in,
    score_question,
)
from gateway.judge.samples import JudgeSample, JudgeSamples
from gateway.request_log.reader import RequestContent
from policies.compile import PolicySet
from policies.rollout.in_force import ActiveRollouts, Running
from tenancy.feedback import Feedback, FeedbackAway, FeedbackBook, FeedbackFull, JudgeTurn
from tenancy.periods import DAY_S
from tenancy.request_log import RequestLogAway

LEASE_S: Final = 30.0
"""For how long a worker that died keeps the turn: a few looks, since nothing waits for the judge."""
MOST_WAITING: Final = 100
"""Samples that wait to be judged; what is beyond is not judged, and counted."""
_ANSWER_SYSTEM: Final = "You are the assistant of the conversation below, whose lines begin with roles. Answer its last message."

log = structlog.get_logger("tidegate.judge")


@dataclass(frozen=True, slots=True)
class JudgeTerms:
    """The settings of the judge."""

    model: str
    tokens_per_day: int
    max_in_flight: int
    max_output_tokens: int
    max_answer_tokens: int
    look_every_s: float
    structured: bool
    """Whether engines are asked for the form of verdicts."""
    keep_s: float
    """How long a score is kept among the ratings."""
    most_ratings: int
    """Ratings of one tenant."""


@dataclass(frozen=True, slots=True)
class JudgeParts:
    """What the judge works with."""

    owner: str
    """The name of this worker; no other process has it."""
    samples: JudgeSamples
    models: AsksModels
    turn: JudgeTurn
    ratings: FeedbackBook
    agreement: AgreementCourse | None
    """Measures how far the judge agrees with labelled cases; None: it is not measured."""
    policies: Callable[[], PolicySet]
    rollouts: Callable[[], ActiveRollouts]
    observe_pair: Callable[[Running, LostPair], None]
    """Called with two compared pairs, for the rollout's verdict."""
    count: Callable[[str], None]
    """Called with what became of a sample (`gateway.telemetry.families.JUDGE_OUTCOMES`)."""
    count_score: Callable[[str, str, int], None]
    """Called with tenant, model and score."""
    count_pair: Callable[[str, str], None]
    """Called with the model and the outcome of a comparison."""
    count_tokens: Callable[[int], None]
    wall: WallClock
    new_mark: Callable[[], str]
    """Makes a mark that nobody can guess."""
    draining: Callable[[], bool]


def arm_question(content: RequestContent, rollout: Running, arm: str, most_tokens: int) -> ModelQuestion:
    """What an arm of a rollout is asked: the same request, behind the arm's version where the arms are versions of a prompt."""
    prompted = content.prompted
    if not rollout.of_prompt or prompted is None:
        conversation = [{"role": "system", "content": _ANSWER_SYSTEM}, {"role": "user", "content": content.prompt}]
        return ModelQuestion(conversation, most_tokens)
    messages = [{"role": message.role, "content": message.content} for message in prompted.messages]
    reference: dict[str, object] = {"id": prompted.id, "version": arm.partition("@")[2], "variables": prompted.variables}
    return ModelQuestion(messages, most_tokens, prompt=reference)


def request_text(content: RequestContent, rollout: Running) -> str:
    """The request as the judge reads it. Where versions of a prompt are compared it has neither of them: an answer is not better because
    the judge reads the version that asked for it."""
    prompted = content.prompted
    if not rollout.of_prompt or prompted is None:
        return content.prompt
    values = [f"{name}: {msgspec.json.encode(value).decode()}" for name, value in prompted.variables.items()]
    return "\n".join([*values, *(f"{message.role}: {message.content}" for message in prompted.messages)])


class Judge:
    """Judges until cancelled."""

    def __init__(self, terms: JudgeTerms, parts: JudgeParts) -> None:
        self._terms = terms
        self._parts = parts
        self._pairs = PairSamples()
        self._has_turn = False
        self._used = 0
        """Tokens of the day as the turn has them, and since."""
        self._unwritten = 0
        """Tokens that the turn does not have yet."""
        self._away = False

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(self._terms.look_every_s)

    async def look(self) -> None:
        """Take or keep the turn, and judge what is new. An outage is logged at its begin."""
        try:
            if not self._parts.draining() and await self._take_turn():
                await self._judge_new()
                if self._parts.agreement is not None and self._used < self._terms.tokens_per_day:
                    await self._parts.agreement.step(self._ask, self._parts.new_mark)
        except (FeedbackAway, RequestLogAway) as error:
            if not self._away:
                log.warning("nothing is judged: the database cannot be asked", reason=str(error))
            self._away = True
        else:
            self._away = False

    async def _take_turn(self) -> bool:
        now = self._parts.wall()
        written = self._unwritten
        used = await self._parts.turn.take(self._parts.owner, now, now + LEASE_S, int(now // DAY_S), written)
        had = self._has_turn
        self._has_turn = used is not None
        if used is None:
            self._unwritten = 0
            return False
        self._unwritten -= written
        self._used = used + self._unwritten
        if not had:
            self._parts.samples.begin()
            if self._parts.agreement is not None:
                self._parts.agreement.begin()
            log.info("this worker judges", model=self._terms.model, tokens_today=used, tokens_per_day=self._terms.tokens_per_day)
        return True

    async def _judge_new(self) -> None:
        samples = await self._parts.samples.new(self._parts.policies(), self._parts.rollouts())
        for _ in samples[MOST_WAITING:]:
            self._parts.count("too_many")
        running: set[asyncio.Task[None]] = set()
        renewed = self._parts.wall()
        try:
            for sample in samples[:MOST_WAITING]:
                if self._parts.draining():
                    break
                if len(running) >= self._terms.max_in_flight:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                if self._parts.wall() - renewed > LEASE_S / 3:
                    renewed = self._parts.wall()
                    if not await self._take_turn():
                        break
                if self._used >= self._terms.tokens_per_day:
                    self._parts.count("over_budget")
                    continue
                running.add(asyncio.ensure_future(self._judge(sample)))
            while running:
                done, running = await asyncio.wait(running, timeout=LEASE_S / 3)
                for task in done:
                    task.result()
                if running:
                    await self._take_turn()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _judge(self, sample: JudgeSample) -> None:
        if sample.scored:
            self._parts.count(await self._score(sample))
        if sample.compared is not None:
            self._parts.count(await self._compare(sample, sample.compared))

    async def _ask(self, messages: list[Message], form: dict[str, object]) -> tuple[str, str]:
        """The judging model's reply, or why there is none."""
        question = ModelQuestion(messages, self._terms.max_output_tokens, 0.0, form if self._terms.structured else None)
        return await self._answer(self._terms.model, question)

    async def _answer(self, model: str, question: ModelQuestion, pool: str = "") -> tuple[str, str]:
        said = await self._parts.models.ask(model, question, pool)
        self._used += said.tokens
        self._unwritten += said.tokens
        self._parts.count_tokens(said.tokens)
        if said.detail:
            log.warning("the judge has no answer of a model", model=model, pool=pool, outcome=said.detail)
        return said.text, said.why

    # --- one answer ---------------------------------------------------------------------------------------------------

    async def _score(self, sample: JudgeSample) -> str:
        request, content = sample.request, sample.content
        question = score_question(sample.policy.rubric, content.prompt, content.answer, self._parts.new_mark())
        reply, why = await self._ask(question, SCORE_FORM)
        if why:
            return why
        score = score_in(reply)
        if score is None:
            return "unreadable"
        self._parts.count_score(request.tenant, request.model, score)
        await self._keep(sample, score)
        return "scored"

    async def _keep(self, sample: JudgeSample, score: int) -> None:
        now, request = self._parts.wall(), sample.request
        rating = Feedback(
            tenant=request.tenant,  # type: ignore[arg-type]  # the log keeps it as a text
            request_id=request.id,
            source="judge",
            at_unix=now,
            expires_unix=now + self._terms.keep_s,
            rating="up" if score >= PASS_FROM else "down",
            score=score,
            end_user=request.end_user,
        )
        try:
            await self._parts.ratings.put(rating, self._terms.most_ratings)
        except FeedbackFull:
            log.warning("a score is not kept: the tenant has as many ratings as it may have", tenant=request.tenant)

    # --- both arms of a rollout ---------------------------------------------------------------------------------------

    async def _compare(self, sample: JudgeSample, rollout: Running) -> str:
        """Ask both arms, since answers to the same redacted prompt are comparable and those to different ones are not."""
        answers = []
        for arm in (rollout.canary, rollout.baseline):
            asked = arm_question(sample.content, rollout, arm, self._terms.max_answer_tokens)
            text, why = await self._answer(sample.request.model, asked, "" if rollout.of_prompt else arm)
            if why:
                return why
            answers.append(text)
        canary, baseline = answers
        verdicts: list[Better] = []
        request = request_text(sample.content, rollout)
        for first, second in ((canary, baseline), (baseline, canary)):
            question = pair_question(sample.policy.rubric, request, first, second, self._parts.new_mark())
            reply, why = await self._ask(question, PAIR_FORM)
            if why:
                return why
            better = better_in(reply)
            if better is None:
                return "unreadable"
            verdicts.append(better)
        outcome = outcome_of(verdicts[0], verdicts[1])
        self._parts.count_pair(sample.request.model, outcome)
        if (lost := self._pairs.add(rollout.id, outcome)) is not None:
            self._parts.observe_pair(rollout, lost)
        return "compared"
