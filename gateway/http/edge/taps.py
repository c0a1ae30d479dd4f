"""The reply chain: the taps that a reply passes through on its way to the caller, sans-io: `feed(bytes) -> bytes`, `end() -> bytes`.

One tap of every chain (`reply_chain.py`) judges whether the answer is whole: `StreamTap` or `PlainTap`. An answer is whole when every
choice has a known finish reason, whatever else the engine says: engines send `[DONE]` after errors and close cleanly after crashes. A tap
never sends a broken part on: on a fault it returns the good bytes before it and sets `fault`; the relay ends the attempt. `taps_for` builds
the chain: a further tap is one line there.
"""

import re
from collections.abc import Collection
from math import inf
from typing import Any, Final

import msgspec
from msgspec import UNSET

from backends.dialects.dialect import Dialect
from backends.sse import EventSplitter, EventTooLarge
from domain import retry_after
from domain.ask import Ask, Endpoint
from domain.clock import Clock
from domain.faults import Fault, Kind
from domain.usage import DECLINED, WHOLE_FINISH_REASONS, Usage
from gateway.answers.embeddings import MergeTap
from gateway.answers.rerank import RerankTap
from gateway.guards.reply_detectors import ReplyDetectors
from gateway.guards.reply_tap import guard_tap
from gateway.http.edge.answer_so_far import AnswerSoFar
from gateway.http.edge.audio_taps import SpeechTap, TranscriptTap, sound_taps
from gateway.http.edge.long_reply import MAX_KEPT_BYTES, PASSED_FROM_BYTES, LongReply, model_named, string_of
from gateway.http.edge.reply_chain import ReplyChain, Tap
from gateway.http.edge.reply_document import (
    NOT_A_REPLY,
    PlainChunk,
    ReplyDocument,
    ReportedUsage,
    UsageOfChoices,
    decode_document,
    decode_plain_reply,
    is_silent,
    plain_chunk,
    said_bytes,
)
from gateway.http.edge.reply_ids import IdTap
from gateway.story import AttemptFacts, Story

DONE: Final = b"data: [DONE]\n\n"
HEARTBEAT: Final = b": ping\n\n"

EVENTS_PER_TOKEN: Final = 2
"""Most events that an engine makes of one token, as a mean over an answer: reasoning that ends, and calls of tools whose name and arguments
are told apart, come as an event each. Nearly always it is one event for a token or for several."""
EVENTS_BESIDE: Final = 16
"""Events of a choice that carry no token: its role, what is left of a cut character or of a call, its end."""

_ESCAPED_MODEL: Final = re.compile(
    rb'("%b"\s*+:\s*+)("(?:[^"\\]|\\.)*+")' % b"".join(rb"(?:%c|\\u00%02x)" % (byte, byte) for byte in b"model"), re.DOTALL | re.IGNORECASE
)
"""The key `model` and its value, with any of their characters escaped; letters in capitals do no harm, since the value decides."""
_decode_inputs: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_NULL_USAGE: Final = re.compile(rb',\s*"usage"\s*:\s*null')


class _Judge(msgspec.Struct, eq=False, kw_only=True):
    """The state that both judging taps share. A Struct, so that making a tap costs no Python call."""

    choices: int
    """The finish reasons of a whole answer."""
    names: frozenset[str] | None = None
    """Models the reply may name, in each of its events; None to take any."""
    usage: Usage | None = None
    """The usage that the engine reported last, as it wrote it; None while it has reported none."""
    cached: int | None = None
    """Prompt tokens that the engine says it had cached; None where it does not say."""
    over: bool = False
    """The answer is whole, or `fault` says what is wrong with it."""
    fault: Fault | None = None

    def _fail(self, kind: Kind, detail: str) -> None:
        message = "The engine serving this request failed before the answer was complete. Try again."
        self.fault = Fault(kind, message, retry=retry_after.SOON, detail=detail)
        self.over = True

    def _is_other_model(self, document: ReplyDocument | PlainChunk) -> bool:
        """Fail when the reply names a model that this backend does not have (R43): another one is behind its port."""
        if self.names is None or document.model is None or document.model in self.names:
            return False
        self._fail(Kind.WRONG_MODEL, f"answers as {document.model[:64]!r}")
        return True


