"""A text with its normalised forms, each with the way back to the characters it was made from. Pure.

Two forms exist. `plain` keeps upper and lower case: NFKC, without characters that have no width, look-alike letters of other scripts as the
ASCII letters of the same case, digits of all scripts as ASCII digits. `folded` is casefolded as well. NFKC is taken of each character
together with the combining marks that follow it, so that every character of a form knows its origin.

A letter that looks like an ASCII letter in only one of its cases (the Cyrillic VE) is mapped in both cases in `folded`, so that words of
that script still compare without regard to case. Rules that compare with `folded` therefore fold their own words by `fold`.

Tag characters (U+E0020 to U+E007E), which nobody sees and models read as ASCII, become those ASCII characters.
"""

import base64
import binascii
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
import re2
import regex

from guardrails.ports import Scanned

LATIN1: Final = re2.Options()
"""For expressions over bytes whose characters are all ASCII."""
LATIN1.encoding = re2.Options.Encoding.LATIN1
LATIN1.log_errors = False

CALM: Final = (
    r"\u00a1-\u00a7\u00a9\u00ab\u00ac\u00ae\u00b0\u00b1\u00b6\u00b7\u00bb\u00bf-\u00de\u00e0-\u012f\u0141-\u0148\u014a-\u017e"
    r"\u2010\u2012-\u2016\u2018-\u2023\u2030-\u2032\u203b\u20a0-\u20a7\u20a9-\u20c0\u2190-\u21ff\u2500-\u27bf\u3001-\u3029\u3041-\u3096"
    r"\u30a0-\u30fe\u4e00-\u9fff\uac00-\ud7a3\uff01\uff08\uff09\uff0c\uff1b\uff1f\U0001f300-\U0001f6d7\U0001f900-\U0001fa53"
)
"""Characters beside ASCII, as the inside of a class of `re`, that normalisation leaves as they are or makes one of `,;!?()`: letters of
western and central Europe, kana, Han, Hangul, quotation marks, arrows, emoji. Where no others stand, what holds for ASCII holds for a text.
"""

BREAKS: Final = ' \n\t"`'
"""Characters that never join a mark that follows, and that no value of a built-in rule has inside but key blocks and grouped numbers."""

Span = Callable[[int, int], tuple[int, int]]
"""Maps a span of a form to the span of the original that it was made from."""

INVISIBLE: Final = frozenset(
    chr(code)
    for begin, end in (
        (0x00AD, 0x00AD),  # soft hyphen
        (0x034F, 0x034F),  # combining grapheme joiner
        (0x061C, 0x061C),
        (0x115F, 0x1160),  # Hangul fillers
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x200B, 0x200F),  # zero width, and directional marks
        (0x202A, 0x202E),
        (0x2060, 0x206F),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),  # variation selectors
        (0xFEFF, 0xFEFF),
        (0xFFA0, 0xFFA0),
        (0xE0000, 0xE001F),
        (0xE007F, 0xE0FFF),
    )
    for code in range(begin, end + 1)
)
"""Characters without width. The forms leave them out."""

# one string of look-alikes and one of the ASCII letters, position by position
_UPPER: Final = ("АВЕЅІЈКМНОРСТУХԌԚԜΑΒΕΖΗΙΚΜΝΟΡΤΥΧՕႽꓐꓑꓒ", "ABESIJKMHOPCTYXGQWABEZHIKMNOPTYXOSBPD")
_LOWER: Final = ("авеѕіјкмнорстухһԁԛԝӏαβεικνορτυχωγηζμօոսհցıȷɑɡɩʋⅼ", "abesijkmhopctyxhdqwlabeikvoptuxwynzmonuhgijagivl")
_CASED: Final = dict(zip(*_UPPER, strict=True)) | {a: b for a, b in zip(*_LOWER, strict=True) if a not in "вкмнтβεικτωγηζμ"}
"""Look-alikes in the same case; a lower-case letter that only resembles a small capital is left as it is."""
_FOLDED: Final = {upper.casefold(): ascii_.lower() for upper, ascii_ in zip(*_UPPER, strict=True)} | dict(zip(*_LOWER, strict=True))

