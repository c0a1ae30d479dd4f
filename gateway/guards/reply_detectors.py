"""Detectors over the texts of one answer: classifiers that run elsewhere, asked about one window of a text after the other.

A detector sees `window_chars` of a text at a time, with `overlap_chars` of what stands in front again; it is asked one question at a time
for each text, in order. Text that a rule holds goes on once the rule has seen it; where the rule changes texts, the last `overlap_chars`
stay, since a finding may go on in the next window. A blocking rule with `hold: false` lets text go on at once, and its finding cuts the
answer late. Rules that flag or shadow hold nothing, and what they find after the answer is over is reported apart.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from domain.clock import Clock
from gateway.guards.detect import counts
from guardrails.chain import Spot, owned
from guardrails.policy import CHANGING, DetectorRule, Direction
from guardrails.ports import Detected, Detector, DetectorAway
from guardrails.verdict import Ended, GuardVerdict, Noted

Report = Callable[[Direction, GuardVerdict], None]

EDITING: Final = frozenset({"redact", "replace"})


class ReplyDetectors(msgspec.Struct, frozen=True):
    """What answers may be asked about."""

    by_name: Mapping[str, Detector]
    loop: asyncio.AbstractEventLoop
    clock: Clock
    report: Report
    """Called with what was found in an answer that was over by then."""
    running: set[asyncio.Task[None]] = msgspec.field(default_factory=set)
    """The questions under way; held here because the loop keeps only weak references to tasks."""


class Questions:
    """The questions about one answer that are under way.

    Args:
        tenant: whose answer it is.
        note: called with each verdict on one window, while the answer is not over.
    """

    __slots__ = ("_asking", "_away", "_note", "_tenant", "over", "wake")

    def __init__(self, away: ReplyDetectors, tenant: str, note: Report) -> None:
        self._away = away
        self._tenant = tenant
        self._note = note
        self._asking: dict[asyncio.Task[None], bool] = {}
        """The tasks, and whether each goes on when the answer is over."""
        self.over = False
        self.wake: Callable[[], None] = lambda: None
        """Called when an answer has come that something may go on by."""

    def ask(self, rule: DetectorRule, text: str, direction: Direction, answered: Callable[[Sequence[Detected] | None], None]) -> None:
        """Ask about one window. `answered` gets what was found, None where there is no answer."""
        if self.over and rule.mode in CHANGING:
            return
        task = self._away.loop.create_task(self._ask(rule, text, direction, answered))
        self._asking[task] = rule.mode not in CHANGING
        self._away.running.add(task)
        task.add_done_callback(self._asking.pop)
        task.add_done_callback(self._away.running.discard)

    async def _ask(
        self, rule: DetectorRule, text: str, direction: Direction, answered: Callable[[Sequence[Detected] | None], None]
    ) -> None:
        detector = self._away.by_name.get(rule.detector)
        found: Sequence[Detected] | None = None
        if detector is not None:
            try:
                found = await detector.detect(text, direction, self._tenant)
            except DetectorAway:
                found = None
            except Exception:  # noqa: BLE001 - whatever a detector raises, the policy says what its failure means
                found = None
        answered(found)
        if not self.over and rule.mode in CHANGING:
            self.wake()

    def note(self, direction: Direction, verdict: GuardVerdict) -> None:
        """Note a verdict, or report it where the answer is over."""
        if self.over:
            self._away.report(direction, verdict)
        else:
            self._note(direction, verdict)

    def close(self) -> None:
        """The answer is over: questions whose results could change it are given up."""
        self.over = True
        for task, goes_on in self._asking.items():
            if not goes_on:
                task.cancel()

    @property
    def now(self) -> float:
        """The time, in monotonic seconds."""
        return self._away.clock()


class _Progress:
    """How far one rule is in one text."""

    __slots__ = ("asking", "holds", "known", "rule", "seen")

    def __init__(self, rule: DetectorRule, *, holds: bool) -> None:
        self.rule = rule
        self.holds = holds
        self.seen = 0
        """What stands before it has been judged."""
        self.asking = False
        self.known: set[tuple[int, int, str]] = set()
        """Findings that reach into the next window, which may bring them again."""


class DetectorGate:
    """One text of an answer in front of its detectors.

    Args:
        most_held: characters that may be held; with more the text is refused with `too_long`.
        waits: whether blocking rules with `hold: false` hold too, as for a reply that cannot be cut any more once it is sent.
    """

    __slots__ = (
        "_begin",
        "_cut_at",
        "_direction",
        "_edits",
        "_final",
        "_frontier",
        "_most_held",
        "_owner",
        "_questions",
        "_rules",
        "_text",
        "by",
        "ended",
        "late",
    )

    def __init__(
        self, rules: Sequence[DetectorRule], direction: Direction, questions: Questions, *, most_held: int, waits: bool = False
    ) -> None:
        self._rules = [_Progress(rule, holds=rule.mode in CHANGING and (rule.hold or waits)) for rule in rules]
        self._direction = direction
        self._questions = questions
        self._most_held = most_held
        self._text = ""
        self._begin = 0
        """Where `_text` begins in the whole text."""
        self._frontier = 0
        """Every character before it has gone on or was replaced."""
        self._final = False
        self._cut_at = 0
        self._edits: list[Spot] = []
        self._owner: Spot | None = None
        """The finding that was replaced last."""
        self.ended: Ended = ""
        """Why the text may not go on; empty while it may."""
        self.by = ""
        self.late = False
        """Whether the refused text has gone on already."""

    def feed(self, text: str, *, final: bool = False) -> str:
        """What may go on now that more of the text has come; `final` where no more comes."""
        self._text += text
        self._final = self._final or final
        for progress in self._rules:
            if not progress.holds and self._end - progress.seen > self._most_held:
                self._passed_over(progress)
            self._ask_next(progress)
        return self.take()

    @property
    def waiting(self) -> bool:
        """Whether the text is complete and a part of it is still held."""
        return self._final and not self.ended and self._frontier < self._end

    @property
    def complete(self) -> bool:
        """Whether all of the text has gone on."""
        return self._final and self._frontier >= self._end

    def take(self) -> str:
        """What may go on by now."""
        if self.ended and self.ended != "block":
            return ""
        limit = self._end
        for progress in self._rules:
            if progress.holds:
                limit = min(limit, self._decided(progress))
        if self.ended:
            limit = min(limit, self._cut_at)
        text = self._changed(limit) if limit > self._frontier else ""
        if not self.ended and self._end - self._frontier > self._most_held:
            self.ended = "too_long"
        return text

    @property
    def _end(self) -> int:
        return self._begin + len(self._text)

    def _decided(self, progress: _Progress) -> int:
        """The place up to which a rule has decided."""
        whole = self._final and progress.seen >= self._end
        return progress.seen if whole or progress.rule.mode not in EDITING else progress.seen - progress.rule.overlap_chars

    def _changed(self, limit: int) -> str:
        """The text from the frontier to `limit`, with replacements; forgets what nobody needs any more."""
        begin, done = self._begin, self._frontier
        parts = []
        for run in owned(self._edits, done, limit):
            parts.append(self._text[done - begin : run.begin - begin])
            if run.spot != self._owner:
                replacement = self._rules[run.spot.at].rule.replacement
                parts.append(f"[{run.spot.kind.upper()}]" if replacement is None else replacement)
                self._owner = run.spot
            done = run.end
        parts.append(self._text[done - begin : limit - begin])
        self._frontier = limit
        self._edits = [spot for spot in self._edits if spot.end > limit]
        keep = min([limit, *[progress.seen - progress.rule.overlap_chars for progress in self._rules]])
        if keep > begin:
            self._text, self._begin = self._text[keep - begin :], keep
        return "".join(parts)

    def _ask_next(self, progress: _Progress) -> None:
        """Ask about the next window, where there is one and no question about this text is under way."""
        rule, unseen = progress.rule, self._end - progress.seen
        if progress.asking or self.ended or not unseen or (unseen < rule.window_chars and not self._final):
            return
        begin, end = max(self._begin, progress.seen - rule.overlap_chars), min(progress.seen + rule.window_chars, self._end)
        progress.asking = True
        text = self._text[begin - self._begin : end - self._begin]
        self._questions.ask(rule, text, self._direction, partial(self._answered, progress, begin, end))

    def _answered(self, progress: _Progress, begin: int, end: int, found: Sequence[Detected] | None) -> None:
        """A rule's word on the text from `begin` to `end`; None where it gave none."""
        fresh = max(begin, progress.seen)
        progress.asking, progress.seen = False, max(progress.seen, end)
        if self.ended:
            return
        rule = progress.rule
        if found is None:
            self._failed(rule)
        else:
            # what has no place concerns the whole window; what stood in front of it has been judged before
            placed = [one if one.end > one.begin else msgspec.structs.replace(one, begin=fresh - begin, end=end - begin) for one in found]
            spots = {(begin + one.begin, begin + one.end, one.kind) for one in placed if counts(rule, one)} - progress.known
            progress.known = {spot for spot in spots | progress.known if spot[1] > end - rule.overlap_chars}
            if spots:
                self._found(progress, sorted(spots))
        self._ask_next(progress)

    def _passed_over(self, progress: _Progress) -> None:
        """A detector that holds nothing is further behind than text is kept: what stands there counts as not judged."""
        progress.seen = self._end
        self._failed(progress.rule)

    def _failed(self, rule: DetectorRule) -> None:
        if rule.closed:
            self.ended, self.by = "unavailable", rule.id
        self._questions.note(self._direction, GuardVerdict(failed=(rule.id,), ended=self.ended, by=self.by, text=None))

    def _found(self, progress: _Progress, spots: list[tuple[int, int, str]]) -> None:
        rule = progress.rule
        noted = tuple([Noted(begin, end, rule.id, kind, rule.mode) for begin, end, kind in spots])
        if rule.mode == "block":
            self.ended, self.by, self._cut_at = "block", rule.id, max(spots[0][0], self._frontier)
            self.late = spots[0][0] < self._frontier and not progress.holds
        elif rule.mode in EDITING:
            at = self._rules.index(progress)
            self._edits += [Spot(begin, end, at, kind) for begin, end, kind in spots if begin < end]
        cut = self._cut_at if self.ended else None
        self._questions.note(self._direction, GuardVerdict(findings=noted, ended=self.ended, by=self.by, cut=cut, text=None))
