r"""Tokens that an operator placed in prompts or documents, wherever they turn up. Pure; linear in the text's length.

A token is found as its letters and digits, in any case and with look-alike letters, with up to `GAP_CHARS` other characters (spaces,
hyphens, line breaks) between two of them, and so also in hexadecimal digits. Characters that are written as `%6b`, `\x6b`, `\u006b` or
`&#107;` are read as what they stand for, and one of these may stand in a gap. In base64 a text of eight bytes and more leaves characters
that depend on nothing but its bytes, at each of the three places where it may begin; these are looked for, for the token as written, in
lower and in upper case.
"""

import base64
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import ahocorasick

from guardrails.ports import Finding, Scanned
from guardrails.text import fold, held_from, last_sure, plain

VERSION: Final = "canary 1"
LEAST_CHARS: Final = 8
"""Letters and digits of a token; a shorter one would stand in other texts by chance, and base64 would hide it."""
MAX_CHARS: Final = 100
MAX_TOKENS: Final = 100
GAP_CHARS: Final = 3
"""Characters between two characters of a token."""
_ESCAPE: Final = re.compile(
    r"%([0-9a-f]{2})|\\x([0-9a-f]{2})|\\u00([0-9a-f]{2})|&#x0{0,2}([0-9a-f]{2});|&#0{0,2}([0-9]{2,3});", re.IGNORECASE
)
_ESCAPE_CHARS: Final = 8
"""The longest escape."""
_ESCAPES_OPEN: Final = ("%", "\\", "&")
_NO_BASE64: Final = re.compile(r"[^A-Za-z0-9+/]+")
_NO_WORD: Final = re.compile(r"[\W_]+")
_WITHOUT: Final = {without: {code: None for code in range(128) if without.match(chr(code))} for without in (_NO_BASE64, _NO_WORD)}
"""For ASCII, where a table is twenty times faster than an expression."""
_STANDARD: Final = {ord("-"): "+", ord("_"): "/"}
"""From base64 for addresses to common base64."""

Origin = Callable[[int, int], tuple[int, int]]


class _Squeezed:
    """A form with the characters alone that tokens are made of. Where they stood is found out when it is asked for first, as most texts
    have no token.

    Args:
        form: the text.
        without: matches what is left out.
        outer: maps spans of the form further, None where it is what is scanned.
    """

    __slots__ = ("_form", "_origins", "_outer", "_starts", "_without", "text")

    def __init__(self, form: str, without: re.Pattern[str], outer: Origin | None = None) -> None:
        self.text = form.translate(_WITHOUT[without]) if form.isascii() else without.sub("", form)
        self._form = form
        self._without = without
        self._outer = outer
        self._starts: list[int] = []
        self._origins: list[int] = []

    def origin(self, begin: int, end: int) -> tuple[int, int]:
        """The span of what is scanned that a span was made from."""
        place = self._inner(begin, end)
        return place if self._outer is None else self._outer(*place)

    def is_close(self, begin: int, end: int) -> bool:
        """Whether at most `GAP_CHARS` stand between two neighbours, and no more where they are written as escapes than one of these has."""
        first, last = self._inner(begin, end)
        places = [] if last - first == end - begin else [self._inner(at, at + 1) for at in range(begin, end)]
        if any(behind[0] - before[1] > GAP_CHARS for before, behind in pairwise(places)):
            return False
        outer = self._outer
        if outer is None:
            return True
        written = [outer(*place) for place in places or [(at, at + 1) for at in range(first, last)]]
        return all(behind[0] - before[1] <= _ESCAPE_CHARS for before, behind in pairwise(written))

    def _inner(self, begin: int, end: int) -> tuple[int, int]:
        if not self._starts:
            self._note()
        first = bisect_right(self._starts, begin) - 1
        last = bisect_right(self._starts, end - 1) - 1
        return self._origins[first] + begin - self._starts[first], self._origins[last] + end - self._starts[last]

    def _note(self) -> None:
        at = length = 0
        for match in self._without.finditer(self._form):
            if match.start() > at:
                self._starts.append(length)
                self._origins.append(at)
                length += match.start() - at
            at = match.end()
        if at < len(self._form):
            self._starts.append(length)
            self._origins.append(at)


