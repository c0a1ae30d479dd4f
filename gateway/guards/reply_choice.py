"""One choice of a streamed answer on its way through guard rules, and the forms that its events take. Sans-I/O."""

from typing import Any

import msgspec

from gateway.guards.reply_channels import Channel, ReplyRules
from gateway.guards.reply_parts import CALL_TEXTS, Path, calls, texts
from guardrails.verdict import GuardVerdict


class GuardedChoice:
    """One choice of a streamed answer: the channels of its texts, and the calls of tools that it makes."""

    __slots__ = ("_rules", "calls", "channels", "ending", "finished", "index", "named", "over")

    def __init__(self, index: int, rules: ReplyRules) -> None:
        self.index = index
        self._rules = rules
        self.channels: dict[Path, Channel] = {}
        self.calls: dict[Path, str] = {}
        """The tools that it calls, by the place of the call; where rules over calls look at the answer."""
        self.over = False
        """Whether nothing more of it goes on."""
        self.finished = False
        """Whether the engine has ended it."""
        self.ending: dict[str, Any] | None = None
        """Its part of the event that ends it, which waits for detectors."""
        self.named = False
        """Whether its role has been told."""

    def refused_call(self, part: dict[str, Any]) -> GuardVerdict | None:
        """Judge the names of calls that begin in an event, and, where the event ends the choice, the calls without arguments. Returns the
        verdict on the first one that is refused; None for none."""
        begun = [(path, name) for path, name, _ in calls(part) if path not in self.calls]
        refused: GuardVerdict | None = None
        for path, name in begun:
            self.calls[path] = name
            verdict = self._rules.judged_call(name, None)
            refused = refused or (verdict if verdict.refused else None)
        if part.get("finish_reason") and refused is None:
            coming = {path[:-1] for path in (*[text.path for text in texts(part)], *self.channels) if path[-1] in CALL_TEXTS}
            for path, name in self.calls.items():
                if path not in coming and self._rules.reads_arguments(name):
                    verdict = self._rules.judged_call(name, "")
                    refused = refused or (verdict if verdict.refused else None)
        return refused

    def tool_of(self, path: Path) -> str:
        """The tool whose arguments the text at a path is, where a rule over calls reads them; empty for any other text."""
        name = self.calls.get(path[:-1], "") if path[-1] in CALL_TEXTS else ""
        return name if name and self._rules.reads_arguments(name) else ""


class EventForm(msgspec.Struct, frozen=True, gc=False):
    """Events that are the same but for one text."""

    head: bytes
    tail: bytes
    channel: Channel
    choice: GuardedChoice
