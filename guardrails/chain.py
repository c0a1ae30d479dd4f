"""The rules of one direction over a whole text, and how findings that overlap are resolved. Pure.

1. The first finding of a rule with the mode `block` cuts the text where it begins. Nothing from there on is passed.
2. Of the rest, each character that findings of `redact` or `replace` cover belongs to one of them: the longest, of equal ones the one that
   begins first, then the one whose rule stands first. The characters of one finding always lie side by side, because no longer finding
   fits inside a shorter one. So each finding that owns characters is replaced once, and no covered character stays.
3. Findings of `flag` and `shadow` are noted.

To whom a character belongs is decided by the findings that cover it and by nothing else. That is why a stream (`guardrails.window`) can
decide the same without the rest of the text.
"""

import re
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from guardrails.policy import CHANGING, Mode
from guardrails.ports import Bindable, CallScanner, Opening, Scanned, Scanner
from guardrails.text import CALM
from guardrails.verdict import Ended, GuardVerdict, Noted

Label = Callable[[str, str], str]
"""Makes what stands in place of a value that is restored later, from the kind of finding and the value (`guardrails.placeholders`)."""


class ChainRule(msgspec.Struct, frozen=True):
    """A scanner with what its policy makes of its findings."""

    scanner: Scanner
    mode: Mode
    replacement: str | None = None
    """What stands in place of a finding; None for a mark of its kind, such as `[EMAIL]`."""
    closed: bool = True
    """Whether a text is refused when the scanner fails; of no effect for `flag` and `shadow`."""
    restore: bool = False
    """Whether a label from which the value can be restored stands in its place, where the caller of `judge` makes labels."""
    joins: bool = False
    """Whether findings that overlap or touch are one thing, so that one mark stands in place of all of them."""


class CallRule(msgspec.Struct, frozen=True):
    """A scanner of tool calls with what its policy makes of its findings."""

    scanner: CallScanner
    mode: Mode
    """`block`, `flag` or `shadow`."""
    at: int
    """Its place among all rules of its direction, those over texts too."""
    closed: bool = True
    """Whether a call is refused when the scanner fails; of no effect for `flag` and `shadow`."""


class Spot(msgspec.Struct, frozen=True, order=True, gc=False):
    """A finding of a chain, at its place in the whole text."""

    begin: int
    end: int
    at: int
    """The position of its rule in the chain."""
    kind: str


class Run(msgspec.Struct, frozen=True, gc=False):
    """Characters that belong to one finding."""

    begin: int
    end: int
    spot: Spot


