"""The guard rules of one answer, and the channels that its texts arrive in. Sans-I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from domain import retry_after
from domain.faults import Fault, Kind
from gateway.guards.facts import GuardFacts
from gateway.guards.reply_detectors import DetectorGate, Questions, ReplyDetectors
from gateway.guards.reply_parts import CALL_TEXTS, THOUGHT_FIRST, Path, Step, direction_of, is_whole
from guardrails.chain import CallRule, Chain
from guardrails.guard_set import REPLY, GuardSet
from guardrails.json_text import Unescaper, unescaped
from guardrails.placeholders import Placeholders, Restorer
from guardrails.policy import CHANGING, Direction
from guardrails.text import Text
from guardrails.verdict import Ended, GuardVerdict
from guardrails.window import GuardWindow, Released

MAX_CHANNELS: Final = 1024
"""Texts of one streamed answer: choices times their texts and calls of tools. 128 choices with eight texts each."""

EDITS: Final = frozenset({"redact", "replace"})
REASONING: Final[frozenset[Step]] = frozenset(THOUGHT_FIRST)

_NO_RULES: Final = Chain((), Text)


class ReplyRules:
    """What looks at the texts of one answer.

    Args:
        guards: the rules; None for none, where values are only to be restored.
        placeholders: the values to restore; None for none.
        facts: where verdicts are noted.
        detectors: what the rules that ask detectors ask; None where there are none.
        tenant: whose answer it is.
    """

    __slots__ = ("_gathered", "calls", "changes", "facts", "guards", "held_bytes", "holds", "placeholders", "questions")

    def __init__(
        self,
        guards: GuardSet | None,
        placeholders: Placeholders | None,
        facts: GuardFacts,
        detectors: ReplyDetectors | None = None,
        tenant: str = "",
    ) -> None:
        self._gathered: list[tuple[Direction, GuardVerdict]] | None = None
        self.guards = guards
        self.placeholders = placeholders
        self.facts = facts
        self.held_bytes = 0 if guards is None else guards.held_bytes
        asked = [] if guards is None or detectors is None else [rule for direction in REPLY for rule in guards.detectors(direction)]
        self.questions = None if detectors is None or not asked else Questions(detectors, tenant, self.note)
        """The questions to detectors; None where no rule asks any."""
        self.calls: tuple[CallRule, ...] = () if guards is None else guards.chain("tool_arguments").calls
        """The rules over calls of tools."""
        self.holds: bool = (
            any(rule.mode in CHANGING and rule.hold for rule in asked)
            or any(rule.mode in CHANGING for rule in self.calls)
            or (guards is not None and any(guards.chain(direction).changing for direction in REPLY))
        )
        """Whether text is held until rules have seen it."""
        self.changes: bool = placeholders is not None or (guards is not None and guards.changes_replies)
        """Whether a text may be another one afterwards."""

    def chain(self, path: Path) -> Chain:
        """The rules for the text at a path."""
        if self.guards is None:
            return _NO_RULES
        direction = direction_of(path)
        beside = path[-1] not in CALL_TEXTS if direction == "tool_arguments" else not REASONING.isdisjoint(path)
        return self.guards.chain(direction, reasoning=beside)

    def judged(self, text: str, path: Path) -> tuple[str, GuardVerdict]:
        """What may be passed on of a whole text, and the verdict, which is noted. Values are not put back yet."""
        in_json, rewrites = self.reads_json(path)
        seen = unescaped(text) if in_json else text
        verdict = self.chain(path).judge(seen)
        self.note(direction_of(path), verdict)
        return text if in_json and not rewrites else verdict.text or "", verdict

    def reads_json(self, path: Path) -> tuple[bool, bool]:
        """Whether rules see the text at a path with characters in place of JSON's escapes, and whether it goes on so: rules that only note
        change nothing."""
        if not _is_json(path) or self.guards is None:
            return False, False
        chain, asks = self.chain(path), bool(self.guards.detectors(direction_of(path)))
        return bool(chain.rules) or asks, bool(chain.changing) or asks

    def judged_call(self, name: str, arguments: str | None) -> GuardVerdict:
        """The verdict on a call of a tool, which is noted; `arguments` are None while only the name is known."""
        assert self.guards is not None
        verdict = self.guards.chain("tool_arguments").judge_call(name, arguments)
        if verdict.findings or verdict.failed:
            self.note("tool_arguments", verdict)
        return verdict

    def reads_arguments(self, name: str, *, blocking: bool = False) -> bool:
        """Whether a rule over calls looks at the arguments of a tool.

        Args:
            blocking: count only rules that refuse.
        """
        return any(rule.scanner.reads_arguments(name) for rule in self.calls if not blocking or rule.mode == "block")

    def restored(self, text: str, path: Path) -> str:
        """A whole text with values in place of placeholders."""
        return text if self.placeholders is None else self.placeholders.restored(text, in_json=_is_json(path))

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Verdicts are gathered meanwhile, and noted afterwards: another thread may judge."""
        gathered = self._gathered = []
        try:
            yield
        finally:
            self._gathered = None
            for direction, verdict in gathered:
                self.note(direction, verdict)

    def note(self, direction: Direction, verdict: GuardVerdict) -> None:
        """Note a verdict on a text of the answer."""
        if self._gathered is not None:
            self._gathered.append((direction, verdict))
            return
        self.facts.note(direction, verdict)
        if not EDITS.isdisjoint([found.mode for found in verdict.findings]):
            self.facts.changed = True

    def gate(self, direction: Direction, *, waits: bool = False) -> DetectorGate | None:
        """The detectors of a text; None for none."""
        rules = () if self.questions is None or self.guards is None else self.guards.detectors(direction)
        if not rules or self.questions is None:
            return None
        return DetectorGate(rules, direction, self.questions, most_held=max(1, self.held_bytes), waits=waits)

    def restorer(self, path: Path) -> Restorer | None:
        """What puts values back in the text at a path; None for no values."""
        return None if self.placeholders is None else self.placeholders.restorer(in_json=_is_json(path))

    def fault(self, ended: Ended, by: str) -> Fault:
        """The fault of an answer that its rules could not judge."""
        if ended == "unavailable":
            message = f"The guard rule {by!r} could not judge the answer. Try again."
            return Fault(Kind.GUARD_UNAVAILABLE, message, retry=retry_after.SOON, detail=f"rule {by}")
        message = (
            f"The answer is longer than the {self.held_bytes} bytes (held_bytes) that guard rules may hold until they have seen it. "
            "Ask for a shorter one."
        )
        return Fault(Kind.GUARD_LIMIT, message)


