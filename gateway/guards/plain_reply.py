"""The guard rules' tap of the reply chain for plain replies, sans-io: each text of each choice is judged as a stream of it would be.

Where a rule blocks, the text before its finding stays, the choice ends with `finish_reason: "content_filter"`, and what the model wrote
behind is left out.
"""

from typing import Any, Final

import msgspec

from domain.faults import Fault
from domain.usage import DECLINED
from gateway.guards.reply_channels import ReplyRules
from gateway.guards.reply_parts import OF_THE_REPLY, Path, ReplyText, TooDeep, texts, without_tokens
from gateway.http.edge.attempt_faults import unusable_reply
from gateway.story import AttemptFacts

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TooDeep)
_CALLS: Final = ("tool_calls", "function_call")
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode


class GuardPlainTap:
    """Guard rules over a plain reply. Stands right behind the judging tap, so it is fed a whole body."""

    __slots__ = ("_answer", "_parts", "_rules", "fault", "over")

    def __init__(self, rules: ReplyRules, answer: AttemptFacts) -> None:
        self._rules = rules
        self._answer = answer
        answer.held = rules.holds
        self._parts: list[bytes] = []
        self.over = False
        self.fault: Fault | None = None

    def feed(self, data: bytes) -> bytes:
        """Collect; nothing goes on before the end. What comes is bounded by the judging tap."""
        self._parts.append(data)
        return b""

    def end(self) -> bytes:
        """The body as rules let it pass."""
        body = b"".join(self._parts)
        self._parts.clear()
        rules = self._rules
        if rules.holds and len(body) > rules.held_bytes:
            self._fail(rules.fault("too_long", ""))
            return b""
        try:
            reply = _decode(body)
            altered = self._judge(reply)
        except _UNREADABLE as error:
            self._fail(unusable_reply(f"a reply that guard rules cannot read: {error!r}"))
        if self.fault is not None:
            return b""
        self._answer.held = False
        return _encode(reply) if altered else body

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
        found = list(texts(choice))
        for at, text in enumerate(found):
            changed, ended = self._passed(text)
            altered = altered or changed
            if ended:
                _drop(choice, found[at + 1 :], text.path)
                self._declined([choice])
                return True
        return altered

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
