"""Words of a question: normal form, tokens and stems.

A token keeps the way it was written, because a capital letter or an underscore may mark a name or an identifier; every comparison uses the
folded form. Hyphens separate words, so that `top-up` and `top up` are equal; an apostrophe does not (`don't` is one token).
"""

import re
import unicodedata
from typing import Final, NamedTuple

from cache.semantic.lexicon import CONTRACTIONS, ENGLISH, IRREGULAR, LEXICONS, UNINFLECTED, word_set

WORD: Final = "word"
NUMBER: Final = "number"
IDENTIFIER: Final = "identifier"
SIGN: Final = "sign"
"""A sign of currency, percent or arithmetic."""
_PLAIN: Final = "plain"
STOP: Final = "stop"
"""The end of a sentence or clause."""

_FORMS: Final = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201b": "'", "\u02bc": "'", "\u00b4": "'"}
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a\u300c\u300d", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", None)
    | {"\u00d7": "*", "\u00f7": "/"}
)

# No two repetitions may fail over the same characters again and again: possessive ones and what stands behind a match see to it.
_TOKEN: Final = re.compile(
    r"""
    (?P<plain>[A-Za-z]?[a-z]+|[A-Z]+)(?=[\s?,!]|\.(?:\s|\Z)|\Z)[ ,]*       # most words, before anything costly is tried
  | (?P<identifier>
        (?:https?|ftp)://[^\s<>"'`]*[\w/] | www\.[^\s<>"'`]*[\w/]          # addresses
      | (?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+                                       # e-mail
      | [A-Za-z]:\\[\w\\.-]*\w                                             # paths
      | (?<![\w/])(?:~|\.{1,2})?/[\w.+-]*\w(?:/[\w.+-]*\w)*/?
      | (?<![\w/])\w++(?:/\w++)++\.\w+
      | v?\d+(?:\.\d+){2,}(?:-?[a-z]+\d*)?(?!\w) | (?<!\w)[vV]\d+(?:\.\d+)*(?!\w)   # versions
      | (?<!\w)0[xX][0-9a-fA-F]+(?!\w)
      | (?<!\w)[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?!\w)
      | (?<!\w)[A-Za-z](?:\+\+|\#)(?!\w)                                   # C++, C#
      | (?<!\w)-{1,2}[A-Za-z][\w-]+(?!\w)                                  # options of a command
      | (?<!\w)[A-Za-z]+(?:-\d+)+(?!\w)                                    # CVE-2021-1, covid-19
      | [A-Za-z]\w*(?:\.[a-z_]\w+)+ | \w+\(\)                              # example.com, module.name, call()
      | \w*[^\W_]_\w* | _\w+ | (?<!\w)[A-Za-z]?[a-z]+[A-Z]\w*             # snake_case, camelCase
      | (?<!\w)[^\W\d_]+\d\w* | (?<!\w)(?!\d+(?:st|nd|rd|th)\b)(?=\d*[a-z]*\d+[a-z]+\d)[\da-z]+   # E404, a1b2
    )
  | (?P<number>\d+(?:[:/]\d+)+ | \d+(?:-\d+){2,} | (?:(?<![\w.,)-])-)?\d+(?:[.,]\d+)*)
  | (?P<word>[^\W\d_]+(?:'[^\W\d_]+)*'?)
  | (?P<sign>[$€£¥₹₿%‰°] | (?<=\d)\s*[+*^<>=]\s*(?=-?\d))
  | (?P<stop>[.!?;:\n¿¡•])
    """,
    re.VERBOSE,
)

_THOUSANDS: Final = re.compile(r"-?\d{1,3}(?:[.,]\d{3})+")
_VOWEL: Final = re.compile(r"[aeiouy]")
_LAST: Final = frozenset("sgdye")
"""The last letters of all endings that `stem` takes."""
_DOUBLED: Final = frozenset("bdgmnprt")


class TextToken(NamedTuple):
    """One token of a text."""

    kind: str
    """`word`, `number`, `identifier`, `sign` or `stop`."""
    folded: str
    """Without case and accents; a number without separators of thousands."""
    shown: str
    """As it was written."""


def normal(text: str) -> str:
    """The text in Unicode's compatibility form (NFKC), with plain quotes and dashes and without invisible characters."""
    return (text if text.isascii() else unicodedata.normalize("NFKC", text).translate(_FORMS)).replace("``", '"').replace("''", '"')