_COMPOSING: Final = frozenset(
    char for char in map(chr, range(0x300, 0x1F000)) if unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff"
) | {"\uff9e", "\uff9f"}
"""Characters that NFKC may join with the one before: combining marks, vowels and finals of Hangul, half-width voice marks. Above U+1F000
only variation selectors are marks."""
_MARKS: Final = r"[\p{M}\u1160-\u11ff\uff9e\uff9f]"
"""Marks that may join the character before; 31 bounds what one character can carry, longer runs are cut."""
WEIGHTLESS: Final = regex.compile(
    r"[[\p{M}\p{Cf}\u115f-\u11ff\u180b-\u180f\u2060-\u206f\u3164\uff9e\uff9f\uffa0\U000e0000-\U000e0fff]--[\U000e0020-\U000e007e]]",
    regex.VERSION1,
)
"""What the forms leave out or join to the character before it: characters without width, combining marks, vowels and finals of
Hangul, half-width voice marks. Tag characters stand for ASCII, so they take room."""

_OTHER: Final = re.compile(r"[^\x00-\x7f]")
_MAX_REPLACED: Final = 24
"""Characters of a text that are replaced one after the other, each in one pass over the text; more cost less in a pass by characters."""
_MAX_KEPT: Final = 1 << 16
"""Characters whose forms are remembered, so that a table stays under about 10 MB whatever callers send."""


def _mapped(char: str, alike: Mapping[str, str]) -> str:
    if char in INVISIBLE:
        return ""
    if 0xE0020 <= ord(char) <= 0xE007E:
        return chr(ord(char) - 0xE0000)
    ascii_ = alike.get(char)
    if ascii_ is not None:
        return ascii_
    digit = unicodedata.decimal(char, None)
    return char if digit is None else str(digit)


class _Table(dict[str, str]):
    """What a character, or one with its marks, becomes; filled as characters are seen."""

    def __init__(self, alike: Mapping[str, str], *, casefolds: bool) -> None:
        super().__init__()
        self._alike = alike
        self.casefolds: Final = casefolds

    def __missing__(self, cluster: str) -> str:
        form = unicodedata.normalize("NFKC", cluster)
        if self.casefolds:
            form = unicodedata.normalize("NFKC", form.casefold())
        form = "".join([_mapped(char, self._alike) for char in form])
        if self.casefolds:
            form = form.lower()  # tag characters of capital letters
        if len(cluster) == 1 and len(self) < _MAX_KEPT:
            self[cluster] = form
        return form


_PLAIN_OF: Final = _Table(_CASED, casefolds=False)
_FOLDED_OF: Final = _Table(_FOLDED, casefolds=True)


def _same(begin: int, end: int) -> tuple[int, int]:
    return begin, end


def _form(text: str, table: _Table) -> tuple[str, Span]:
    others = _OTHER.findall(text)
    chars = set(others)
    dense = len(others) > len(text) // 4
    if chars.isdisjoint(_COMPOSING):
        form = _joined(text, table, chars, dense=dense)
        odd = "".join([char for char in chars if len(table[char]) != 1])
        if not odd:
            return form, _same
        places = [match.start() for match in re.finditer(f"[{re.escape(odd)}]", text)]
        return form, _span([(at, 1, len(table[text[at]])) for at in places])
    # characters that marks may join become one part of the form together; what stands between them is done as above
    parts: list[str] = []
    irregular: list[tuple[int, int, int]] = []
    odd = "".join([char for char in chars if len(table[char]) != 1])
    special = regex.compile(rf"(?s)[{regex.escape(odd)}]{_MARKS}{{0,31}}|.{_MARKS}{{1,31}}" if odd else rf"(?s).{_MARKS}{{1,31}}")
    done = 0
    for match in special.finditer(text):
        begin, end = match.span()
        if begin > done:
            parts.append(_joined(text[done:begin], table, chars, dense=dense))
        part = table[match.group()]
        parts.append(part)
        irregular.append((begin, end - begin, len(part)))
        done = end
    parts.append(_joined(text[done:], table, chars, dense=dense))
    return "".join(parts), _span(irregular)


def _joined(text: str, table: _Table, chars: set[str], *, dense: bool) -> str:
    """The forms of characters that no mark joins, one after the other."""
    folds = table.casefolds
    if text.isascii():
        return text.lower() if folds else text
    # the capital sigma is lowered by its place in the word; the table folds both small ones into one
    changed = [char for char in chars if table[char] != (char.lower() if folds else char) or char == "\u03a3"]
    if dense or len(changed) > _MAX_REPLACED:
        return "".join([table[char] for char in text])
    # what a character becomes never changes a second time, so that one may be replaced after the other
    for char in changed:
        text = text.replace(char, table[char])
    return text.lower() if folds else text


