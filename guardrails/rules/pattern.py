"""Regular expressions of tenants, by RE2 alone: no expression makes a scan slower than linear. Pure.

How long a match can be is computed from the expression's structure (`width`), because a stream has to hold back that much.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import re2

from guardrails.ports import Finding, Scanned
from guardrails.text import Encoded

VERSION: Final = "pattern 1"
MAX_CHARS: Final = 1000
MAX_PROGRAM: Final = 4000
"""Instructions of RE2's program; a counted repetition is unrolled into it."""
MAX_MEMORY_BYTES: Final = 2 * 1024**2
"""What RE2 may use for one expression and its automata."""
MAX_LONGEST: Final = 4096
"""The longest match of an expression that looks at streams."""


PROBED_CHARS: Final = 512
"""The length of the texts on which an expression is tried before it is used."""
MOST_AHEAD: Final = 64
"""Characters that may be looked at behind a match for a longer one. With each match of a text they are looked at again."""
MAX_PROBES: Final = 24
"""Texts that are tried, and characters that are tried behind each of them."""


class Width(msgspec.Struct, frozen=True, gc=False):
    """How many characters an expression matches."""

    least: int
    most: int | None
    """None where nothing bounds it, or where it depends on the beginning or end of the text."""
    at: int = -1
    """Where in the expression that stands which has no bound; -1 where all is bounded."""
    why: str = ""


_QUANTIFIER: Final = re.compile(r"([*+?]|\{(\d+)(,(\d*))?\})\??")
_GROUP: Final = re.compile(r"\(\?(?:P?<\w+>|[a-zA-Z-]*:)")
_FLAGS: Final = re.compile(r"\(\?[a-zA-Z-]+\)")
_ESCAPE: Final = re.compile(r"\\(?:[pP](?:\{\^?\w+\}|\w)|x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|[0-7]{1,3}|.)", re.DOTALL)
_CLASS: Final = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\[pP]\{\^?\w+\}|\\.|[^\]\\])*\]", re.DOTALL)


class _Reader:
    """Reads an expression that RE2 has accepted, and adds up its widths."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> Width:
        width = self._either()
        if self._at < len(self._pattern):
            return Width(0, None, self._at, "could not be read")
        return width

    def _either(self) -> Width:
        widths = [self._sequence()]
        while self._pattern.startswith("|", self._at):
            self._at += 1
            widths.append(self._sequence())
        unbounded = next((width for width in widths if width.most is None), None)
        least = min(width.least for width in widths)
        if unbounded is not None:
            return Width(least, None, unbounded.at, unbounded.why)
        return Width(least, max(width.most or 0 for width in widths))

    def _sequence(self) -> Width:
        total = Width(0, 0)
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            total = _after(total, self._repeated())
        return total

    def _repeated(self) -> Width:
        width = self._atom()
        while (match := _QUANTIFIER.match(self._pattern, self._at)) is not None:
            sign, least, comma, most = match.groups()
            low = int(least) if least is not None else {"*": 0, "+": 1, "?": 0}[sign]
            high: int | None = 1 if sign == "?" else None
            if least is not None:
                high = int(most) if most else None if comma else low
            width = self._times(width, low, high)
            self._at = match.end()
        return width

    def _times(self, width: Width, low: int, high: int | None) -> Width:
        if width.most is None:
            return Width(width.least * low, None, width.at, width.why)
        if high is None:
            return Width(width.least * low, None if width.most else 0, self._at, "has no upper bound")
        return Width(width.least * low, width.most * high)

    def _atom(self) -> Width:
        pattern, begin = self._pattern, self._at
        char = pattern[begin]
        if char == "(":
            return self._group()
        if char in "^$":
            self._at += 1
            return Width(0, None, begin, "depends on where the text begins or ends")
        if char == "[":
            match = _CLASS.match(pattern, begin)
            self._at = match.end() if match else len(pattern)
            return Width(1, 1)
        if pattern.startswith(r"\Q", begin):
            end = pattern.find(r"\E", begin)
            length = (end if end >= 0 else len(pattern)) - begin - 2
            self._at = end + 2 if end >= 0 else len(pattern)
            return Width(length, length)
        if char == "\\":
            match = _ESCAPE.match(pattern, begin)
            self._at = match.end() if match else len(pattern)
            if pattern[begin + 1] in "Az":
                return Width(0, None, begin, "depends on where the text begins or ends")
            return Width(0, 0) if pattern[begin + 1] in "bB" else Width(1, 1)
        self._at += 1
        return Width(1, 1)

    def _group(self) -> Width:
        flags = _FLAGS.match(self._pattern, self._at)
        if flags is not None:
            self._at = flags.end()
            return Width(0, 0)
        opened = _GROUP.match(self._pattern, self._at)
        self._at = opened.end() if opened is not None else self._at + 1
        width = self._either()
        self._at += 1
        return width


def _after(first: Width, second: Width) -> Width:
    least = first.least + second.least
    if first.most is None:
        return Width(least, None, first.at, first.why)
    if second.most is None:
        return Width(least, None, second.at, second.why)
    return Width(least, first.most + second.most)


def width(pattern: str) -> Width:
    """The least and most characters that an expression in RE2's syntax matches, which RE2 has accepted."""
    return _Reader(pattern).whole()