def _is_json(path: Path) -> bool:
    return path[-1] == "arguments" and direction_of(path) == "tool_arguments"


class Channel:
    """One text of an answer as it arrives: behind its rules, values are put back in place of placeholders.

    Args:
        path: where its text stands in a choice.
        kind: the `type` of the object that has the text; None for none.
        tool: the tool whose arguments the text is, where a rule over calls reads them; empty for any other text.
    """

    __slots__ = (
        "_gate",
        "_given",
        "_given_chars",
        "_held",
        "_restorer",
        "_rules",
        "_tool",
        "_unescaper",
        "_unescapes",
        "_window",
        "by",
        "direction",
        "ended",
        "kind",
        "lone",
        "path",
        "unread",
    )

    def __init__(self, rules: ReplyRules, path: Path, kind: object = None, tool: str = "") -> None:
        self._rules = rules
        self._tool = tool
        self._given: list[str] = []
        """The arguments as the model wrote them, for rules over calls."""
        self._given_chars = 0
        self._held: list[str] | None = [] if tool and rules.reads_arguments(tool, blocking=True) else None
        """Arguments that go on once the whole call has been judged; None where none wait for that."""
        self.path = path
        self.kind = kind
        self.direction: Direction = direction_of(path)
        self._window = GuardWindow(rules.chain(path), most_held=max(1, rules.held_bytes))
        in_json, self._unescapes = rules.reads_json(path)
        self._unescaper = Unescaper() if in_json else None
        self._gate = None if is_whole(path) else rules.gate(self.direction)
        self._restorer = rules.restorer(path)
        bare = self._gate is None and self._restorer is None and not tool
        self.lone: Final = self._window.feed if bare else None
        """The way into its window, where nothing else acts on its text, so that `feed` does no more; None for any other channel."""
        self.unread: Final = bare and not rules.chain(path).rules
        """Whether nothing looks at its text."""
        self.ended: Ended = ""
        """Why the answer may not go on behind what was passed on; empty while it may."""
        self.by = ""
        """The rule that ends it."""

    def feed(self, piece: str) -> str:
        """What may be passed on now that `piece` has come."""
        seen = piece if self._unescaper is None else self._unescaper.feed(piece)
        released = self._window.feed(seen)
        if self._unescaper is not None and not self._unescapes:
            released = Released(piece)
        passed = self._passed(released, final=False)
        return self._of_call(piece, passed) if self._tool else passed

    def passed(self, released: Released) -> str:
        """What may be passed on of what its window has released through `lone`."""
        return self._passed(released, final=False)

    def end(self) -> str:
        """The rest of the text, once no piece follows."""
        passed = ""
        if self._unescaper is not None and (rest := self._window.feed(self._unescaper.end())) and self._unescapes:
            passed = self._passed(rest, final=False)
        if not self.ended:
            passed += self._passed(self._window.end(), final=True)
        return self._call_ended(passed) if self._tool else passed

    def _of_call(self, piece: str, passed: str) -> str:
        """Gather the arguments of a call, within the bound on held text; beyond it no rule over calls judges them."""
        self._given.append(piece)
        self._given_chars += len(piece)
        if self._given_chars > max(1, self._rules.held_bytes):
            self._tool = ""
            self._given.clear()
            if self._held is not None and not self.ended:
                self.ended = "too_long"
            return "" if self._held is not None else passed
        if self._held is None:
            return passed
        self._held.append(passed)
        return ""

    def _call_ended(self, passed: str) -> str:
        """Judge the whole call; its arguments go on where it may."""
        held = "" if self._held is None else "".join(self._held)
        if not self.ended:
            verdict = self._rules.judged_call(self._tool, "".join(self._given))
            if verdict.refused:
                self.ended, self.by = verdict.ended, verdict.by
                return "" if self._held is not None else passed
        return held + passed

    @property
    def waiting(self) -> bool:
        """Whether its text is complete and detectors have not seen all of it."""
        return self._gate is not None and self._gate.waiting and not self.ended

    def take(self) -> str:
        """What may be passed on now that detectors have seen more."""
        gate = self._gate
        return "" if gate is None or self.ended else self._behind(gate.take(), final=gate.complete)

    def whole(self, text: str) -> str:
        """What may be passed on of a text that comes in one piece."""
        passed = self.feed(text)
        return passed if self.ended else passed + self.end()

    def note(self) -> None:
        """Note what was found; call once, when nothing more is passed on."""
        self._rules.note(self.direction, self._window.verdict())
        facts = self._rules.facts
        if self.ended and not facts.ended:  # a finding that cuts although text in front of it was still held
            facts.ended, facts.by, facts.direction = self.ended, self.by, self.direction

    def _passed(self, released: Released, *, final: bool) -> str:
        ended = released.ended or ("block" if released.doomed else "")
        if ended:
            self.ended, self.by = ended, released.by or released.doomed
        gate = self._gate
        if gate is None:
            return self._behind(released.text, final=final)
        return self._behind(gate.feed(released.text, final=final or bool(ended)), final=gate.complete)

    def _behind(self, text: str, *, final: bool) -> str:
        """What the caller gets of a text behind all rules."""
        gate, restorer = self._gate, self._restorer
        if gate is not None and gate.ended and not self.ended:
            self.ended, self.by = gate.ended, gate.by
            self._rules.facts.late = self._rules.facts.late or gate.late
        if restorer is None:
            return text
        text = restorer.feed(text) if text else ""
        return text + restorer.end() if final or self.ended else text