class Chain:
    """Rules made ready, for one direction.

    Args:
        rules: in the order of the policy. The order decides between findings that are otherwise equal.
        read: makes the normalised form of a text once for all rules (`guardrails.text.Text`).
        calls: the rules over calls of tools.
    """

    def __init__(self, rules: Sequence[ChainRule], read: Callable[[str], Scanned], calls: Sequence[CallRule] = ()) -> None:
        self.rules: Final = tuple(rules)
        self.calls: Final = tuple(sorted(calls, key=_policy_place))
        """The rules over calls of tools, in the order of the policy; `judge` and windows do not use them."""
        self.read: Final = read
        numbered = tuple(enumerate(self.rules))
        self.changing: Final = tuple((at, rule.scanner) for at, rule in numbered if rule.mode in CHANGING)
        """The scanners whose findings change or cut a text, with their positions."""
        self.noting: Final = tuple((at, rule.scanner) for at, rule in numbered if rule.mode not in CHANGING)
        self.needs_whole: Final = tuple(scanner.id for _, scanner in self.changing if scanner.longest is None)
        """The rules that change texts and have to see all of a text first: a stream is held until its end, or refused."""
        self.openings: Final = tuple((at, scanner) for at, scanner in self.changing if isinstance(scanner, Opening))
        """The scanners of `changing` that tell where a match may be open."""
        closed = [scanner.longest or 0 for _, scanner in self.changing if not isinstance(scanner, Opening)]
        self.longest: Final = max([scanner.longest or 0 for _, scanner in self.changing], default=0)
        self.longest_closed: Final = max(closed, default=0)
        """The longest match of those that do not."""
        self.before: Final = max([self.longest_closed, *[scanner.before for _, scanner in self.openings]])
        """Characters in front of a finding that a scan for it needs."""
        self.stirred: Final = _stirred([scanner.stirred_by for _, scanner in self.openings]) if not closed else None
        """What calm text has nothing of; None where a rule has no such expression, so that every text is scanned. The first expression is
        one class of characters, which costs little; only where it matches the second one has to be asked."""
        self._blocking = frozenset(at for at, rule in numbered if rule.mode == "block")

    def bound(self, system: Sequence[str]) -> "Chain":
        """The chain for the answer to one request; this one where no rule needs the request's texts.

        Args:
            system: the texts of the request's system prompt.
        """
        if not any(isinstance(rule.scanner, Bindable) for rule in self.rules):
            return self
        rules = [
            msgspec.structs.replace(rule, scanner=rule.scanner.bound(system)) if isinstance(rule.scanner, Bindable) else rule
            for rule in self.rules
        ]
        return Chain(rules, self.read, self.calls)

    def judge_call(self, name: str, arguments: str | None) -> GuardVerdict:
        """The verdict on a call of a tool: of its name alone, or of the whole call. A verdict on a call has no text and no cut.

        Args:
            name: the tool's name.
            arguments: as the model wrote them; None while only the name is known.
        """
        findings: list[Noted] = []
        failed: list[CallRule] = []
        block = ""
        for rule in self.calls:
            try:
                found = rule.scanner.scan_call(name, arguments)
            except Exception:  # noqa: BLE001 - whatever a rule raises, the policy says what its failure means
                failed.append(rule)
                continue
            findings += [Noted(one.begin, one.end, rule.scanner.id, one.kind, rule.mode) for one in found]
            if found and rule.mode == "block" and not block:
                block = rule.scanner.id
        names = tuple([rule.scanner.id for rule in failed])
        refuser = next((rule.scanner.id for rule in failed if rule.closed), "")
        ended: Ended = "block" if block else "unavailable" if refuser else ""
        return GuardVerdict(findings=tuple(findings), ended=ended, by=block or refuser, failed=names, text=None)

    def judge(self, text: str, label: Label | None = None) -> GuardVerdict:
        """The verdict on a whole text.

        Args:
            label: makes the replacements of rules with `restore`; None to use marks there too.
        """
        if not self.rules:
            return GuardVerdict(text=text)
        scanned = self.read(text)
        spots, failed = self.spots(self.changing, scanned)
        flags, also_failed = self.spots(self.noting, scanned)
        names = tuple([self.rules[at].scanner.id for at in sorted(failed + also_failed)])
        block = self.first_block(spots)
        if block is not None:
            spots = [spot for spot in spots if spot.begin <= block.begin]
        findings = self.noted(sorted(spots + flags) if flags else spots)
        refuser = self.refuser(failed)
        limit = len(text) if block is None else block.begin
        passed = self._passed(text, spots, limit, label) if refuser is None else ""
        if block is not None:
            by = self.rules[block.at].scanner.id
            return GuardVerdict(findings=findings, ended="block", by=by, cut=block.begin, failed=names, text=passed)
        if refuser is not None:
            return GuardVerdict(findings=findings, ended="unavailable", by=refuser, failed=names, text="")
        return GuardVerdict(findings=findings, failed=names, text=passed)

    def changed(self, text: str, findings: Iterable[Noted], label: Label | None = None) -> str:
        """A text with replacements for findings that an earlier verdict of these rules on the same text has; it may not be a refused one.

        Raises:
            KeyError: a finding is of a rule that the chain does not have.
        """
        at = {rule.scanner.id: number for number, rule in enumerate(self.rules)}
        spots = [Spot(found.begin, found.end, at[found.rule], found.kind) for found in findings if found.mode in CHANGING]
        return self._passed(text, sorted(spots), len(text), label)

    def spots(self, scanners: Iterable[tuple[int, Scanner]], scanned: Scanned, offset: int = 0) -> tuple[list[Spot], list[int]]:
        """What scanners of this chain find, sorted and each once, and the positions of the rules that failed. Empty findings are left out.

        Args:
            offset: where the scanned text begins in the whole text.
        """
        spots: list[Spot] = []
        failed: list[int] = []
        for at, scanner in scanners:
            try:
                found = scanner.scan(scanned)
            except Exception:  # noqa: BLE001 - whatever a rule raises, the policy says what its failure means
                failed.append(at)
                continue
            if found:
                spots += [Spot(one.begin + offset, one.end + offset, at, one.kind) for one in found if one.begin < one.end]
        if len(spots) > 1:
            spots = sorted(set(spots))
        return spots, failed

    def first_block(self, spots: Iterable[Spot]) -> Spot | None:
        """The finding that cuts the text: of those of blocking rules that begin first, the one whose rule stands first."""
        return min([spot for spot in spots if spot.at in self._blocking], key=_cuts_first, default=None)

    def edits(self, spots: Iterable[Spot]) -> list[Spot]:
        """The findings in whose place something else is put."""
        return [spot for spot in spots if spot.at not in self._blocking]

    def refuser(self, failed: Iterable[int]) -> str | None:
        """The first rule among those that failed whose failure refuses a text."""
        return next((self.rules[at].scanner.id for at in failed if self.rules[at].closed), None)

    def noted(self, spots: Iterable[Spot]) -> tuple[Noted, ...]:
        """Findings as verdicts show them, in the same order."""
        rules = self.rules
        return tuple([Noted(spot.begin, spot.end, rules[spot.at].scanner.id, spot.kind, rules[spot.at].mode) for spot in spots])

    def mark(self, spot: Spot) -> str:
        """What stands in place of a finding, whatever its value."""
        replacement = self.rules[spot.at].replacement
        return f"[{spot.kind.upper()}]" if replacement is None else replacement

    def joined(self, spot: Spot, before: Spot | None) -> bool:
        """Whether a finding is replaced by the mark of the one that ends where the finding's own characters begin."""
        return before is not None and self.rules[spot.at].joins and (spot.at, spot.kind) == (before.at, before.kind)

    def _passed(self, text: str, spots: list[Spot], limit: int, label: Label | None) -> str:
        """The text up to `limit`, with replacements."""
        runs = owned(self.edits(spots), 0, limit)
        if not runs:
            return text[:limit]
        parts = []
        done = 0
        before: Spot | None = None
        for run in runs:
            parts.append(text[done : run.begin])
            restored = label is not None and self.rules[run.spot.at].restore
            if run.begin > done or not self.joined(run.spot, before):
                parts.append(label(run.spot.kind, text[run.begin : run.end]) if label and restored else self.mark(run.spot))
            before = run.spot
            done = run.end
        parts.append(text[done:limit])
        return "".join(parts)


