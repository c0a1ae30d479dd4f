"""The guard rules' tap of the reply chain for streamed answers, sans-I/O. `plain_reply.py` has the one for plain replies.

Each text of each choice is a channel of its own (`reply_channels.py`). What its window releases goes into the event at hand; an event with
nothing left in it is dropped, and one with nothing changed goes on as it came. When a choice ends, what its channels still held goes into
the event that ends it.

Where a rule cuts a choice, the text before the cut goes on with `finish_reason: "content_filter"`, and nothing of this choice after it.
Once every choice is over, the answer ends with its usage, where the caller asked for it, and `[DONE]`, and the relay aborts the engine
(`AttemptFacts.cut`). Until the first text is released nothing of the answer is handed on, its role neither, so that another engine can
still answer (`AttemptFacts.held`).
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Protocol

import msgspec

from domain.ask import Ask
from domain.faults import Fault
from domain.usage import DECLINED, Usage
from gateway.guards.plain_reply import GuardPlainTap
from gateway.guards.reply_channels import MAX_CHANNELS, Channel, ReplyRules
from gateway.guards.reply_choice import EventForm, GuardedChoice
from gateway.guards.reply_detectors import ReplyDetectors
from gateway.guards.reply_parts import (
    OF_THE_REPLY,
    ReplyText,
    TooDeep,
    framed,
    is_whole,
    place,
    says,
    texts,
    without_tokens,
)
from gateway.http.edge.attempt_faults import unusable_reply
from gateway.story import Story
from tenancy.estimate import likely_prompt

MAX_FRAMES: Final = 8
"""Forms of events that are known at a time: two for each choice of an answer with four, reasoning and content."""

MAX_OPENING_BYTES: Final = 64 * 1024
"""Bytes of events without a text that are held in front of the first text; what comes beyond them goes on."""

_DATA: Final = b"data: "
_END: Final = b"\n\n"
DONE: Final = b"data: [DONE]\n\n"


class _Unreadable(Exception):
    """An event has what no answer to this request can have."""


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TooDeep, _Unreadable)
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode


class UsageSoFar(Protocol):
    """The judging tap of the chain, as far as this one has to know."""

    @property
    def usage(self) -> Usage | None:
        """The usage that the engine reported last."""
        ...


_Made = Literal["dropped", "passed", "altered"]
"""What has become of a choice in an event."""


class GuardTap:
    """Guard rules over a streamed answer. Stands right behind the judging tap, so it is fed whole events.

    Args:
        judge: the judging tap of the chain.
    """

    __slots__ = (
        "_answer",
        "_ask",
        "_behind",
        "_channels",
        "_choices",
        "_formed",
        "_frames",
        "_identity",
        "_judge",
        "_opening",
        "_opening_bytes",
        "_rules",
        "_story",
        "fault",
        "over",
    )

    def __init__(self, rules: ReplyRules, ask: Ask, story: Story, judge: UsageSoFar) -> None:
        self._rules = rules
        self._ask = ask
        self._story = story
        self._answer = story.attempt
        self._judge = judge
        self._choices: dict[int, GuardedChoice] = {}
        self._channels = 0
        self._frames: list[EventForm] = []
        self._formed: tuple[ReplyText, str, Channel, GuardedChoice] | None = None
        """The one text of the event at hand, where the event may become a form of events."""
        self._opening_bytes = 0
        self._opening: list[bytes] = []
        """Events without a text in front of the first text, while nothing of the answer is handed on."""
        self._answer.held = rules.holds
        self._identity: dict[str, Any] = {}
        """The members of the answer's events that name the answer."""
        self._behind: list[bytes] = []
        """What has come behind the ends of choices that wait for detectors."""
        self.over = False
        self.fault: Fault | None = None

    def feed(self, data: bytes) -> bytes:
        """Whole events in, what rules let pass of them out."""
        if self.over:
            return b""
        for frame in self._frames:
            if data.startswith(frame.head) and data.endswith(frame.tail):
                try:
                    piece = _decode_text(data[len(frame.head) : -len(frame.tail)])
                except _UNREADABLE:
                    break
                channel = frame.channel
                lone = channel.lone
                if lone is None:
                    text = channel.feed(piece)
                elif channel.unread:
                    text = piece
                else:
                    released = lone(piece)
                    text = channel.passed(released) if released.ended or released.doomed else released.text
                if channel.ended:
                    return self._cut_in(frame, data, text)
                if self._answer.held and text:
                    return self._begun() + self._in_form(frame, data, piece, text)
                return data if text == piece else self._in_form(frame, data, piece, text)
        parts = []
        for event in data.split(_END):
            if event and not self.over:
                parts.append(self._event(event.removeprefix(_DATA)))
        return b"".join(parts)

    def end(self) -> bytes:
        """Nothing: what was held has gone into the events that ended the choices, or waits for detectors."""
        return b""

    # --- detectors --------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether detectors hold the end of the answer back."""
        return not self.over and any(choice.ending is not None for choice in self._choices.values())

    def listen(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be more."""
        if self._rules.questions is not None:
            self._rules.questions.wake = wake

    def more(self) -> bytes:
        """What may go on now that detectors have seen more."""
        parts = []
        for choice in list(self._choices.values()):
            if not choice.over and not self.over:
                parts.append(self._more_of(choice))
        if self._behind and not self.over and not self.pending:
            parts += self._behind
            self._behind.clear()
        return b"" if self.fault is not None else b"".join(parts)

    def close(self) -> None:
        """The reply is over, or nobody waits for it any more."""
        if self._rules.questions is not None:
            self._rules.questions.close()

    def _more_of(self, choice: GuardedChoice) -> bytes:
        """What may go on of one choice."""
        said: list[tuple[Channel, str]] = []
        for channel in choice.channels.values():
            said.append((channel, channel.take()))
            if channel.ended:
                break
        cut = bool(said) and said[-1][0].ended != ""
        ends = choice.ending is not None and not self._waits(choice)
        if not (cut or ends or any(text for _, text in said)):
            return b""
        part = choice.ending if ends else None
        if part is None:
            part = {"index": choice.index, **_nothing(self._ask), "logprobs": None, "finish_reason": None}
        _add(part, said)
        if cut:
            self._refused(said[-1][0])
            part["finish_reason"] = DECLINED
        if cut or ends:
            self._over(choice)
        return self._written(dict(self._identity), [part], None)

    def _waits(self, choice: GuardedChoice) -> bool:
        return any(channel.waiting for channel in choice.channels.values())

    # --- events ---------------------------------------------------------------------------------------------------

    def _cut_in(self, frame: EventForm, data: bytes, text: str) -> bytes:
        """An event of a known form, in whose text its choice is cut."""
        event = _decode(data[len(_DATA) : -len(_END)])
        self._cut(frame.choice, event["choices"][0], [(frame.channel, text)])
        return self._written(event, event["choices"], None)

    @staticmethod
    def _in_form(frame: EventForm, data: bytes, piece: str, text: str) -> bytes:
        """An event of a known form with another text; nothing for none."""
        if text == piece:
            return data
        return b"%b%b%b" % (frame.head, _encode(text), frame.tail) if text else b""

    def _event(self, payload: bytes) -> bytes:
        """An event of any form."""
        if payload == b"[DONE]":
            if self.pending:
                self._behind.append(DONE)
                return b""
            return self._begun() + DONE
        self._formed = None
        try:
            event = _decode(payload)
            if not self._identity:
                self._identity = {name: event[name] for name in ("id", "object", "created", "model") if name in event}
            altered = self._rules.changes and without_tokens(event)
            given = event.get("choices") or []
            kept = []
            for part in given:
                made = self._choice(part)
                altered = altered or made != "passed"
                if made != "dropped":
                    kept.append(part)
            altered = self._beside(event, kept) or altered
        except _UNREADABLE as error:
            self._fail(unusable_reply(f"an event that guard rules cannot read: {error!r}"))
        if self.fault is not None or (given and not kept):
            return b""
        if self._formed is not None and len(given) == 1:
            self._learn(payload, *self._formed)
        return self._written(event, kept, None if altered else payload)

    def _choice(self, part: dict[str, Any]) -> _Made:
        """One choice of an event: its texts become what may be passed on of them."""
        choice = self._choice_at(part.get("index") or 0)
        finish = part.get("finish_reason")
        choice.finished = choice.finished or bool(finish)
        if choice.over or choice.ending is not None:
            return "dropped"
        stripped = self._rules.changes and without_tokens(part)
        altered = stripped
        said: list[tuple[Channel, str]] = []
        if self._rules.calls and self._refuses_calls(choice, part):
            return "altered"
        found = list(texts(part))
        for text in found:
            piece = text.value
            channel = self._channel(choice, text)
            passed = channel.whole(piece) if is_whole(text.path) else channel.feed(piece)
            said.append((channel, passed))
            if channel.ended:
                self._cut(choice, part, said)
                return "altered"
            if len(found) == 1 and not (finish or stripped or is_whole(text.path)):
                text.value = ""
                if not says(part) and (choice.named or not _role(part)):
                    self._formed = (text, piece, channel, choice)
            text.value = passed
            altered = altered or passed != piece
        if finish:
            altered = self._ended(choice, part) or altered
        return "altered" if altered else "passed"

    def _refuses_calls(self, choice: GuardedChoice, part: dict[str, Any]) -> bool:
        """Whether a rule over calls refuses a call in the event at hand, which cuts the choice."""
        refused = choice.refused_call(part)
        if refused is None:
            return False
        channel = Channel(self._rules, ("tool_calls",))
        channel.ended, channel.by = refused.ended, refused.by
        self._cut(choice, part, [(channel, "")])
        return True

    def _ended(self, choice: GuardedChoice, part: dict[str, Any]) -> bool:
        """The engine has ended a choice: what its channels still held goes into this event. Returns whether anything did."""
        altered = declined = False
        for channel in choice.channels.values():
            text = channel.end()
            if text:
                place(part, channel.path, text, channel.kind)
                altered = True
            if channel.ended:
                self._refused(channel)
                part["finish_reason"] = DECLINED
                altered = declined = True
                break
        if not declined and self.fault is None and self._waits(choice):
            # what is released by now goes on at once, and the end follows when the rest is
            choice.ending = {**part, **_nothing(self._ask)}
            said: dict[str, Any] = {name: part[name] for name in ("delta", "text") if name in part}
            part.clear()
            part.update({"index": choice.index, **said, "logprobs": None, "finish_reason": None})
            altered = True
        else:
            self._over(choice)
        return altered

    def _cut(self, choice: GuardedChoice, part: dict[str, Any], said: list[tuple[Channel, str]]) -> None:
        """End a choice in the event at hand, with what may be passed on of its texts up to the one that the last channel refuses."""
        part.clear()
        part.update({"index": choice.index, **_nothing(self._ask), "logprobs": None, "finish_reason": DECLINED})
        _add(part, said)
        self._refused(said[-1][0])
        self._over(choice)

    def _refused(self, channel: Channel) -> None:
        """A channel may not go on."""
        if channel.ended == "block":
            self._answer.declined = True
        else:
            self._fail(self._rules.fault(channel.ended, channel.by))

    def _over(self, choice: GuardedChoice) -> None:
        choice.over = True
        choice.ending = None
        for channel in choice.channels.values():
            channel.note()
        choice.channels.clear()
        self._frames = [frame for frame in self._frames if frame.choice is not choice]

    def _beside(self, event: dict[str, Any], kept: list[dict[str, Any]]) -> bool:
        """The texts that an engine writes beside the choices, each of which comes whole. Where one is refused, every choice is cut. Returns
        whether anything has changed."""
        others = {name: value for name, value in event.items() if name not in OF_THE_REPLY}
        altered = False
        for text in texts(others) if others else ():
            judged, verdict = self._rules.judged(text.value, text.path)
            passed = self._rules.restored(judged, text.path)
            altered = altered or passed != text.value
            text.value = passed
            if verdict.refused and self.fault is None:
                channel = Channel(self._rules, text.path)
                channel.ended, channel.by = verdict.ended, verdict.by
                for index in range(self._ask.choices):
                    choice = self._choice_at(index)
                    if not choice.over:
                        part = next((one for one in kept if (one.get("index") or 0) == index), None)
                        if part is None:
                            part = {}
                            kept.append(part)
                        self._cut(choice, part, [(channel, "")])
        event.update(others)
        return altered

    def _written(self, event: dict[str, Any], kept: list[dict[str, Any]], payload: bytes | None) -> bytes:
        """An event with the choices that are left of it.

        Args:
            payload: the event as it came, where nothing was changed.
        """
        if self.fault is not None:
            return b""
        event["choices"] = kept
        out = b"data: %b\n\n" % (_encode(event) if payload is None else payload)
        if event.get("prompt_progress") is not None and not says(kept):
            return out
        if not kept and self.pending:
            self._behind.append(out)
            return b""
        telling = False
        for part in kept:
            choice = self._choices[part.get("index") or 0]
            telling = telling or (not choice.named and _role(part))
            choice.named = choice.named or _role(part)
        if says(kept):
            out = self._begun() + out if self._answer.held else out
        elif payload is None and not telling and kept:
            return b""
        elif self._answer.held:
            self._opening.append(out)
            self._opening_bytes += len(out)
            return self._begun() if self._opening_bytes > MAX_OPENING_BYTES else b""
        if self._answer.declined and self._is_cut_short():
            return out + self._farewell()
        return out

    # --- the beginning and the end ----------------------------------------------------------------------------------

    def _begun(self) -> bytes:
        """The answer begins for its caller: the events that were held in front of its first text."""
        if not self._answer.held:
            return b""
        self._answer.held = False
        questions = self._rules.questions
        self._answer.released_at = self._answer.last_event_at if questions is None else questions.now
        opening = b"".join(self._opening)
        self._opening.clear()
        return opening

    def _is_cut_short(self) -> bool:
        """Whether every choice is over, and the engine has not ended each."""
        choices = self._choices.values()
        return sum(choice.over for choice in choices) >= self._ask.choices and not all(choice.finished for choice in choices)

    def _farewell(self) -> bytes:
        """The end of an answer whose engine has not ended it: the usage, where the caller asked for it, and the terminator."""
        self.over = True
        usage = self._judge.usage
        if usage is None:
            delivered, cap = self._answer.delivered, self._ask.max_output_tokens
            most = delivered if cap is None else min(delivered, cap * self._ask.sequences)
            usage = Usage(likely_prompt(self._ask, self._story.asked.counted), most)
        self._answer.cut = usage
        if not self._ask.include_usage:
            return DONE
        counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "total_tokens": usage.total_tokens}
        return b"data: %b\n\n" % _encode({**self._identity, "choices": [], "usage": counts}) + DONE

    def _fail(self, fault: Fault) -> None:
        self.fault = self.fault or fault
        self.over = True

    # --- channels and forms -----------------------------------------------------------------------------------------

    def _choice_at(self, index: int) -> GuardedChoice:
        choice = self._choices.get(index)
        if choice is None:
            if not 0 <= index < self._ask.choices:
                raise _Unreadable(f"choice {index} of {self._ask.choices}")
            choice = self._choices[index] = GuardedChoice(index, self._rules)
        return choice

    def _channel(self, choice: GuardedChoice, text: ReplyText) -> Channel:
        """The channel that a text belongs to."""
        channel = choice.channels.get(text.path)
        if channel is None:
            self._channels += 1
            if self._channels > MAX_CHANNELS:
                raise _Unreadable(f"more than {MAX_CHANNELS} texts")
            kind = text.container.get("type") if isinstance(text.container, dict) else None
            channel = choice.channels[text.path] = Channel(self._rules, text.path, kind, choice.tool_of(text.path))
        return channel

    def _learn(self, payload: bytes, text: ReplyText, piece: str, channel: Channel, choice: GuardedChoice) -> None:
        """Know further events of this form by their bytes."""
        found = framed(payload, text, piece)
        if found is not None:
            head, tail = found
            self._frames.insert(0, EventForm(_DATA + head, tail + _END, channel, choice))
            del self._frames[MAX_FRAMES:]


def _add(part: dict[str, Any], said: Iterable[tuple[Channel, str]]) -> None:
    """Add texts to those of a choice in an event."""
    for channel, text in said:
        if text:
            place(part, channel.path, text, channel.kind)


def _role(part: dict[str, Any]) -> bool:
    delta = part.get("delta")
    return isinstance(delta, dict) and bool(delta.get("role"))


def _nothing(ask: Ask) -> dict[str, Any]:
    """The member of a choice that holds its texts, without any."""
    return {"delta": {}} if ask.endpoint.has_messages or ask.endpoint.sound else {"text": ""}


def guard_tap(ask: Ask, story: Story, judge: UsageSoFar, detectors: ReplyDetectors | None) -> "GuardTap | GuardPlainTap | None":
    """The tap of an answer that guard rules read, or in which values are to be restored; None for any other."""
    guards, placeholders = story.asked.guards, story.guarded.placeholders or None
    if not (ask.endpoint.generates or ask.endpoint.sound == "in"):
        return None
    if placeholders is None and (guards is None or not guards.reads_replies):
        return None
    caller = story.asked.caller
    rules = ReplyRules(guards, placeholders, story.guarded, detectors, caller.tenant if caller is not None else "")
    return GuardTap(rules, ask, story, judge) if ask.stream else GuardPlainTap(rules, story.attempt)
