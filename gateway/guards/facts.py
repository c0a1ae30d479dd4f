"""What guard rules say of one request and its answer: the notebook while it is under way, and what observers read when it is over.

Neither holds a text: findings are counted by rule and kind. Size: its readers are the Story, the Record, the step of the input and the tap
of the answer, which must not import each other.
"""

import asyncio
from typing import Final

import msgspec

from guardrails.placeholders import Placeholders
from guardrails.policy import Direction
from guardrails.verdict import GuardVerdict

VERSION_CHARS: Final = 16
"""64 bits of the digest of the rules: enough to tell versions apart in a log."""

MAX_COUNTS: Final = 100
"""Rules and kinds of findings that are counted for one request; what lies beyond them is left out of the log and of metrics."""


UNREAD_KINDS: Final = frozenset(
    {"token ids", "image_url", "input_image", "image", "input_audio", "audio_url", "audio", "video_url", "video", "file", "input_file"}
)
"""Kinds of parts that a Record names. The type of a part is a text of the caller, so any other one is `unknown` there."""


class GuardCount(msgspec.Struct, frozen=True, gc=False):
    """Findings of one guard rule and kind."""

    rule: str
    kind: str
    mode: str
    """What the rule does: `block`, `redact`, `replace`, `flag` or `shadow`."""
    direction: str
    """What the texts are: `input`, `output`, `tool_arguments`, `tool_results` or `documents`."""
    count: int


class GuardRecord(msgspec.Struct, frozen=True):
    """What guard rules said of a finished request, as all observers see it."""

    word: str
    """`passed`, `flagged`, `changed`, `block`, `unavailable` or `too_long`."""
    by: str
    """The rule that refused the request or cut the answer; empty for none."""
    direction: str
    """What the refused text is; empty for none."""
    late: bool
    """Whether the answer was cut after the refused text had been sent."""
    counts: tuple[GuardCount, ...]
    failed: tuple[str, ...]
    """The rules that could not judge."""
    unread: tuple[str, ...]
    """Kinds of parts of the request that no rule can read."""
    version: str
    """The first hexadecimal digits of the digest of the rules."""

    @property
    def found(self) -> str:
        """The findings in words: `people:email:redact:input=2, …`."""
        return ", ".join([f"{count.rule}:{count.kind}:{count.mode}:{count.direction}={count.count}" for count in self.counts])

    @property
    def sentence(self) -> str:
        """All of it in one line for people."""
        parts = [self.word + (f" by {self.by}" if self.by else "") + (f" in {self.direction}" if self.direction else "")]
        if self.late:
            parts.append("after the text had been sent")
        if self.counts:
            parts.append(f"found {self.found}")
        if self.failed:
            parts.append(f"failed: {', '.join(self.failed)}")
        if self.unread:
            parts.append(f"not read: {', '.join(self.unread)}")
        return "; ".join(parts)


class GuardFacts(msgspec.Struct):
    """What guard rules say of the request and its answer. Written by `guard_input` and by the guards' tap of the reply."""

    counts: dict[tuple[str, str, str, str], int] = {}
    """Findings by rule, kind, mode and direction."""
    finders: frozenset[str] = frozenset()
    """The rules that found something; all of them, where `counts` is bounded."""
    failed: tuple[str, ...] = ()
    """The rules that could not judge a text."""
    ended: str = ""
    """Why the request or the answer may not pass, a `guardrails.verdict.Ended`; empty where it may."""
    by: str = ""
    """The rule that refuses it."""
    direction: str = ""
    """What the refused text is."""
    changed: bool = False
    """Whether a text was changed."""
    late: bool = False
    """Whether the answer was cut after the refused text had been sent, by a rule with `hold: false`."""
    unread: tuple[str, ...] = ()
    """Kinds of parts of the request that no rule can read, such as `image_url`."""
    placeholders: Placeholders | None = None
    """The values that the engine does not see and the caller's answer has; None for none. Never logged, never kept."""
    judging: "asyncio.Task[list[tuple[tuple[str, Direction, str], GuardVerdict]]] | None" = None
    """Detectors of rules that block, which look at the request while it waits; their verdicts on texts, with path and direction."""
    noting: "asyncio.Task[None] | None" = None
    """Detectors of rules that flag or shadow, which look at the request and add what they find."""
    over: bool = False
    """Whether the request is over: nothing is added any more."""

    def note(self, direction: Direction, verdict: GuardVerdict) -> None:
        """Add a verdict on one text."""
        for found in verdict.findings:
            key = (found.rule, found.kind, found.mode, direction)
            if key in self.counts or len(self.counts) < MAX_COUNTS:
                self.counts[key] = self.counts.get(key, 0) + 1
        if verdict.findings:
            self.finders |= {found.rule for found in verdict.findings}
        self.failed = tuple(dict.fromkeys((*self.failed, *verdict.failed)))
        if verdict.refused and not self.ended:
            self.ended, self.by, self.direction = verdict.ended, verdict.by, direction

    @property
    def word(self) -> str:
        """The verdict in one word: `passed`, `flagged`, `changed`, `block`, `unavailable` or `too_long`."""
        if self.ended or self.changed:
            return self.ended or "changed"
        return "flagged" if any(mode != "shadow" for _, _, mode, _ in self.counts) else "passed"

    def record(self, version: str) -> GuardRecord:
        """The closed facts."""
        counts = tuple([GuardCount(*key, count) for key, count in self.counts.items()])
        unread = tuple(sorted({kind if kind in UNREAD_KINDS else "unknown" for kind in self.unread}))
        return GuardRecord(self.word, self.by, self.direction, self.late, counts, self.failed, unread, version[:VERSION_CHARS])
