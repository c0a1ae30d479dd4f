"""What guards say about one text: what was found by which rule, whether the text may pass, and what it then reads.

A verdict goes to logs, counters and the audit. So its evidence is made of rule ids, kinds and spans, and its `repr` leaves the text out.
"""

from typing import Final, Literal

import msgspec

from guardrails.policy import Mode

Ended = Literal["", "block", "unavailable", "too_long"]
"""Why a text may not pass: a rule with the mode `block` found something, a rule that fails closed failed, or more of the text would have to
be held than the bound allows; empty where it may pass."""

MAX_SHOWN: Final = 100
"""Findings that `evidence` lists; a text with more of them has been judged by all of them."""


class Noted(msgspec.Struct, frozen=True, gc=False):
    """A finding of one rule, with what the rule's mode makes of it."""

    begin: int
    """Where it begins in the original text, in characters."""
    end: int
    """Where it ends; the character at `end` is not part of it."""
    rule: str
    kind: str
    mode: Mode


class GuardVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of a chain say about one text."""

    findings: tuple[Noted, ...] = ()
    """By `begin`, then `end`, then the order of the rules. Of a text that is cut: up to the cut, apart from flags and shadows."""
    ended: Ended = ""
    by: str = ""
    """The rule that refuses the text; empty where it may pass, and for `too_long`."""
    cut: int | None = None
    """Where a blocked text is cut, in characters of the original: at the first finding of a rule that blocks."""
    failed: tuple[str, ...] = ()
    """The rules that failed on this text, by their order."""
    text: str | None = ""
    """The text as it may be passed on; of a blocked text what stands before the cut, changed as the other rules say, and nothing where a
    rule is unavailable. None for a text that was released piece by piece."""

    @property
    def refused(self) -> bool:
        """Whether the text may not pass as a whole."""
        return self.ended != ""

    def found(self, mode: Mode) -> tuple[str, ...]:
        """The ids of the rules of a mode that found something, each once, by their first finding."""
        return tuple(dict.fromkeys([noted.rule for noted in self.findings if noted.mode == mode]))

    def evidence(self) -> dict[str, object]:
        """The verdict for a log: everything but the text, with at most `MAX_SHOWN` findings and the number of all."""
        return {
            "ended": self.ended,
            "by": self.by,
            "cut": self.cut,
            "failed": list(self.failed),
            "count": len(self.findings),
            "findings": [
                {"rule": noted.rule, "kind": noted.kind, "mode": noted.mode, "begin": noted.begin, "end": noted.end}
                for noted in self.findings[:MAX_SHOWN]
            ],
        }

    def __repr__(self) -> str:
        return f"GuardVerdict({self.evidence()})"
