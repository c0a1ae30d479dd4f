"""Answers to questions that are not equal to an earlier one and ask the same, as the steps of a request use them.

A look-up makes a vector of the question, finds the nearest kept questions of its partition, and lets the guard and then the decision say
whether the nearest one's answer fits. Where the decision asks the engine to find out, the fresh answer is compared with the kept one behind
the reply, and the decision learns from that.
"""

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from cache.answers import Answer
from cache.key import Scope, Target
from cache.policy import SemanticPolicy
from cache.ports import Selection
from cache.semantic.agreement import Judge, Labeller
from cache.semantic.conversation import Asked, conversation_of
from cache.semantic.decision import Decider, Decision, ThresholdDecider, guard_of
from cache.semantic.guard import DIFFERENCES
from cache.semantic.never_words import DEFAULT_PERSONAL, DEFAULT_TIME, NeverWords, text_refusal
from cache.semantic.partition import partition_of
from cache.semantic.ports import Embedder, EmbedderAway, Question, QuestionIndex
from cache.semantic.verified import VerifiedDecider, VerifiedSettings
from domain.ask import Ask
from domain.clock import Rng, WallClock
from gateway.answers.cache import AuditedHits
from gateway.answers.documents import text_of

NEAREST: Final = 8
"""Kept questions that a decision sees."""
MAX_LEARNING: Final = 256
"""Answers that are compared at a time; further ones teach nothing."""
MAX_DECIDERS: Final = 16
"""Different terms of policies for which a worker has a decider; the one not asked for longest is forgotten, and learns anew."""
MAX_ENTRIES: Final = 50_000
"""Answers of one decider whose groups are remembered, about 25 MB."""
MAX_COMPARED_CHARS: Final = 8000
"""Of an answer that is compared with another; the rest is not looked at."""

EMBEDDER: Final = "embedder"
FIRST: Final = "first"
GONE: Final = "gone"
OLD: Final = "old"
GUARD: Final = "guard"
"""The learned decision's word for an answer that the guard has refused."""


class Resembling(msgspec.Struct):
    """A request's look-up among similar questions; `story.looked_up.resembling`."""

    asked: Asked
    partition: bytes
    settings: SemanticPolicy
    said: str = ""
    """Why no answer was given: a reason of `text_refusal`, `embedder`, `first`, `gone`, `differs:` with a word of the guard, or the
    decision's word."""
    vector: bytes = b""
    """Of the question; empty where the embedder had none in time."""
    similarity: float | None = None
    """Of the nearest question."""
    decision: Decision | None = None
    refused: bool = False
    """Whether the text keeps the question out: it is not kept either."""


class Find(Protocol):
    """Finds a kept answer."""

    async def __call__(self, key: bytes, owner: str, max_age_s: float | None) -> Answer | None:
        """The answer of a key, not older than `max_age_s`."""
        ...