class _Part(msgspec.Struct, frozen=True, gc=False):
    """A part of an expression."""

    whole: str
    begun: str | None
    """Matches whatever a match of the part may begin with, nothing and all of it included; None where the part matches no character."""


class _Unclear(Exception):
    """An expression whose beginnings are not told: it has a part that is rarely written."""


class _Beginnings:
    """Reads an expression that RE2 has accepted, and makes one for the beginnings of its matches."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> str:
        part = self._either()
        if self._at < len(self._pattern):
            raise _Unclear
        return part.begun or ""

    def _either(self) -> _Part:
        parts = [self._sequence()]
        while self._pattern.startswith("|", self._at):
            self._at += 1
            parts.append(self._sequence())
        return _Part("|".join([part.whole for part in parts]), "|".join([part.begun or "" for part in parts]))

    def _sequence(self) -> _Part:
        parts = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts.append(self._repeated())
        begun = ""
        for part in reversed(parts):
            if part.begun is not None:
                begun = f"(?:{part.begun}|{part.whole}{begun})" if begun else f"(?:{part.begun})"
            elif part.whole.startswith("(?"):
                begun = part.whole + begun  # flags hold for what follows
        return _Part("".join([part.whole for part in parts]), begun)

    def _repeated(self) -> _Part:
        part = self._atom()
        while (match := _QUANTIFIER.match(self._pattern, self._at)) is not None:
            self._at = match.end()
            sign, least, comma, most = match.groups()
            if part.begun is None:
                raise _Unclear
            many = (int(most) if most else None if comma else int(least)) if least is not None else 1 if sign == "?" else None
            before = f"{{0,{many - 1}}}" if many else "*" if many is None else "{0}"
            part = _Part(f"(?:{part.whole}){match.group()}", f"(?:{part.whole}){before}(?:{part.begun})")
        return part

    def _atom(self) -> _Part:
        pattern, begin = self._pattern, self._at
        char = pattern[begin]
        if char == "(":
            return self._group()
        if char in "^$" or pattern.startswith((r"\Q", r"\A", r"\z", r"\C"), begin):
            raise _Unclear
        match = _CLASS.match(pattern, begin) if char == "[" else _ESCAPE.match(pattern, begin) if char == "\\" else None
        self._at = match.end() if match is not None else begin + 1
        written = pattern[begin : self._at]
        return _Part(written, None) if written in (r"\b", r"\B") else _Part(written, f"{written}|")

    def _group(self) -> _Part:
        flags = _FLAGS.match(self._pattern, self._at)
        if flags is not None:
            self._at = flags.end()
            return _Part(flags.group(), None)
        opened = _GROUP.match(self._pattern, self._at)
        head = opened.group() if opened is not None and opened.group().endswith(":") else "(?:"
        self._at = opened.end() if opened is not None else self._at + 1
        part = self._either()
        self._at += 1
        return _Part(f"{head}{part.whole})", f"{head}{part.begun})")


class Pattern:
    """Finds what a tenant's regular expression matches, in the original text.

    Args:
        rule: the id of the rule.
        pattern: in RE2's syntax, at most `MAX_CHARS` characters.
        ignore_case: whether upper and lower case are the same.
        bounded: whether the rule looks at streams, so that every match needs a bounded length.
        kind: what a finding is called.

    Raises:
        ValueError: RE2 refuses the expression, it is too large, it matches the empty text, or a bound is missing; says where.
    """

    version = VERSION
    stirred_by = None

    def __init__(self, rule: str, pattern: str, *, ignore_case: bool = False, bounded: bool = False, kind: str = "pattern") -> None:
        if len(pattern) > MAX_CHARS:
            raise ValueError(f"the pattern has {len(pattern)} characters; at most {MAX_CHARS} can stand here")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_MEMORY_BYTES
        options.case_sensitive = not ignore_case
        options.never_capture = True  # what groups match is not asked, and would cost a second, slower pass
        try:
            self._expression = re2.compile(pattern.encode(), options=options)
        except re2.error as error:
            raise ValueError(_refused(pattern, error)) from None
        except UnicodeEncodeError as error:
            raise ValueError(f"the pattern has half a character (a lone surrogate) at character {error.start + 1}") from None
        if self._expression.programsize > MAX_PROGRAM:
            raise ValueError(
                f"the pattern is too large ({self._expression.programsize} instructions; at most {MAX_PROGRAM}); write smaller repetitions"
            )
        try:
            self._width = width(pattern)
        except RecursionError:
            raise ValueError("the pattern nests its groups too deeply; write fewer parentheses inside one another") from None
        if self._width.least == 0:
            raise ValueError("the pattern matches the empty text, which is everywhere; write one that needs at least one character")
        if bounded:
            _check_bound(pattern, self._width)
        if self._width.most is None or self._width.most > MOST_AHEAD:
            _check_ahead(pattern, self._expression, self._width.most)
        self._rule = rule
        self._kind = kind
        self._begun = _compiled_beginnings(pattern, options) if self._width.most is not None else None
        self.before = self.longest or 0

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int | None:
        """The longest match, and one character on either side for word boundaries."""
        return None if self._width.most is None else self._width.most + 2

    def opens_at(self, text: Scanned) -> int:
        """The first place from which the text may be the beginning of a match; 0 where that is not known."""
        if self._begun is None:
            return 0
        original = text.original
        low = max(0, len(original) - (self.longest or 0))
        encoded = Encoded(original[low:])
        match = self._begun.search(encoded.data)
        return 0 if match is None else low + encoded.char(match.start())

    def scan(self, text: Scanned) -> Sequence[Finding]:
        encoded = Encoded(text.original)
        return [
            Finding(self._rule, self._kind, encoded.char(match.start()), encoded.char(match.end()))
            for match in self._expression.finditer(encoded.data)
            if match.end() > match.start()
        ]


def _compiled_beginnings(pattern: str, options: re2.Options) -> re2._Regexp | None:
    """An expression for a text's end that may be the beginning of a match; None where there is none, or where it is too large."""
    try:
        compiled = re2.compile(f"(?:{_Beginnings(pattern).whole()})\\z".encode(), options=options)
    except (_Unclear, RecursionError, re2.error):
        return None
    return compiled if compiled.programsize <= 2 * MAX_PROGRAM else None