def tokens(text: str) -> list[TextToken]:
    """The tokens of a text in normal form, contractions taken apart (`can't` is `can` and `not`)."""
    found: list[TextToken] = []
    new = tuple.__new__  # half of the time of `TextToken(…)`
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == _PLAIN:
            shown = match[_PLAIN]
            folded = shown.lower()
            parts = CONTRACTIONS.get(folded)
            if parts is None:
                found.append(new(TextToken, (WORD, folded, shown)))
            else:
                found += [TextToken(WORD, part, part) for part in parts]
            continue
        shown = match.group()
        if kind == WORD:
            shown = shown.rstrip("'")
            folded = folded_word(shown)
            parts = CONTRACTIONS.get(folded)
            if parts is not None:
                found += [TextToken(WORD, part, part) for part in parts]
                continue
            stem, apostrophe, rest = folded.partition("'")
            if apostrophe:
                found += _apart(stem, rest, shown)
                continue
            found.append(TextToken(WORD, folded, shown))
        elif kind == NUMBER:
            found.append(TextToken(NUMBER, _number(shown), shown))
        elif kind == IDENTIFIER:
            found.append(TextToken(IDENTIFIER, shown.casefold(), shown))
        else:
            found.append(TextToken(SIGN, shown.strip(), shown) if kind == SIGN else TextToken(STOP, shown, shown))
    return found


def _apart(stem: str, rest: str, shown: str) -> list[TextToken]:
    """A word with an apostrophe: `don't`, `Brian's`, `we'll`, `l'hôtel`, `O'Brien`."""
    written = shown[: len(stem)]
    if rest == "t" and stem.endswith("n"):
        verb = stem.removesuffix("n")
        return [TextToken(WORD, verb, verb), TextToken(WORD, "not", "not")]
    if rest == "s":
        if stem in _WITH_IS:
            return [TextToken(WORD, stem, written), TextToken(WORD, "is", "is")]
        return [TextToken(WORD, stem, written)]
    if rest in _ENDINGS:
        return [TextToken(WORD, stem, written), TextToken(WORD, _ENDINGS[rest], _ENDINGS[rest])]
    if len(stem) <= 2 or stem in ("qu", "dell", "nell", "sull", "all", "un"):
        if stem == "o":
            return [TextToken(WORD, stem + rest, shown.replace("'", ""))]
        return [TextToken(WORD, stem, written), TextToken(WORD, rest, shown[len(stem) + 1 :])]
    return [TextToken(WORD, stem + rest, shown.replace("'", ""))]


_ENDINGS: Final = {"re": "are", "m": "am", "ll": "will", "ve": "have", "d": "would"}
_WITH_IS: Final = word_set("what how where when who why that there it he she this here")


def folded_word(word: str) -> str:
    """A word without case and accents."""
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", "".join(c for c in parts if not 0x300 <= ord(c) <= 0x36F))


def _number(written: str) -> str:
    """A number without separators of thousands and trailing zeros of a fraction: `1,000` and `1000.0` are `1000`."""
    if any(separator in written[1:] for separator in "-:/"):
        return written
    if _THOUSANDS.fullmatch(written) and not (written.count(".") == 1 and "," not in written):
        return written.replace(",", "").replace(".", "")
    plain = written.replace(",", ".") if written.count(",") == 1 and "." not in written else written.replace(",", "")
    if plain.count(".") == 1:
        plain = plain.rstrip("0").rstrip(".")
    sign, digits = ("-", plain[1:]) if plain.startswith("-") else ("", plain)
    whole, dot, fraction = digits.partition(".")
    return f"{sign}{whole.lstrip('0') or '0'}{dot}{fraction}"


def stem(word: str) -> str:
    """A word without its English ending: `resetting`, `resets` and `reset` are one stem.

    A few rules in the manner of Porter's first step ("An algorithm for suffix stripping", 1980), made coarse: two words with one stem are
    compared as equal, so no rule takes more than an inflection.
    """
    known = _STEMS.get(word)
    return known if known is not None else _without_ending(word)


def _without_ending(word: str) -> str:
    if word[-1:] not in _LAST or len(word) < 4 or not word.isascii():
        return word
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        if word.endswith("ies") and len(word) > 4:
            return word[:-3] + "i"
        word = word[:-2] if word.endswith(("sses", "ches", "shes", "xes", "zes")) else word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending):
            rest = word[: -len(ending)]
            if len(rest) >= 3 and _VOWEL.search(rest):
                return _bare(rest)
            return word
    if word.endswith("ly") and len(word) > 5:
        return _bare(word[:-2])
    return _bare(word)


def _bare(rest: str) -> str:
    """The stem without a doubled consonant or a silent e; a final y as in `carried`."""
    if len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] in _DOUBLED:
        return rest[:-1]
    if rest.endswith("y") and rest[-2] not in "aeo":
        return rest[:-1] + "i"
    return rest.removesuffix("e") if len(rest) > 3 else rest


_STEMS: Final = {word: _without_ending(word) for word in LEXICONS[ENGLISH].function}
_STEMS.update({word: _without_ending(root) for word, root in IRREGULAR.items()})
_STEMS.update({word: word for word in UNINFLECTED})
"""Stems that are known without looking at endings: exceptions, and the words that every question is full of."""