class StreamTap(_Judge, eq=False):
    """Meters and judges a streamed reply, and hides the usage event from callers who did not ask for it."""

    answer: AttemptFacts
    """Where the events are counted."""
    clock: Clock
    include_usage: bool
    """Whether the caller asked for the usage event."""
    splitter: EventSplitter = msgspec.field(default_factory=EventSplitter)
    finished: dict[int, str] = msgspec.field(default_factory=dict)
    """The choices with a finish reason, and it."""
    most_events: float = inf
    """Events of a stream that keeps to its cap on output tokens, at most."""
    of_choices: UsageOfChoices | None = None
    """The usage so far, where the engine reports that of each choice by itself."""
    before: int = 0
    """Output tokens of the answer that other engines gave, and that are in the prompt of the one that goes on with it."""

    def go_on(self, before: int) -> None:
        """Expect another engine's reply, which goes on with the answer.

        Args:
            before: the output tokens so far.
        """
        self.splitter = EventSplitter()
        self.over, self.fault, self.usage, self.cached, self.before = False, None, None, None, before

    def feed(self, data: bytes) -> bytes:
        """Whole events in, the same events out; see the class. Once `over` everything is dropped."""
        if self.over:
            return b""
        payload = self.splitter.lone(data)
        if payload is not None:
            now = self.clock()
            chunk = plain_chunk(payload)
            if chunk is None:
                return self._event(payload, now)
            if self.names is not None and chunk.model is not None and chunk.model not in self.names:
                self._is_other_model(chunk)
                return b""
            self.answer.note_event(now)
            if self.answer.events > self.most_events:
                return self._past_cap()
            return data if chunk.usage is UNSET or self.include_usage else b"data: %b\n\n" % _without_usage(payload)
        try:
            payloads = self.splitter.feed(data)
        except EventTooLarge as error:
            self._fail(Kind.INVALID_REPLY, str(error))
            return b""
        now = self.clock()
        out = []
        for payload in payloads:
            out.append(self._event(payload, now))
            if self.over:
                break
        return b"".join(out)

    def _event(self, payload: bytes, now: float) -> bytes:
        try:
            document = decode_document(payload)
        except NOT_A_REPLY as error:
            if payload.strip() == b"[DONE]":
                return self._terminator()
            if payload.strip() == b"null":
                return b""  # llama.cpp begins a stream of several prompts so; nothing is said
            self._fail(Kind.INVALID_REPLY, f"event is not the JSON expected: {error}")
            return b""
        if document.error is not None or document.object == "error":
            self._fail(Kind.ENGINE_ABORTED, "the engine sent an error event")
            return b""
        if document.choices is None:
            self._fail(Kind.INVALID_REPLY, "an event without choices")
            return b""
        if self._is_other_model(document):
            return b""
        for choice in document.choices:
            reason = choice.finish_reason
            if reason:
                if reason not in WHOLE_FINISH_REASONS:
                    self._fail(Kind.ENGINE_ABORTED, f"finish_reason {reason[:32]!r}")
                    return b""
                if not 0 <= choice.index < self.choices:
                    self._fail(Kind.INVALID_REPLY, f"choice {choice.index} of {self.choices}")
                    return b""
                if reason == DECLINED:
                    self.answer.declined = True
                self.finished[choice.index] = reason
                self.answer.choices_over = len(self.finished)
                self.answer.finish_reasons = self.finished
        usage = document.usage
        if document.prompt_progress is not UNSET and is_silent(payload):
            return b"data: %b\n\n" % payload  # of the prompt, not of the answer: no token, and not the first one
        if usage is UNSET:
            self.answer.note_event(now)
            return b"data: %b\n\n" % payload if self.answer.events <= self.most_events else self._past_cap()
        return self._with_usage(payload, document, now)

    def _past_cap(self) -> bytes:
        """Cut a stream that goes on behind its cap: its engine has lost count of what it was asked for."""
        self._fail(Kind.INVALID_REPLY, f"more than {self.most_events:.0f} events: the stream has run past its cap")
        return b""

    def _with_usage(self, payload: bytes, document: ReplyDocument, now: float) -> bytes:
        """An event that has a `usage` key: the totals, running totals, or null until the totals come."""
        usage = document.usage
        if isinstance(usage, ReportedUsage):
            self.usage, self.cached = usage.counts()  # cumulative in every other dialect, so the last one wins
            if self.of_choices is not None:
                self.usage, self.cached = self.of_choices.sum_with(self.usage, self.cached)
            if self.before and self.usage is not None:
                payload = self._of_both(payload, self.usage)
        if document.choices:
            self.answer.note_event(now)
            if self.answer.events > self.most_events:
                return self._past_cap()
        if not self.include_usage:
            if not document.choices:
                return b""
            payload = _without_usage(payload)
        return b"data: %b\n\n" % payload

    def _of_both(self, payload: bytes, reported: Usage) -> bytes:
        """The event with the usage of the whole answer, of an engine that goes on with another's."""
        prompt_tokens = max(1, reported.prompt_tokens - self.before)
        completion_tokens = reported.completion_tokens + self.before
        self.usage = msgspec.structs.replace(
            reported,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=min(reported.cached_tokens, prompt_tokens),
        )
        document: dict[str, Any] = msgspec.json.decode(payload)
        document["usage"] |= {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        return msgspec.json.encode(document)

    def _terminator(self) -> bytes:
        if len(self.finished) < self.choices:
            self._fail(Kind.ENGINE_ABORTED, f"[DONE] after {len(self.finished)} of {self.choices} finish reasons")
            return b""
        self.over = True
        return DONE

    def end(self) -> bytes:
        """The engine's message ended: whole if every choice finished, even without `[DONE]`; a fault otherwise."""
        if self.over:
            return b""
        if self.splitter.pending or len(self.finished) < self.choices:
            self._fail(Kind.BROKEN_STREAM, f"ended after {len(self.finished)} of {self.choices} finish reasons")
            return b""
        self.over = True
        return DONE


class PlainTap(_Judge, eq=False):
    """Holds a plain reply until it is whole, then judges and meters it.

    A long one for which nothing was generated, such as embeddings, is let go piece by piece and judged at its end, of which nothing is sent
    before: after a fault the reply ends short. An answer is never let go before its usage is known, or a caller could leave with most of it
    and be charged for none.
    """

    answer: AttemptFacts
    """Where the answer is counted."""
    clock: Clock
    endpoint: Endpoint
    whole_usage: bool = True
    """Whether the reported usage is that of the whole answer; one of the first choice alone counts as none."""
    items: int = 1
    """The items of a whole answer where nothing is generated, at least (`Ask.items`)."""
    body: list[bytes] = msgspec.field(default_factory=list)
    size: int = 0
    """The bytes in `body`."""
    long: LongReply | None = None
    """The reply from the time on when it was found to be long."""

    def feed(self, data: bytes) -> bytes:
        """Collect; nothing of an answer goes on before the end, nor of any other reply of at most `PASSED_FROM_BYTES`."""
        if self.over:
            return b""
        long = self.long
        if long is None:
            self.body.append(data)
            self.size += len(data)
            if self.endpoint.generates:
                self._bound(self.size)
                return b""
            if self.size <= PASSED_FROM_BYTES:
                return b""
            data = b"".join(self.body)
            self.body.clear()
            name = model_named(data)
            if name is not None and self._is_other_model(ReplyDocument(model=name)):
                return b""
            long = self.long = LongReply()
        self.answer.note_event(self.clock())
        out = long.feed(data)
        self._bound(long.size)
        return b"" if self.over else out

    def _bound(self, kept: int) -> None:
        if kept > MAX_KEPT_BYTES:
            self._fail(Kind.INVALID_REPLY, f"plain reply with more than {MAX_KEPT_BYTES} bytes to judge")
            self.body.clear()

    def end(self) -> bytes:
        """The whole body, of a long one the end; or b"" with `fault` set."""
        if self.over:
            return b""
        if self.long is not None:
            kept, body = self.long.end()
        else:
            kept = body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        try:
            document = decode_plain_reply(kept, self.endpoint)
        except NOT_A_REPLY as error:
            self._fail(Kind.INVALID_REPLY, f"reply is not the JSON expected: {error}")
            return b""
        self._judge(document)
        if self.fault is not None:
            return b""
        if isinstance(document.usage, ReportedUsage) and self.whole_usage:
            self.usage, self.cached = document.usage.counts()
        elif self.endpoint.generates:
            self.answer.said_bytes = said_bytes(kept)
        self.answer.note_event(self.clock())
        self.over = True
        return body

    def _judge(self, document: ReplyDocument) -> None:
        if document.error is not None or document.object == "error":
            self._fail(Kind.ENGINE_ABORTED, "status 200 with an error body")
            return
        if self._is_other_model(document):
            return
        if not self.endpoint.generates:
            if not document.data:
                self._fail(Kind.INVALID_REPLY, f"no {self.endpoint.word}")
                return
            whole = sum([item.is_whole(self.endpoint.item_fields) for item in document.data])
            if whole < max(self.items, len(document.data)):
                self._fail(Kind.INVALID_REPLY, f"{whole} of {max(self.items, len(document.data))} {self.endpoint.word}")
            return
        choices = document.choices or []
        for choice in choices:
            if choice.finish_reason not in WHOLE_FINISH_REASONS:
                self._fail(Kind.ENGINE_ABORTED, f"finish_reason {str(choice.finish_reason)[:32]!r}")
                return
            if choice.finish_reason == DECLINED:
                self.answer.declined = True
        self.answer.finish_reasons = {choice.index: choice.finish_reason for choice in choices if choice.finish_reason}
        if len(choices) < self.choices:
            self._fail(Kind.INVALID_REPLY, f"{len(choices)} of {self.choices} choices")


class RenameTap:
    """Gives the reply the public model name where the engines serve the model under others.

    Stands behind a judging tap, so it is fed whole events or a whole body. Replaces every `"model"` value that is a
    served name; unescaped quotes cannot stand inside a JSON string, so no text of the answer is touched. Characters that JSON writes as
    escapes, as `a\\/b`, are looked at only where a reply has such escapes at all.
    """

    __slots__ = ("_pattern", "_public", "_replacement", "_served")

    over = False
    fault: Fault | None = None

    def __init__(self, served: Collection[str], public: str) -> None:
        names = b"|".join(re.escape(msgspec.json.encode(name)) for name in sorted(served))
        self._pattern = re.compile(rb'("model"\s*:\s*)(?:' + names + rb")")
        self._public = msgspec.json.encode(public)
        self._replacement = rb"\1" + self._public.replace(b"\\", b"\\\\")
        self._served = frozenset(served)

    def feed(self, data: bytes) -> bytes:
        """Whole events or a whole body in, the same with the public name out."""
        data = self._pattern.sub(self._replacement, data)
        if b"\\/" in data or b"\\u" in data:
            return _ESCAPED_MODEL.sub(self._renamed, data)
        return data

    def _renamed(self, match: re.Match[bytes]) -> bytes:
        return match[1] + self._public if string_of(match[2]) in self._served else match[0]

    def end(self) -> bytes:
        """Nothing is ever held."""
        return b""


def taps_for(
    ask: Ask,
    story: Story,
    clock: Clock,
    engine_model: str,
    names: frozenset[str] | None,
    *,
    engine: Dialect | None = None,
    detectors: ReplyDetectors | None = None,
    sample: Tap | None = None,
    so_far: AnswerSoFar | None = None,
) -> StreamTap | PlainTap | TranscriptTap | SpeechTap | ReplyChain:
    """The chain of one attempt's reply; the judging tap alone where nothing else has anything to do, so that an event costs one call.

    A tap that needs whole events stands right behind the judge; one that holds back or cuts bytes anywhere stands behind those.

    Args:
        engine_model: the model that the engine was asked for.
        names: models the reply may name; None to take any.
        engine: the engine's dialect; None for one that makes the reply's id from that of the request (otherwise the reply gets ours
            here), and reports the usage of the whole answer.
        detectors: what guard rules that ask detectors ask.
        sample: keeps the beginning of a generated answer for metrics; lets everything go on.
        so_far: keeps the text of a streamed answer, with which another engine may have to go on.
    """
    if ask.endpoint.sound and not ask.stream:
        return sound_taps(ask, story, clock, detectors)
    own_ids = engine is None or engine.ids_from_requests
    of_each = engine is not None and engine.usage_of_each_choice and ask.choices > 1
    judge: StreamTap | PlainTap
    if ask.stream:
        cap = ask.max_output_tokens
        most = inf if cap is None else ask.choices * (EVENTS_PER_TOKEN * cap + EVENTS_BESIDE)
        judge = StreamTap(story.attempt, clock, choices=ask.choices, include_usage=ask.include_usage, names=names, most_events=most)
        if of_each:
            judge.of_choices = UsageOfChoices(ask.choices, 1 if ask.endpoint.has_messages else _inputs(ask.prompt))
    else:
        judge = PlainTap(story.attempt, clock, ask.endpoint, choices=ask.choices, names=names, whole_usage=not of_each)
        judge.items = ask.items
    taps: list[Tap] = [judge]
    if so_far is not None and isinstance(judge, StreamTap):
        so_far.judge = judge
        taps.append(so_far)
    if sample is not None:
        taps.append(sample)
    if story.attempt.captured is not None:
        taps.append(story.attempt.captured)  # before the guards' tap, which shows restored values
    guard = guard_tap(ask, story, judge, detectors)
    if guard is not None:
        taps.append(guard)
    if ask.endpoint.rewritten:
        return ReplyChain([judge, RerankTap(ask, story, judge)], judge)
    # an engine with several names for its model answers in whichever it likes
    if story.asked.model != engine_model or (names is not None and len(names) > 1):
        taps.append(RenameTap({engine_model, *(names or ())}, story.asked.model))
    if not own_ids:
        taps.append(IdTap(ask.endpoint, story.own_id, stream=ask.stream))
    if story.looked_up.merge is not None:
        taps.append(MergeTap(story.looked_up.merge))
    return judge if len(taps) == 1 else ReplyChain(taps, judge, guard)


def _inputs(value: bytes) -> int:
    """The number of prompts that a checked `prompt` holds."""
    if not value.startswith(b"["):
        return 1
    inputs = _decode_inputs(value)
    return len(inputs) if bytes(memoryview(inputs[0])[:1]) in (b"[", b'"') else 1


def _without_usage(payload: bytes) -> bytes:
    """`payload` without its `usage` key. Unescaped quotes cannot stand inside a JSON string, so the cut is safe."""
    cut, times = _NULL_USAGE.subn(b"", payload, count=1)
    if times:
        return cut
    document: dict[str, Any] = msgspec.json.decode(payload)
    document.pop("usage", None)
    return msgspec.json.encode(document)