def _span(irregular: list[tuple[int, int, int]]) -> Span:
    """Maps spans of a form in which every character beside some parts is one character of the original.

    Args:
        irregular: these parts in order, each with its begin and its length in the original and its length in the form.
    """
    places, lengths, becoming = ([part[at] for part in irregular] for at in range(3))
    shifts = accumulate((new - old for old, new in zip(lengths, becoming, strict=True)), initial=0)
    starts = [place + shift for place, shift in zip(places, shifts, strict=False)]

    def origin(at: int) -> tuple[int, int]:
        last = bisect_right(starts, at) - 1
        if last < 0:
            return at, at + 1
        within = at - starts[last] - becoming[last]
        if within < 0:
            return places[last], places[last] + lengths[last]
        return places[last] + lengths[last] + within, places[last] + lengths[last] + within + 1

    def span(begin: int, end: int) -> tuple[int, int]:
        first = origin(begin)[0]
        return first, max(first, origin(end - 1)[1]) if end > begin else first

    return span


class Text(Scanned):
    """A text and its forms, each made when it is asked for first. An ASCII text has no map: it is its own plain form."""

    __slots__ = ("_folded", "_original", "_plain")

    def __init__(self, original: str) -> None:
        self._original = original
        self._folded: tuple[str, Span] | None = None
        self._plain: tuple[str, Span] | None = None

    @property
    def original(self) -> str:
        return self._original

    @property
    def folded(self) -> str:
        return self._folding()[0]

    def span(self, begin: int, end: int) -> tuple[int, int]:
        return self._folding()[1](begin, end)

    def plain(self) -> tuple[str, Span]:
        """The form that keeps upper and lower case, and what maps its spans to the original."""
        if self._plain is None:
            self._plain = (self._original, _same) if self._original.isascii() else _form(self._original, _PLAIN_OF)
        return self._plain

    def _folding(self) -> tuple[str, Span]:
        if self._folded is None:
            self._folded = (self._original.lower(), _same) if self._original.isascii() else _form(self._original, _FOLDED_OF)
        return self._folded


def plain(text: Scanned) -> tuple[str, Span]:
    """The form that keeps upper and lower case; another implementation of the port gives its original."""
    return text.plain() if isinstance(text, Text) else (text.original, _same)


def fold(words: str) -> str:
    """Words of a rule as they stand in `folded`."""
    return Text(words).folded


def last_sure(text: Scanned) -> int:
    """The characters of `folded` that stay as they are whatever follows: all but those of the last character of the original that takes
    room, which a combining mark may still change."""
    at = len(text.folded)
    if at == 0:
        return 0
    last = text.span(at - 1, at)[0]
    while at > 0 and text.span(at - 1, at)[0] == last:
        at -= 1
    return at


def held_from(text: Scanned, at: int) -> int:
    """Where a stream is held back in the original if the characters of `folded` from `at` on may belong to a match that is open: there, and
    at the latest at the last character of all, even one without width, because a combining mark would become part of it."""
    original = text.original
    last = len(original) - 1
    while last > 0 and original[last] in _COMPOSING:
        last -= 1
    return max(0, last) if at >= len(text.folded) else min(last, text.span(at, at + 1)[0])


def last_break(form: str, breaks: str = BREAKS) -> int:
    """Where the last of some characters stands; 0 where none does."""
    return max(0, *map(form.rfind, breaks))


class Encoded:
    """A form as UTF-8, for automata that read bytes, with the way back from bytes to characters.

    A lone surrogate, which JSON can carry and UTF-8 cannot, counts as a question mark.
    """

    __slots__ = ("_at_byte", "_at_char", "ascii", "data")

    def __init__(self, form: str) -> None:
        self.data = form.encode("utf-8", "replace")
        self.ascii = len(self.data) == len(form)
        self._at_byte = 0
        self._at_char = 0

    def char(self, byte: int) -> int:
        """The character that begins at a byte. Asked in rising order it costs one pass over the text."""
        if self.ascii:
            return byte
        if byte < self._at_byte:
            self._at_byte = self._at_char = 0
        self._at_char += len(self.data[self._at_byte : byte].decode("utf-8", "ignore"))
        self._at_byte = byte
        return self._at_char


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """What an encoded part of a text says."""

    text: str
    begin: int
    """Where the outermost encoded part begins in the original text, in characters."""
    end: int
    depth: int
    """How often it was decoded: 1 for what stands in the text itself."""