class SemanticCache:
    """The similar questions of one worker.

    Args:
        embedder: makes vectors while a request waits.
        patient: makes them behind replies, of whole answers; of the same version, and may take its time.
        judge: compares answers whose vectors do not tell; None: such answers teach nothing.
        find: finds the answer of a kept question.
        rng: draws that decide between asking the engine and giving the kept answer.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        embedder: Embedder,
        index: QuestionIndex,
        *,
        patient: Embedder,
        judge: Judge | None = None,
        find: Find,
        rng: Rng,
        wall: WallClock,
        log_defect: Callable[[BaseException, str], None],
    ) -> None:
        self.embedder = embedder
        self.index = index
        self._patient = patient
        self._labeller = Labeller(patient, judge)
        self._find = find
        self._rng = rng
        self._wall = wall
        self._log_defect = log_defect
        self._deciders: OrderedDict[tuple[float | None, float], Decider] = OrderedDict()
        self._learning: set[asyncio.Task[None]] = set()

    @property
    def learning(self) -> int:
        """Answers that are being compared and kept behind replies."""
        return len(self._learning)

    def asked(self, ask: Ask, scope: Scope, target: Target, settings: SemanticPolicy) -> Resembling | str:
        """The question of a request, or why it is not looked up among similar ones: one of `conversation.REFUSALS`."""
        asked = conversation_of(ask)
        if isinstance(asked, str):
            return asked
        return Resembling(asked, partition_of(scope, target, ask, asked, self.embedder.version), settings)

    async def look(self, found: Resembling, owner: str, max_age_s: float | None) -> Answer | None:
        """The answer of a similar question; None where the engine has to be asked. Writes down in `found` what was seen."""
        settings, text = found.settings, found.asked.text
        if reason := text_refusal(text, _never_of(settings)):
            found.said, found.refused = reason, True
            return None
        try:
            (vector,) = await self.embedder.vectors(owner, [text])
        except EmbedderAway:
            found.said = EMBEDDER
            return None
        if not vector.any():  # no word that the embedder knows
            found.said, found.refused = EMBEDDER, True
            return None
        found.vector = vector.tobytes()
        now = self._wall()
        near = await self.index.nearest(found.partition, owner, vector, NEAREST, now)
        decider, draw = self._decider(settings), self._rng.random()
        decision = found.decision = decider.decide(found.partition, text, near, draw, now, guard_of(text))
        chosen = decision.neighbour
        if chosen is not None:
            found.similarity = chosen.similarity
        if chosen is None or not decision.exploit:
            found.said = _said(decision, text)
            return None
        answer = await self._find(chosen.question.key, owner, None)
        if answer is None:  # it was dropped to make room, or a purge has met it
            found.said, found.decision = GONE, None
            await self.index.remove(found.partition, chosen.question.key)
            decider.forget(found.partition, chosen.question.key)
            return None
        if max_age_s is not None and now - answer.kept_at > max_age_s:
            found.said, found.decision = OLD, None
            return None
        return answer

    def learn(self, found: Resembling, answer: Answer) -> None:
        """Learn from an engine's whole answer, behind the reply: keep the question, and compare the answer with the kept one."""
        if found.refused or len(self._learning) >= MAX_LEARNING:
            return
        task = asyncio.get_running_loop().create_task(self._learn(found, answer))
        self._learning.add(task)
        task.add_done_callback(self._learnt)

    def _learnt(self, task: asyncio.Task[None]) -> None:
        self._learning.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log_defect(error, "semantic cache")

    async def _learn(self, found: Resembling, answer: Answer) -> None:
        if not found.vector:
            try:
                (vector,) = await self._patient.vectors(answer.owner, [found.asked.text])
            except EmbedderAway:
                return
            found.vector = vector.tobytes()
        if (decision := found.decision) is not None:
            fresh, owner = text_of(answer.document), answer.owner
            answers = [await self._find(one.question.key, owner, None) for one in decision.compare]
            kept = [None if one is None else text_of(one.document)[:MAX_COMPARED_CHARS] for one in answers]
            labels = await self._labeller.labels(owner, found.asked.text, decision, fresh[:MAX_COMPARED_CHARS], kept)
            fit = self._decider(found.settings).observe(found.partition, decision, labels, answer.key, self._wall())
            if fit is not None:
                await asyncio.to_thread(fit.work)
                fit.done()
        await self.index.add(
            Question(
                partition=found.partition,
                owner=answer.owner,
                key=answer.key,
                text=found.asked.text,
                vector=found.vector,
                kept_at=answer.kept_at,
                expires_at=answer.expires_at,
                model=answer.model,
                namespace=answer.namespace,
                writer=answer.writer,
                user=answer.user,
            )
        )

    def _decider(self, settings: SemanticPolicy) -> Decider:
        """What has been learned under a policy's terms. Each partition is of one owner, so owners learn nothing from each other."""
        terms = (settings.threshold, settings.wrong_per_hit)
        decider = self._deciders.get(terms)
        if decider is None:
            learning = VerifiedSettings(delta_hit=settings.wrong_per_hit, all_entries=MAX_ENTRIES)
            decider = VerifiedDecider(learning) if settings.threshold is None else ThresholdDecider(settings.threshold)
            self._deciders[terms] = decider
            if len(self._deciders) > MAX_DECIDERS:
                self._deciders.popitem(last=False)
        self._deciders.move_to_end(terms)
        return decider

    def audited(self) -> list[AuditedHits]:
        """What audits say of the hits of each owner."""
        now = self._wall()
        return [
            AuditedHits(owner, wrong_per_hit, proof)
            for (_, wrong_per_hit), decider in self._deciders.items()
            if isinstance(decider, VerifiedDecider)
            for owner, proof in decider.proofs(now).items()
        ]

    async def purge(self, selection: Selection) -> int:
        """Remove questions, and what was learned of their owner: it is of questions that may be gone. Raises while the index is away."""
        for decider in self._deciders.values():
            decider.forget_owner(selection.owner)
        return await self.index.purge(selection)

    async def close(self) -> None:
        """End what is being learned, and connections."""
        for task in self._learning:
            task.cancel()
        await asyncio.gather(*self._learning, return_exceptions=True)
        await self.embedder.close()
        await self._patient.close()
        await self.index.close()


def _said(decision: Decision, text: str) -> str:
    """The word for a look-up that the decision has ended."""
    if decision.neighbour is None:
        return FIRST
    if decision.reason == GUARD:
        return f"differs:{guard_of(text)(decision.neighbour, False)}"
    return f"differs:{decision.reason}" if decision.reason in DIFFERENCES else decision.reason


def _never_of(settings: SemanticPolicy) -> NeverWords:
    never = settings.never
    return _compiled(None if never.time is None else tuple(never.time), None if never.personal is None else tuple(never.personal))


@functools.lru_cache(1024)
def _compiled(time: tuple[str, ...] | None, personal: tuple[str, ...] | None) -> NeverWords:
    return NeverWords(DEFAULT_TIME if time is None else time, DEFAULT_PERSONAL if personal is None else personal)
