"""Similar questions of one worker, with a vector for each text and answers in memory."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from cache.answers import Answer
from cache.policy import SemanticPolicy
from cache.ports import Selection
from cache.semantic.conversation import Asked
from cache.semantic.index import MemoryQuestions
from cache.semantic.ports import EmbedderAway
from domain.usage import Usage
from gateway.answers.semantic import MAX_LEARNING, Resembling, SemanticCache

NOW = 1_800_000_000.0
LOOSE = SemanticPolicy(decision="threshold", threshold=0.7)
LEARNING = SemanticPolicy()
KEPT, ASKED, OTHER = "Password reset steps", "How do I reset my password?", "Where is the invoice page?"
VECTORS = {KEPT: (1.0, 0.0), ASKED: (0.96, 0.28), OTHER: (0.0, 1.0)}


class Vectors:
    """An embedder with a table of vectors, which may be away."""

    version, dimensions = "table", 2

    def __init__(self) -> None:
        self.away = False
        self.asked: list[str] = []

    async def vectors(self, owner: str, texts: Sequence[str]) -> list[Any]:
        if self.away:
            raise EmbedderAway("asleep")
        self.asked += texts
        return [np.array(VECTORS.get(text, (0.6, 0.8)), np.float32) for text in texts]

    async def close(self) -> None:
        pass


class World:
    """A SemanticCache and the answers that it finds."""

    def __init__(self) -> None:
        self.embedder = Vectors()
        self.answers: dict[bytes, Answer] = {}
        self.defects: list[BaseException] = []
        self.cache = SemanticCache(
            self.embedder,
            MemoryQuestions(),
            patient=self.embedder,
            find=self.find,
            rng=Random(1),
            wall=lambda: NOW,
            log_defect=lambda error, _: self.defects.append(error),
        )

    async def find(self, key: bytes, owner: str, max_age_s: float | None) -> Answer | None:
        found = self.answers.get(key)
        return found if found is not None and found.owner == owner else None

    async def look(self, text: str, settings: SemanticPolicy = LOOSE, max_age_s: float | None = None) -> tuple[Answer | None, Resembling]:
        found = Resembling(Asked(text, b""), b"p" * 32, settings)
        return await self.cache.look(found, "acme", max_age_s), found

    async def learn(self, found: Resembling, content: str = "An answer.") -> Answer:
        document = msgspec.json.encode({"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": content}}]})
        key = found.asked.text.encode().ljust(32, b".")
        answer = self.answers[key] = Answer("acme", key, document, Usage(1, 1), "m", NOW - 10, NOW + 100)
        self.cache.learn(found, answer)
        while self.cache.learning:
            await asyncio.sleep(0)
        return answer


@pytest.fixture
def world() -> World:
    return World()


async def test_a_near_question_gets_the_answer_and_a_far_one_does_not(world: World) -> None:
    answer, first = await world.look(KEPT)
    assert (answer, first.said) == (None, "first")
    kept = await world.learn(first)
    given, found = await world.look(ASKED)
    assert (given, found.said, round(found.similarity or 0, 2)) == (kept, "", 0.96)
    far, found = await world.look(OTHER)
    assert (far, found.said) == (None, "below")


async def test_what_is_not_known_to_be_right_is_not_given(world: World) -> None:
    await world.learn((await world.look(KEPT, LEARNING))[1])
    given, found = await world.look(ASKED, LEARNING)
    assert (given, found.said) == (None, "cold")


async def test_an_answer_that_is_too_old_for_a_request_stays_for_others(world: World) -> None:
    kept = await world.learn((await world.look(KEPT))[1])
    given, found = await world.look(ASKED, max_age_s=5.0)
    assert (given, found.said) == (None, "old")
    assert (await world.look(ASKED))[0] == kept


async def test_a_question_whose_answer_has_gone_is_forgotten(world: World) -> None:
    await world.learn((await world.look(KEPT))[1])
    world.answers.clear()
    assert [(await world.look(ASKED))[1].said for _ in range(2)] == ["gone", "first"]


async def test_an_embedder_that_is_away_ends_a_look_up_and_keeps_the_question_for_later(world: World) -> None:
    world.embedder.away = True
    given, found = await world.look(KEPT)
    assert (given, found.said) == (None, "embedder")
    world.embedder.away = False
    await world.learn(found)
    assert world.cache.index.figures().questions == 1


async def test_refused_texts_are_neither_embedded_nor_kept(world: World) -> None:
    given, found = await world.look("What is the weather today in Berlin?")
    assert (given, found.said) == (None, "time")
    await world.learn(found)
    assert (world.embedder.asked, world.cache.index.figures().questions) == ([], 0)


async def test_never_words_of_a_policy_replace_the_default_ones(world: World) -> None:
    own = SemanticPolicy.model_validate({"decision": "threshold", "threshold": 0.7, "never": {"time": ["password"]}})
    assert (await world.look(KEPT, own))[1].said == "time"
    assert (await world.look("What is the weather today in Berlin?", own))[1].said == "first"


async def test_comparisons_behind_replies_are_bounded(world: World) -> None:
    _, found = await world.look(KEPT)
    answer = await world.learn(found)
    for _ in range(MAX_LEARNING + 10):
        world.cache.learn(found, answer)
    assert world.cache.learning == MAX_LEARNING
    await world.cache.close()
    assert world.cache.learning == 0


async def test_a_purge_takes_questions_and_what_was_learned_of_their_owner(world: World) -> None:
    await world.learn((await world.look(KEPT))[1])
    assert await world.cache.purge(Selection(owner="bolt")) == 0
    assert await world.cache.purge(Selection(owner="acme")) == 1
    assert (await world.look(ASKED))[1].said == "first"


async def test_a_defect_behind_a_reply_is_logged(world: World) -> None:
    _, found = await world.look(KEPT)
    await world.learn(found)
    _, found = await world.look(ASKED, LEARNING)
    world.answers[KEPT.encode().ljust(32, b".")] = msgspec.structs.replace(
        world.answers[KEPT.encode().ljust(32, b".")], document=b"no document"
    )
    await world.learn(found)
    await asyncio.sleep(0)
    assert len(world.defects) == 1