MAX_SPANS: Final = 32
"""Decoded spans of one text at most."""
MAX_CANDIDATES: Final = 512
"""Spans that are tried at most: identifiers of code look like base64."""
MAX_DECODED_BYTES: Final = 64 * 1024
"""Bytes that all spans of a text may decode to, together."""
MAX_DEPTH: Final = 3
MIN_ESCAPES: Final = 3
"""A span is URL-encoded from this many `%41` on; fewer stand in any link."""

_BASE64: Final = re2.compile(rb"[A-Za-z0-9+/_-]{16,}={0,2}", options=LATIN1)
_URL_CHARS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~+&=/:?#%-"
_URL: Final = re.compile(f"[{_URL_CHARS}]+")
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_HEX_DIGITS: Final = b"0123456789abcdef"
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})+")


def decoded_spans(text: str, depth: int = 1) -> list[Decoded]:
    """The parts of a text that are base64, hexadecimal digits or URL-encoded and decode to readable UTF-8, in order.

    Args:
        text: the original text.
        depth: how many layers are taken off, 1 to `MAX_DEPTH`.

    `MAX_SPANS`, `MAX_CANDIDATES` and `MAX_DECODED_BYTES` bound what is done; what lies beyond them is not decoded.

    Raises:
        ValueError: the depth is out of its bounds.
    """
    if not 1 <= depth <= MAX_DEPTH:
        raise ValueError(f"depth is {depth}; it lies between 1 and {MAX_DEPTH}")
    spans: list[Decoded] = []
    candidates = MAX_CANDIDATES
    room = MAX_DECODED_BYTES
    layer: Iterable[Decoded] = [Decoded(text, 0, len(text), 0)]
    for level in range(1, depth + 1):
        below: list[Decoded] = []
        for outer in layer:
            for begin, end in _encoded(outer.text):
                if candidates == 0 or len(spans) + len(below) == MAX_SPANS:
                    return sorted(spans + below, key=_begin)
                candidates -= 1
                data = _decoded(outer.text[begin:end], room)
                if data is None:
                    continue
                room -= len(data.encode("utf-8", "replace"))
                below.append(Decoded(data, begin, end, level) if level == 1 else Decoded(data, outer.begin, outer.end, level))
        spans += below
        layer = below
    return sorted(spans, key=_begin)


def _begin(span: Decoded) -> int:
    return span.begin


def _encoded(text: str) -> Iterator[tuple[int, int]]:
    """The spans that may be encoded: URL-encoded ones, then base64 and hexadecimal digits."""
    if text.count("%") >= MIN_ESCAPES:
        yield from _url_encoded(text)
    encoded = Encoded(text)
    for match in _BASE64.finditer(encoded.data):
        begin, end = match.span()
        span = encoded.data[begin:end]
        # names of code are the most of what looks like base64: sixteen characters of base64 have a capital letter but for one in 10,000
        if not span.islower() or not span.strip(_HEX_DIGITS):
            yield encoded.char(begin), encoded.char(end)


def _url_encoded(text: str) -> Iterator[tuple[int, int]]:
    """The runs of characters of URLs, of nine or more, with enough `%41` in them; only where such stand the runs are looked at."""
    done = 0
    for escape in _ESCAPE.finditer(text):
        if escape.start() < done:
            continue
        begin = done + len(text[done : escape.start()].rstrip(_URL_CHARS))
        run = _URL.match(text, begin)
        done = run.end() if run is not None else escape.end()
        if run is not None and done - begin >= 9 and len(_ESCAPE.findall(text, begin, done)) >= MIN_ESCAPES:
            yield begin, done


def _decoded(written: str, room: int) -> str | None:
    """What an encoded span says, or None where it says nothing readable or more than there is room for."""
    if "%" in written:
        return _readable(unquote_to_bytes(written), room) if len(_ESCAPE.findall(written)) >= MIN_ESCAPES else None
    if len(written) % 2 == 0 and _HEX.fullmatch(written):
        return _readable(bytes.fromhex(written), room)
    body = written.rstrip("=")
    if len(body) % 4 == 1:
        return None
    try:
        data = base64.b64decode(body.replace("-", "+").replace("_", "/") + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return _readable(data, room)


def _readable(data: bytes, room: int) -> str | None:
    if not data or len(data) > room:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", " ").replace("\t", " ").replace("\r", " ").isprintable() else None