def _refused(pattern: str, error: re2.error) -> str:
    """What RE2 says, and where the part that it names begins."""
    said = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error.args[0])
    part = said.rpartition(": ")[2]
    at = pattern.find(part) if part and part != said else -1
    hint = "; RE2 has no look-ahead, look-behind or back-references" if re.search(r"\(\?<?[=!]|\\[1-9]", pattern) else ""
    return f"RE2 refuses the pattern: {said}" + (f", at character {at + 1}" if at >= 0 else "") + hint


def _check_ahead(pattern: str, expression: re2._Regexp, most: int | None) -> None:
    """Refuse an expression such as `a(.*z)?`: of a text of many `a` each is a match, and for each RE2 looks for a `z` to the end of the
    text, which takes the square of its length. It is tried on repetitions of the characters and words that stand in it, so that usual
    expressions of this kind are found, and not all.

    Raises:
        ValueError: says which text shows it.
    """
    chars = list(dict.fromkeys([*re.sub(r"[\\\[\](){}|?*+^$]", "", pattern), "a", "1"]))[:MAX_PROBES]
    pumps = [*chars, *re.findall(r"[A-Za-z0-9]{2,8}", pattern)][: 2 * MAX_PROBES]
    length = min(most or PROBED_CHARS, PROBED_CHARS) - 1
    for pump in pumps:
        text = (pump * length)[:length]
        short = expression.match(text.encode())
        if short is None or short.end() > length // 4:
            continue
        for end in chars:
            far = expression.match((text + end).encode())
            if far is not None and far.end() > length // 2:
                raise ValueError(
                    f"a match of the pattern may be short or go on for long: of {pump * 4!r}… up to {end!r}, each {pump!r} would be "
                    f"followed to the end of the text; let no more than {MOST_AHEAD} characters follow, or leave that part out"
                )


def _check_bound(pattern: str, found: Width) -> None:
    if found.most is None:
        sign = pattern[found.at : found.at + 8] if found.at >= 0 else ""
        remedy = "write {1,20} or another upper bound" if found.why == "has no upper bound" else "leave it out"
        raise ValueError(
            f"what stands at character {found.at + 1} of the pattern ({sign!r}…) {found.why}, and a stream needs a bound: {remedy}"
        )
    if found.most > MAX_LONGEST:
        raise ValueError(
            f"the pattern matches up to {found.most} characters; a stream holds back at most {MAX_LONGEST}, write smaller repetitions"
        )