class Canary:
    """Finds the tokens of a list.

    Args:
        rule: the id of the rule.
        tokens: 1 to `MAX_TOKENS`, each of at most `MAX_CHARS` characters, at least `LEAST_CHARS` of them letters or digits.

    Raises:
        ValueError: there are no or too many tokens, or one is too short or too long.
    """

    version = VERSION

    def __init__(self, rule: str, tokens: Sequence[str]) -> None:
        if not 1 <= len(tokens) <= MAX_TOKENS:
            raise ValueError(f"there are {len(tokens)} tokens; a rule has 1 to {MAX_TOKENS}")
        cores: set[str] = set()
        written: set[str] = set()
        encoded: set[str] = set()
        for token in tokens:
            core = _NO_WORD.sub("", fold(token))
            if len(core) < LEAST_CHARS:
                raise ValueError(
                    f"a token has {len(core)} letters and digits; it needs {LEAST_CHARS}, or it stands in other texts by chance"
                )
            if len(token) > MAX_CHARS:
                raise ValueError(f"a token has {len(token)} characters; at most {MAX_CHARS} can stand here")
            cases = {token, token.lower(), token.upper()}
            cores.add(core)
            written |= {core} | {case.encode().hex() for case in cases}
            encoded |= {part for case in cases for part in _in_base64(case.encode())}
        self._rule = rule
        self._written = _Needles(written)
        self._escaped = _Needles(cores)
        self._encoded = _Needles(encoded)

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        """The longest needle with a gap behind each character, or each written as an escape, and the escape that may begin at its end."""
        plainly = max(self._written.longest, self._encoded.longest) * (1 + GAP_CHARS)
        return max(plainly, self._escaped.longest * 2 * _ESCAPE_CHARS) + _ESCAPE_CHARS + 2

    def scan(self, text: Scanned) -> Sequence[Finding]:
        places = set()
        for form, needles, span in self._forms(text):
            places.update([span(*form.origin(*place)) for place in needles.places(form)])
        return [Finding(self._rule, "canary", begin, end) for begin, end in sorted(places)]

    @property
    def before(self) -> int:
        return self.longest

    @property
    def stirred_by(self) -> None:
        """None: what such a rule looks for may begin with any character."""
        return None

    def opens_at(self, text: Scanned) -> int:
        """Where a token may have begun that goes on behind the text."""
        folded = text.folded
        # what is not sure may still change: the last character, and an escape that has begun
        begun = [at for sign in _ESCAPES_OPEN if (at := folded.find(sign, max(0, len(folded) - _ESCAPE_CHARS))) >= 0]
        sure = min([last_sure(text), *begun])
        unsure = opens = held_from(text, sure)
        for form, needles, span in self._forms(text):
            for begin in needles.begun(form, partial(_reaches, form, span, unsure)):
                opens = min(opens, span(*form.origin(begin, begin + 1))[0])
        return opens

    def _forms(self, text: Scanned) -> Iterator[tuple[_Squeezed, "_Needles", Origin]]:
        """The forms of a text, the needles that are looked for in each, and what maps its spans to the original."""
        folded = text.folded
        yield _Squeezed(folded, _NO_WORD), self._written, text.span
        if any(sign in folded for sign in _ESCAPES_OPEN):
            read, origin = _unescaped(folded)
            yield _Squeezed(read, _NO_WORD, origin), self._escaped, text.span
        cased, span = plain(text)
        yield _Squeezed(cased.translate(_STANDARD), _NO_BASE64), self._encoded, span


class _Needles:
    """Texts that are looked for in squeezed forms."""

    def __init__(self, needles: set[str]) -> None:
        self._automaton = ahocorasick.Automaton()
        for needle in needles:
            self._automaton.add_word(needle, len(needle))
        self._automaton.make_automaton()
        self.longest = max(map(len, needles))
        self._beginnings = frozenset(needle[:count] for needle in needles for count in range(1, len(needle)))

    def places(self, form: _Squeezed) -> Iterator[tuple[int, int]]:
        """Where needles stand whose characters stand close enough together."""
        for last, length in self._automaton.iter(form.text):
            begin = last - length + 1
            if form.is_close(begin, last + 1):
                yield begin, last + 1

    def begun(self, form: _Squeezed, unsure: Callable[[int], bool]) -> Iterator[int]:
        """Where the longest beginning of a needle stands with which a form ends, and the same without each of the characters at its end
        that are unsure."""
        end = len(form.text)
        while end:
            for count in range(min(self.longest - 1, end), 0, -1):
                if form.text[end - count : end] in self._beginnings:
                    yield end - count
                    break
            end -= 1
            if not end or not unsure(end):
                return


def _reaches(form: _Squeezed, span: Origin, place: int, at: int) -> bool:
    """Whether a character of a form ends behind a place of the original."""
    return span(*form.origin(at, at + 1))[1] > place


def _unescaped(form: str) -> tuple[str, Origin]:
    """A folded form with escapes read, and what maps its spans back. Escapes of other than printable ASCII become a space."""
    parts: list[str] = []
    starts: list[int] = [0]
    origins: list[int] = [0]
    at = length = 0
    for match in _ESCAPE.finditer(form):
        length += match.start() - at
        parts.append(form[at : match.start()])
        digits = next(group for group in match.groups() if group)
        code = int(digits, 10 if match[5] else 16)
        parts.append(chr(code).lower() if 0x20 <= code < 0x7F else " ")
        # the character of the escape, then what stands behind it
        starts += (length, length + 1)
        origins += (match.start(), match.end())
        length += 1
        at = match.end()
    parts.append(form[at:])

    def origin(begin: int, end: int) -> tuple[int, int]:
        first = bisect_right(starts, begin) - 1
        last = bisect_right(starts, end - 1) - 1
        behind = origins[last] + end - starts[last]
        # the last character may be an escape, which ends where the text behind it begins
        is_escape = last % 2 == 1 and end - 1 == starts[last]
        return origins[first] + begin - starts[first], origins[last + 1] if is_escape else behind

    return "".join(parts), origin


def _in_base64(data: bytes) -> Iterator[str]:
    """The characters of base64 that the bytes alone decide, for the three places in a group of three at which they may begin."""
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        first = -(-8 * before // 6)
        yield text[first : 8 * (before + len(data)) // 6]
