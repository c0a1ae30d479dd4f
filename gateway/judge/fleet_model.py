"""Asks models of the fleet for the judge: requests of its own, in the class `batch`, that begin only where nobody waits."""

import asyncio
from typing import Final, Protocol

import msgspec

from domain.ask import Endpoint
from domain.identity import Caller
from gateway.background.own_request import send_own
from gateway.batches.slots import LineSlots
from gateway.deps import Deps
from gateway.http.edge.exchange import OwnRequest
from gateway.judge.questions import ModelQuestion
from gateway.record import OK

LOOK_S: Final = 0.1
"""Between two looks for room."""
WAIT_S: Final = 60.0
"""Longest wait for room: the samples behind would otherwise grow old."""
NOT_KEPT: Final = {b"cache-control": b"no-cache, no-store"}
"""No verdict and no answer comes from the answer cache, which does not know which pool made it."""


class ModelAnswer(msgspec.Struct, frozen=True):
    """What a model said."""

    text: str
    """Empty where there is no answer."""
    tokens: int
    """Tokens of its prompt and its answer, whether there is an answer or not."""
    why: str = ""
    """Why there is no answer: `no_room`, or `failed`; else empty."""
    detail: str = ""
    """For the log: the outcome of the request."""


class AsksModels(Protocol):
    """Asks models."""

    async def ask(self, model: str, question: ModelQuestion, pool: str = "") -> ModelAnswer:
        """The answer of a model.

        Args:
            pool: the arm of a rollout that is to answer; empty for the model's own pool.
        """
        ...


class _VerdictMessage(msgspec.Struct):
    content: str | None = None


class _VerdictChoice(msgspec.Struct):
    message: _VerdictMessage


class _VerdictReply(msgspec.Struct):
    choices: list[_VerdictChoice]


class FleetModels:
    """The models of the fleet, asked in the name of one caller."""

    def __init__(self, deps: Deps, caller: Caller, slots: LineSlots, wait_s: float = WAIT_S) -> None:
        self._deps = deps
        self._caller = caller
        self._slots = slots
        self._wait_s = wait_s

    async def ask(self, model: str, question: ModelQuestion, pool: str = "") -> ModelAnswer:
        slot = await self._slot((pool,) if pool else self._slots.pools(self._caller.tenant, model))
        if slot is None:
            return ModelAnswer("", 0, "no_room")
        body: dict[str, object] = {"model": model, "messages": question.messages, "max_tokens": question.most_tokens}
        body |= {} if question.temperature is None else {"temperature": question.temperature}
        body |= {} if question.form is None else {"response_format": question.form}
        body |= {} if question.prompt is None else {"prompt": question.prompt}
        own = OwnRequest(self._caller, pool=pool)
        try:
            reply = await send_own(own, Endpoint.CHAT.path, msgspec.json.encode(body), self._deps, NOT_KEPT)
        finally:
            self._slots.give_back(slot)
        record = reply.record
        self._deps.observe(record)
        tokens = record.usage.prompt_tokens + record.usage.completion_tokens
        if record.outcome != OK or (pool and record.pool != pool):
            return ModelAnswer("", tokens, "failed", record.outcome if record.outcome != OK else "the rollout is over")
        return ModelAnswer(_text_of(reply.body), tokens)

    async def _slot(self, pools: tuple[str, ...]) -> tuple[str, ...] | None:
        """A slot; None where there is no room for `wait_s`, or a pool is not there."""
        clock = self._deps.clock
        until = clock() + self._wait_s
        if not self._deps.live.fleet.pools.keys() >= set(pools):
            return None
        while (slot := self._slots.take_in(pools)) is None:
            if clock() >= until:
                return None
            await asyncio.sleep(LOOK_S)
        return slot


def _text_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_VerdictReply).choices[0].message.content or ""
    except (msgspec.DecodeError, IndexError, UnicodeError):
        return ""
