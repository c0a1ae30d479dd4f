"""The guard rules' tap of the reply chain for plain replies, sans-io: each text of each choice is judged as a stream of it would be.

Where a rule blocks, the text before its finding stays, the choice ends with `finish_reason: "content_filter"`, and what the model wrote
behind is left out.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from domain.faults import Fault
from domain.usage import DECLINED
from gateway.guards.reply_channels import ReplyRules
from gateway.guards.reply_detectors import DetectorGate
from gateway.guards.reply_parts import OF_THE_REPLY, Path, ReplyText, TooDeep, calls, direction_of, is_whole, texts, without_tokens
from gateway.http.edge.attempt_faults import unusable_reply
from gateway.story import AttemptFacts

MOST_IN_LOOP_BYTES: Final = 32 * 1024
"""A longer reply is judged in a thread: 50 rules take a millisecond for 8 KiB, and the loop may lag by ten."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TooDeep)
_CALLS: Final = ("tool_calls", "function_call")
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode


class GuardPlainTap:
    """Guard rules over a plain reply. Stands right behind the judging tap, so it is fed a whole body.

    Where a detector is asked or the body is long, the body goes on later: `pending`, until `more` gives it.
    """

    __slots__ = ("_altered", "_answer", "_parts", "_reply", "_rules", "_task", "_wake", "_woken", "fault", "over", "pending")

    def __init__(self, rules: ReplyRules, answer: AttemptFacts) -> None:
        self._rules = rules
        self._answer = answer
        answer.held = rules.holds
        self._parts: list[bytes] = []
        self._reply: dict[str, Any] = {}
        self._altered = False
        self._task: asyncio.Task[None] | None = None
        self._wake: Callable[[], None] = lambda: None
        self._woken = asyncio.Event()
        self.pending = False
        """Whether the reply is still being judged."""
        self.over = False
        self.fault: Fault | None = None

    def feed(self, data: bytes) -> bytes:
        """Collect; nothing goes on before the end. What comes is bounded by the judging tap."""
        self._parts.append(data)
        return b""

    def end(self) -> bytes:
        """The body as rules let it pass; nothing yet where that takes longer."""
        body = b"".join(self._parts)
        self._parts = [body]
        rules = self._rules
        if rules.holds and len(body) > rules.held_bytes:
            self._fail(rules.fault("too_long", ""))
            return b""
        if len(body) > MOST_IN_LOOP_BYTES or rules.questions is not None:
            self.pending = True
            self._task = asyncio.get_running_loop().create_task(self._judged_later(body))
            return b""
        self._read(body)
        return self._out()

    def listen(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when the reply has been judged."""
        self._wake = wake

    def more(self) -> bytes:
        """The body, once it has been judged."""
        return b"" if self.pending else self._out()

    def close(self) -> None:
        """The reply is over, or nobody waits for it any more."""
        if self._task is not None:
            self._task.cancel()
        if self._rules.questions is not None:
            self._rules.questions.close()

    async def _judged_later(self, body: bytes) -> None:
        """Judge a long reply in a thread, then ask detectors about what is left of it."""
        with self._rules.gathered():
            if len(body) > MOST_IN_LOOP_BYTES:
                await asyncio.to_thread(self._read, body)
            else:
                self._read(body)
        if self._rules.questions is not None and self.fault is None:
            self._rules.questions.wake = self._woken.set
            await self._detect(self._reply.get("choices") or [])
        self.pending = False
        self._wake()

    def _read(self, body: bytes) -> None:
        try:
            self._reply = _decode(body)
            self._altered = self._judge(self._reply)
        except _UNREADABLE as error:
            self._fail(unusable_reply(f"a reply that guard rules cannot read: {error!r}"))

    async def _detect(self, choices: list[dict[str, Any]]) -> None:
        """Let detectors see the texts that are left."""
        asked: list[tuple[dict[str, Any], ReplyText, DetectorGate, list[str]]] = []
        for choice in choices:
            for text in texts(choice):
                gate = None if is_whole(text.path) else self._rules.gate(direction_of(text.path), waits=True)
                if gate is not None:
                    asked.append((choice, text, gate, [gate.feed(text.value, final=True)]))
        while any(gate.waiting for _, _, gate, _ in asked):
            await self._woken.wait()
            self._woken.clear()
            for _, _, gate, shown in asked:
                shown.append(gate.take())
        for at, (choice, text, gate, shown) in enumerate(asked):
            passed = "".join(shown) if text.value else ""
            self._altered = self._altered or passed != text.value
            text.value = passed
            if gate.ended and gate.ended != "block":
                self._fail(self._rules.fault(gate.ended, gate.by))
            elif gate.ended:
                _drop(choice, [one for of, one, _, _ in asked[at + 1 :] if of is choice], text.path)
                self._declined([choice])

    def _out(self) -> bytes:
        """The body with values put back."""
        body = self._parts.pop() if self._parts else b""
        if self.fault is not None:
            return b""
        self._answer.held = False
        if self._rules.placeholders is not None:
            others = {name: value for name, value in self._reply.items() if name not in OF_THE_REPLY}
            for part in [*(self._reply.get("choices") or []), others]:
                for text in texts(part):
                    restored = self._rules.restored(text.value, text.path)
                    self._altered = self._altered or restored != text.value
                    text.value = restored
            self._reply.update(others)
        return _encode(self._reply) if self._altered else body

    def _judge(self, reply: dict[str, Any]) -> bool:
        """Judge a reply in place; returns whether anything has changed."""
        altered = self._rules.changes and without_tokens(reply)
        choices = reply.get("choices") or []
        for choice in choices:
            altered = self._choice(choice) or altered
        others = {name: value for name, value in reply.items() if name not in OF_THE_REPLY}
        for text in texts(others):
            passed, ended = self._passed(text)
            altered = altered or passed
            if ended:
                for choice in choices:
                    _drop(choice, list(texts(choice)), ())
                self._declined(choices)
        reply.update(others)
        return altered

    def _choice(self, choice: dict[str, Any]) -> bool:
        altered = self._rules.changes and without_tokens(choice)
        made = list(calls(choice)) if self._rules.calls else ()
        found = list(texts(choice))
        for at, text in enumerate(found):
            changed, ended = self._passed(text)
            altered = altered or changed
            if ended:
                _drop(choice, found[at + 1 :], text.path)
                self._declined([choice])
                return True
        return any([self._refuses_call(choice, *call) for call in made]) or altered

    def _refuses_call(self, choice: dict[str, Any], path: Path, name: str, passed: str) -> bool:
        """Judge a call of a tool. One that is refused is left out, as are those behind it."""
        verdict = self._rules.judged_call(name, passed)
        if verdict.ended == "block":
            message = choice["message"]
            if "tool_calls" in path:
                message["tool_calls"] = message["tool_calls"][: _number(path[2])]
            else:
                message.pop("function_call", None)
            self._declined([choice])
        elif verdict.refused:
            self._fail(self._rules.fault(verdict.ended, verdict.by))
        return verdict.refused

    def _passed(self, text: ReplyText) -> tuple[bool, bool]:
        """Judge one text in place; whether it has changed, and whether a rule blocks what follows."""
        given = text.value
        passed, verdict = self._rules.judged(given, text.path)
        text.value = passed
        if verdict.refused and verdict.ended != "block":
            self._fail(self._rules.fault(verdict.ended, verdict.by))
        return passed != given, verdict.refused

    def _declined(self, choices: list[dict[str, Any]]) -> None:
        self._answer.declined = True
        for choice in choices:
            choice["finish_reason"] = DECLINED

    def _fail(self, fault: Fault) -> None:
        self.fault = self.fault or fault
        self.over = True


def _drop(choice: dict[str, Any], rest: list[ReplyText], cut_at: Path) -> None:
    """Leave out the texts behind a cut, and the calls of tools that are not whole any more."""
    for text in rest:
        text.value = ""
    message = choice.get("message")
    if not isinstance(message, dict):
        return
    if "tool_calls" in cut_at:
        at = cut_at[cut_at.index("tool_calls") + 1]
        message["tool_calls"] = [call for place, call in enumerate(message["tool_calls"]) if place <= _number(at)]
        return
    for name in _CALLS:
        if name not in cut_at:
            message.pop(name, None)


def _number(step: object) -> int:
    index = getattr(step, "at", step)
    return index if isinstance(index, int) else 0
