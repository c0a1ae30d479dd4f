"""What some answers say of their model: in which language they are, and how sure it was of its tokens. Both drift when a model, its
quantisation or its prompts change.

`AnswerTap` keeps the beginning of an answer while it passes to the caller; `AnswerSamples` says of which answers, and judges them in a
thread of its own. Answers are judged one at a time, and not at all while `MOST_WAITING` others wait. Nothing of a text is kept.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import msgspec

from domain.ask import Ask
from domain.clock import Rng
from domain.faults import Fault
from gateway.story import Story

KEPT_BYTES: Final = 65_536
"""Bytes of an answer that are judged: some 300 words as events, or 150 tokens with log-probabilities. The serving thread may have to wait
while they are decoded, some 1 ms."""
MOST_NATS: Final = 100.0
"""A token that was less likely counts as this unlikely: engines write -9999 for one that was impossible, which would hide all others."""
MOST_WAITING: Final = 64
"""Answers that wait to be judged; further ones are counted as not judged."""


class SampledText(msgspec.Struct, gc=False):
    """The text of a message or of a part of one."""

    content: str | None = None


class SampledToken(msgspec.Struct, gc=False):
    """One token of a chat's answer."""

    logprob: float | None = None


class SampledLogprobs(msgspec.Struct, gc=False):
    """Log-probabilities in the form of chats or of completions."""

    content: list[SampledToken] | None = None
    token_logprobs: list[float | None] | None = None


class SampledChoice(msgspec.Struct, gc=False):
    """One choice of a reply or of an event."""

    delta: SampledText | None = None
    message: SampledText | None = None
    text: str | None = None
    logprobs: SampledLogprobs | None = None


class SampledReply(msgspec.Struct, gc=False):
    """A reply or an event, as far as it is judged."""

    choices: list[SampledChoice] = []


class Judged(NamedTuple):
    """What one answer says."""

    language: str | None
    """Its code of ISO 639-1, empty where none is likely enough; None where nobody asked."""
    nats: float | None
    """Minus the mean log-probability of its tokens; None where it has none."""


_decode: Final = msgspec.json.Decoder(SampledReply).decode


def judged(parts: list[bytes], language: Callable[[str], str | None] | None) -> Judged:
    """Judge the beginning of an answer.

    Args:
        parts: a plain reply, or events of a stream; the last event may be cut off.
        language: names the language of a text; None to leave it.
    """
    texts: list[str] = []
    logprobs: list[float] = []
    data = b"".join(parts)
    for event in data.split(b"\n\n") if data.startswith(b"data:") else [data]:
        try:
            reply = _decode(event.removeprefix(b"data:"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # the terminator, a cut event, or something that says nothing here
        for choice in reply.choices:
            said = choice.delta or choice.message
            texts.append((said.content if said is not None else choice.text) or "")
            if choice.logprobs is not None:
                logprobs += [token.logprob for token in choice.logprobs.content or () if token.logprob is not None]
                logprobs += [number for number in choice.logprobs.token_logprobs or () if number is not None]
    nats = sum([max(0.0, min(-number, MOST_NATS)) for number in logprobs]) / len(logprobs) if logprobs else None
    return Judged(None if language is None else language("".join(texts)) or "", nats)


class AnswerTap:
    """Keeps the beginning of an answer for `take`. Stands behind the judging tap, so that it is fed whole events or a whole reply."""

    __slots__ = ("_kept", "_parts", "_take")

    over = False
    fault: Fault | None = None

    def __init__(self, take: Callable[[list[bytes]], None]) -> None:
        self._parts: list[bytes] = []
        self._kept = 0
        self._take = take

    def feed(self, data: bytes) -> bytes:
        """Lets everything go on."""
        if self._kept < KEPT_BYTES:
            self._parts.append(data[: KEPT_BYTES - self._kept])
            self._kept += len(data)
        return data

    def end(self) -> bytes:
        """The answer is whole."""
        self._take(self._parts)
        return b""


class AnswerSamples:
    """Says which answers are judged, and has them judged.

    Args:
        share: of the answers whose language is counted, from 0 to 1.
        language: names the language of a text; None where `share` is 0.
        count_language: called with a model and a language.
        count_surprisal: called with model, pool, and minus the mean log-probability.
        count_not_judged: called for an answer that was not judged because too many waited.
    """

    def __init__(
        self,
        share: float,
        language: Callable[[str], str | None] | None,
        rng: Rng,
        *,
        count_language: Callable[[str, str], None],
        count_surprisal: Callable[[str, str, float], None],
        count_not_judged: Callable[[], None],
    ) -> None:
        self.share: Final = share
        self._language = language
        self._rng = rng
        self._count_language = count_language
        self._count_surprisal = count_surprisal
        self._executor = ThreadPoolExecutor(1, "answers")
        self._count_not_judged = count_not_judged
        self._waiting = 0

    def tap(self, ask: Ask, story: Story) -> AnswerTap | None:
        """The tap for the answer to this request; None where it is not judged."""
        language = self._language if self.share and self._rng.random() < self.share else None
        if not ask.endpoint.generates or (language is None and not ask.logprobs):
            return None
        return AnswerTap(partial(self._take, story.asked.model, story.placed.pool, language))

    def _take(self, model: str, pool: str, language: Callable[[str], str | None] | None, parts: list[bytes]) -> None:
        if self._waiting >= MOST_WAITING:
            self._count_not_judged()
            return
        self._waiting += 1
        working = asyncio.get_running_loop().run_in_executor(self._executor, judged, parts, language)
        working.add_done_callback(partial(self._note, model, pool))

    def _note(self, model: str, pool: str, working: "asyncio.Future[Judged]") -> None:
        self._waiting -= 1
        if working.cancelled() or working.exception() is not None:
            return
        found = working.result()
        if found.language is not None:
            self._count_language(model, found.language)
        if found.nats is not None:
            self._count_surprisal(model, pool, found.nats)

    def close(self) -> None:
        """Ends the thread; answers that wait are not judged."""
        self._executor.shutdown(wait=False, cancel_futures=True)
