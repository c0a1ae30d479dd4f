"""A guard model that the fleet serves, asked through chat completions. Texts go to the engines of its pool and nowhere else."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from guardrails.detectors.asking import Post, ask, sendable
from guardrails.detectors.guard_forms import FORMS, REPLIES, GuardAnswer, GuardForm, GuardModelQuestion, TokenLogprob
from guardrails.ports import Detected, DetectorAway

TOP_LOGPROBS: Final = 5
"""Alternatives of each token that are asked for; both words of a decision are among the first ones. Engines allow 20."""


class _GuardMessage(msgspec.Struct):
    content: str | None = None


class _Logprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class _GuardChoice(msgspec.Struct):
    message: _GuardMessage
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Completion(msgspec.Struct):
    choices: list[_GuardChoice]


_decode = msgspec.json.Decoder(_Completion).decode

COMPLETE: Final = frozenset({"stop", "length"})
"""How an answer may end. Another end, such as an abort of the engine, makes no answer."""


class GuardModel:
    """`guardrails.ports.Detector` over a guard model.

    Args:
        model: the name that the engines are asked for.
        form: the family that the model is of.
        post: sends a request to an engine's `/v1/chat/completions`.
        written: whether the task is written out, for a model without a guard's chat template.
    """

    def __init__(self, model: str, form: GuardForm, post: Post, *, written: bool = False) -> None:
        self._model = model
        self._form = FORMS[form]
        self._scored = form == "shield_gemma"
        self._post = post
        self._written = written

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        """As the port. All findings concern the whole text."""
        questions = self._form.questions(sendable(text), direction in REPLIES, self._written)
        if len(questions) == 1:
            return await self._one(questions[0], len(text))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(question, len(text))) for question in questions]
        except ExceptionGroup as several:
            raise next((error for error in several.exceptions if isinstance(error, DetectorAway)), several) from None
        return [one for task in tasks for one in task.result()]

    async def _one(self, question: GuardModelQuestion, length: int) -> list[Detected]:
        body: dict[str, object] = {
            "model": self._model,
            "messages": question.messages,
            "temperature": 0,
            "max_tokens": self._form.max_tokens,
            "stream": False,
            **question.members,
        }
        if self._scored:
            body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        return self._form.read(await ask(self._post, body, _answer), question, length)


def _answer(reply: bytes) -> GuardAnswer:
    """The answer in a completion. Raises ValueError (msgspec's errors are some) where there is none."""
    choices = _decode(reply).choices
    if len(choices) != 1 or choices[0].message.content is None or choices[0].finish_reason not in COMPLETE:
        raise ValueError("has no answer")
    choice = choices[0]
    tokens = (choice.logprobs.content or []) if choice.logprobs is not None else []
    return GuardAnswer(choice.message.content or "", choice.finish_reason == "stop", tuple(tokens))