def _stirred(rules: Sequence[tuple[str, str, str] | None]) -> tuple[re.Pattern[str], re.Pattern[str]] | None:
    """The expressions for all rules of a chain, which also match where a character stands that normalisation changes."""
    known = [rule for rule in dict.fromkeys(rules) if rule is not None]
    if None in rules or not known:
        return None
    stirring = "".join([chars for chars, _, _ in known])
    hints = "".join([chars for _, chars, _ in known])
    either = "|".join([f"[^{_ascii_but(stirring)}{CALM}]", *[expression for _, _, expression in known]])
    return re.compile(f"[^{_ascii_but(stirring + hints)}{CALM}]"), re.compile(either)


def _ascii_but(chars: str) -> str:
    """All ASCII characters but those of a class, as the inside of a class."""
    left_out = re.compile(f"[{chars}]") if chars else None
    return "".join([re.escape(char) for char in map(chr, range(128)) if left_out is None or not left_out.match(char)])


def owned(spots: Sequence[Spot], begin: int, end: int) -> list[Run]:
    """The characters from `begin` to `end` that belong to findings, as runs in order. Each finding owns at most one run.

    The cost is that of sorting the findings, and of a list insertion for each.
    """
    if len(spots) == 1:
        (spot,) = spots
        run = Run(max(spot.begin, begin), min(spot.end, end), spot)
        return [run] if run.begin < run.end else []
    taken: list[tuple[int, int, Spot]] = []
    for spot in sorted(spots, key=_owns_first):
        low, high = max(spot.begin, begin), min(spot.end, end)
        # what stands before is taken by longer findings: skip it from both sides
        at = bisect_right(taken, low, key=_begin) - 1
        if at >= 0 and taken[at][1] > low:
            while at < len(taken) and taken[at][0] <= low < taken[at][1]:
                low = taken[at][1]
                at += 1
        at = bisect_right(taken, high - 1, key=_begin) - 1
        while at >= 0 and taken[at][0] < high <= taken[at][1]:
            high = taken[at][0]
            at -= 1
        if low < high:
            insort(taken, (low, high, spot), key=_begin)
    return [Run(low, high, spot) for low, high, spot in taken]


def _policy_place(rule: CallRule) -> int:
    return rule.at


def _begin(taken: tuple[int, int, Spot]) -> int:
    return taken[0]


def _owns_first(spot: Spot) -> tuple[int, int, int, str]:
    return spot.begin - spot.end, spot.begin, spot.at, spot.kind


def _cuts_first(spot: Spot) -> tuple[int, int, int, str]:
    return spot.begin, spot.at, spot.end, spot.kind
