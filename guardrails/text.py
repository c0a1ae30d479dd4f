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
from bisect import bisect_left, bisect_right
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
_CLUSTERS: Final = regex.compile(r"(?s).[\p{M}\u1160-\u11ff\uff9e\uff9f]{0,31}")
"""A character with the marks that may join it; 31 bounds what one character can carry, longer runs are cut."""
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
        self._casefolds = casefolds

    def __missing__(self, cluster: str) -> str:
        form = unicodedata.normalize("NFKC", cluster)
        if self._casefolds:
            form = unicodedata.normalize("NFKC", form.casefold())
        form = "".join([_mapped(char, self._alike) for char in form])
        if self._casefolds:
            form = form.lower()  # tag characters of capital letters
        if len(cluster) == 1 and len(self) < _MAX_KEPT:
            self[cluster] = form
        return form


_PLAIN_OF: Final = _Table(_CASED, casefolds=False)
_FOLDED_OF: Final = _Table(_FOLDED, casefolds=True)


def _same(begin: int, end: int) -> tuple[int, int]:
    return begin, end


def _form(text: str, table: _Table) -> tuple[str, Span]:
    chars = set(text)
    if not chars.isdisjoint(_COMPOSING):
        return _form_of_clusters(text, table)
    form = "".join([table[char] for char in text])
    odd = "".join([char for char in chars if len(table[char]) != 1])
    if not odd:
        return form, _same
    # each character beside the odd ones is one character of the form, so that only the places of odd ones are noted
    places = [match.start() for match in re.finditer(f"[{re.escape(odd)}]", text)]
    lengths = [len(table[text[place]]) for place in places]
    starts = [place + shift for place, shift in zip(places, accumulate((n - 1 for n in lengths), initial=0), strict=False)]

    def origin(at: int) -> int:
        last = bisect_right(starts, at) - 1
        if last < 0:
            return at
        return places[last] + max(0, at - starts[last] - lengths[last] + 1)

    def span(begin: int, end: int) -> tuple[int, int]:
        first = origin(begin)
        return first, origin(end - 1) + 1 if end > begin else first

    return form, span


def _form_of_clusters(text: str, table: _Table) -> tuple[str, Span]:
    clusters = _CLUSTERS.findall(text)
    parts = [table[cluster] for cluster in clusters]
    origins = list(accumulate(map(len, clusters), initial=0))
    starts = list(accumulate(map(len, parts), initial=0))

    def span(begin: int, end: int) -> tuple[int, int]:
        first = origins[bisect_right(starts, begin) - 1]
        return first, max(first, origins[bisect_left(starts, end)])

    return "".join(parts), span


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
_URL: Final = re2.compile(rb"[A-Za-z0-9_.~+&=/:?#%-]{9,}", options=LATIN1)
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
    encoded = Encoded(text)
    if text.count("%") >= MIN_ESCAPES:
        for match in _URL.finditer(encoded.data):
            if match.group().count(b"%") >= MIN_ESCAPES:
                yield encoded.char(match.start()), encoded.char(match.end())
    for match in _BASE64.finditer(encoded.data):
        begin, end = match.span()
        span = encoded.data[begin:end]
        # names of code are the most of what looks like base64: sixteen characters of base64 have a capital letter but for one in 10,000
        if not span.islower() or not span.strip(_HEX_DIGITS):
            yield encoded.char(begin), encoded.char(end)


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
