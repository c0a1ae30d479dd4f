"""What decides the answer of a question, read from its text once.

The profile holds multisets (sorted tuples) of what the guard compares. It is a guess from the surface of a text: there is no grammar, no
dictionary and no knowledge of names behind it. Where a reading is open, the one is taken that makes more texts differ.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

import msgspec

from cache.semantic.contrasts import (
    BOUND_UNITS,
    DEGREES,
    DIRECTIONS,
    FILLERS_OF_DEGREE,
    FREQUENCIES,
    PARTICLE_VERBS,
    PARTICLES,
    PROPER,
    RATES,
    TIME_UNITS,
    UNITS,
)
from cache.semantic.lexicon import (
    AMOUNT,
    COUNT,
    DATE_COMPANY,
    DATE_NEEDS_COMPANY,
    ENGLISH,
    LEXICONS,
    SCALES,
    TENS,
    VOTES,
    WHEN,
    WHERE,
    WHO,
    WHY,
    Lexicon,
    word_set,
)
from cache.semantic.words import IDENTIFIER, NUMBER, SIGN, STOP, WORD, TextToken, normal, stem, tokens

Bag = tuple[str, ...]
"""A multiset: sorted members."""

MAX_WORDS: Final = 2_000
"""Tokens that are read. What comes later is one opaque member of `identifiers`, so that two long texts pass only when it is equal."""

MAX_AROUND: Final = 16
"""Words such as `than` whose sides are read."""


class Around(msgspec.Struct, frozen=True, gc=False):
    """What stands on both sides of a word such as `than`, `before` or `to`."""

    word: str
    left: frozenset[str]
    """Stems of content words."""
    right: frozenset[str]


class Profile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What decides the answer of a question."""

    language: str
    """ISO 639-1, or empty where the words do not say."""
    script: str
    """The script of most letters, as Unicode names it (`LATIN`); empty without letters."""
    numbers: Bag
    units: Bag
    dates: Bag
    negations: int
    quoted: Bag
    identifiers: Bag
    names: Bag
    degrees: Bag
    questions: Bag
    persons: Bag
    third_persons: Bag
    """`he` and `she`, each at most once."""
    parties: Bag
    """Names of several words as one member each, in their order in the text."""
    particles: frozenset[str]
    """`on`, `off`, `in` … of verbs such as `turn on`."""
    around: tuple[Around, ...]
    flags: frozenset[str]
    """`passive`, `or`, `and`, `used-to`, `past`, `future`, `yes-no`."""
    words: Bag
    """Stems of all words in their order."""
    known: frozenset[str]
    """Members of `words`."""
    content: Bag
    """Stems of the words that are not function words, and numbers and identifiers, in their order."""
    flat: str
    """All folded tokens, with a space before and after each."""


_LATIN: Final = re.compile(r"[A-Za-z]")
_QUOTED: Final = re.compile(r"\"([^\"\n]{1,400})\"|`([^`\n]{1,400})`|(?<!\w)'([^'\n]{2,400})'(?!\w)")
_PASSIVE: Final = re.compile(r" (?:is|are|was|were|be|been|being|gets?|got) (?:\S+ ){1,4}?by ")
_USED_TO: Final = re.compile(
    r"(?<! is)(?<! are)(?<! was)(?<! were)(?<! be)(?<! get)(?<! got)(?<! am)(?<! been) used to | did (?:\S+ )*?use to "
)
_PAST: Final = re.compile(r" (?:did|was|were|had) ")
_FUTURE: Final = re.compile(r" (?:will|shall|gonna) | (?:am|is|are) going to ")
_PRESENT: Final = re.compile(r" (?:do|does|is|are|am|has|have|can) ")
_PRICE: Final = re.compile(
    r" what (?:is|are|was|were|will|would) (?:the |your |my |a )?(?:\S+ ){0,1}?(?:prices?|costs?|fees?|charges?|amount) "
    r"| what (?:do|does|did|will|would) (?:\S+ ){1,4}?cost "
)
_NUMBER_OF: Final = re.compile(r" what (?:is|are|was|were) the (?:total )?number of ")
_REASON: Final = re.compile(r" (?:reasons?|what causes?|what caused) ")

_AUXILIARIES: Final = word_set("am is are was were do does did have has had can could will would shall should may might must")
_CUES: Final = word_set(
    "know tell understand see check explain wonder wondering find out ask show sure idea remember me us exactly about of on to from for by "
    "in at and then so but hi hello hey please ok okay since until or with also say curious info information whether learn determine"
)
_LATER_QUESTIONS: Final = word_set("how what which why who")
_SUBJECTS: Final = word_set("i you we they it he she one my the a there this that")
_PLACED: Final = frozenset({WHO, WHEN, WHERE, WHY})
"""Classes whose words also join clauses (`the day when …`), so that they count only where a question may begin."""
_PERSONS: Final = (
    dict.fromkeys(("i", "me"), "1")
    | dict.fromkeys(("you",), "2")
    | dict.fromkeys(("he", "him"), "3m")
    | dict.fromkeys(("she",), "3f")
    | dict.fromkeys(("they", "them"), "3p")
    | dict.fromkeys(("we", "us"), "1p")
)
_THIRD: Final = dict.fromkeys(("he", "him", "his", "himself"), "he") | dict.fromkeys(("she", "her", "hers", "herself"), "she")
_ORDER_WORDS: Final = DIRECTIONS | {"than", "before", "after"}


def profile(text: str) -> Profile:
    """The profile of a question; equal texts have equal profiles. It takes time in proportion to the text, up to `MAX_WORDS` tokens."""
    shown = normal(text)
    found = tokens(shown)
    rest = found[MAX_WORDS:]
    found = found[:MAX_WORDS]
    language = _language(found)
    lexicon = LEXICONS[language or ENGLISH]
    words = [t for t in found if t.kind == WORD]
    stems = [stem(t.folded) if t.kind == WORD else t.folded for t in found]
    reading = _Reading(found, stems, lexicon)
    names, parties = _names(found, reading.begins, lexicon)
    content = [
        (at, stems[at])
        for at, t in enumerate(found)
        if (t.kind == WORD and t.folded not in lexicon.function) or t.kind == NUMBER or t.kind == IDENTIFIER
    ]
    stemmed = tuple([stems[at] for at, t in enumerate(found) if t.kind == WORD])
    flat = " ".join(["", *[t.folded for t in (*found, *rest) if t.kind != STOP], ""])
    identifiers = [t.folded for t in found if t.kind == IDENTIFIER]
    if rest:
        identifiers.append(" ".join(t.folded for t in rest if t.kind != STOP))
    return Profile(
        language=language,
        script=_script(shown),
        numbers=tuple(sorted(reading.numbers)),
        units=tuple(sorted(reading.units)),
        dates=tuple(sorted(reading.dates)),
        negations=reading.negations,
        quoted=_quoted(shown),
        identifiers=tuple(sorted(identifiers)),
        names=tuple(sorted(names)),
        degrees=tuple(sorted(reading.degrees)),
        questions=_questions(found, reading.begins, language or ENGLISH, flat),
        persons=tuple([_PERSONS[t.folded] for t in words if t.folded in _PERSONS]),
        third_persons=tuple(sorted({_THIRD[t.folded] for t in words if t.folded in _THIRD})),
        parties=tuple(parties),
        particles=frozenset(reading.particles),
        around=_around(found, content) if lexicon is LEXICONS[ENGLISH] else (),
        flags=_flags(flat, words),
        words=stemmed,
        known=frozenset(stemmed),
        content=tuple([text for _, text in content]),
        flat=flat,
    )


def _language(found: Sequence[TextToken]) -> str:
    """By a vote of the function words that one language alone has. One vote is enough in a text of up to five words."""
    votes: dict[str, int] = {}
    for token in found:
        name = VOTES.get(token.folded)
        if name is not None:
            votes[name] = votes.get(name, 0) + 1
    if not votes:
        return ""
    ranked = sorted(votes.items(), key=lambda vote: -vote[1])
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        return ""
    return ranked[0][0] if ranked[0][1] > 1 or len(found) <= 5 else ""


def _script(shown: str) -> str:
    if shown.isascii():
        return "LATIN" if _LATIN.search(shown) else ""
    counts: dict[str, int] = {}
    for char in shown:
        if char.isalpha():
            name = "LATIN" if char < "\u0250" else unicodedata.name(char, "OTHER").partition(" ")[0]
            name = "CJK" if name in ("HIRAGANA", "KATAKANA") else name
            counts[name] = counts.get(name, 0) + 1
    return max(sorted(counts), key=lambda name: counts[name]) if counts else ""


def _quoted(shown: str) -> Bag:
    if '"' not in shown and "`" not in shown and "'" not in shown:
        return ()
    texts = (" ".join(t.folded for t in tokens(next(filter(None, groups))) if t.kind != STOP) for groups in _QUOTED.findall(shown))
    return tuple(sorted(filter(None, texts)))


class _Reading:
    """One pass over the tokens: numbers, units, dates, negations, comparisons and particles."""

    def __init__(self, found: Sequence[TextToken], stems: Sequence[str], lexicon: Lexicon) -> None:
        self._found = found
        self._stems = stems
        self._lexicon = lexicon
        self._english = lexicon is LEXICONS[ENGLISH]
        self.numbers: list[str] = []
        self.units: list[str] = []
        self.dates: list[str] = []
        self.degrees: list[str] = []
        self.particles: list[str] = []
        self.negations = 0
        self.begins: list[bool] = []
        """By token: whether a sentence begins with it."""
        self._after_number = False
        """Whether the token before was a number."""
        begins = True
        marked = _MARKED if self._english else lexicon.negation | lexicon.numbers.keys() | lexicon.dates.keys()
        for at, token in enumerate(found):
            self.begins.append(begins and token.kind == WORD)
            number_before = self._after_number
            self._after_number = False
            if token.kind == WORD:
                begins = False
                if number_before or token.folded in marked:
                    self._word(at, token.folded, number_before)
            elif token.kind == NUMBER:
                begins = False
                self.numbers.append(token.folded)
                self._after_number = True
            elif token.kind == SIGN:
                if token.folded in UNITS:
                    self.units.append(UNITS[token.folded])
                else:
                    self.numbers.append(token.folded)
            elif token.kind == STOP:
                begins = True
            else:
                begins = False
        if any(date.startswith("month") for date in self.dates):
            self.numbers = [number.removeprefix("#") for number in self.numbers]

    def _before(self, at: int) -> str:
        return self._found[at - 1].folded if at else ""

    def _after(self, at: int) -> str:
        return self._found[at + 1].folded if at + 1 < len(self._found) else ""

    def _word(self, at: int, word: str, number_before: bool) -> None:
        lexicon = self._lexicon
        if word in lexicon.negation:
            self.negations += not (word == "not" and self._before(at) == "or")
        if word in lexicon.numbers or word in SCALES or (number_before and word in _NUMBER_ENDINGS):
            self._number_word(at, word, number_before)
        if word in lexicon.dates:
            self._date(at, word, number_before)
        if not self._english:
            return
        if word in UNITS and (number_before or word not in BOUND_UNITS):
            self.units.append(UNITS[word])
        elif word in TIME_UNITS and (number_before or word in FREQUENCIES or self._before(at) in RATES):
            self.units.append(TIME_UNITS[word])
            if self._before(at) in ("next", "last", "this"):
                self.dates.append(self._before(at))
        if word in DEGREES:
            self._degree(at, word)
        if word in PARTICLES and not PARTICLE_VERBS.isdisjoint(self._stems[max(0, at - 3) : at]):
            self.particles.append(word)

    def _number_word(self, at: int, word: str, number_before: bool) -> None:
        """Number words in a row are one number: `two hundred`, `twenty five`, `1st`, `10k`."""
        before = self.numbers[-1] if number_before and self.numbers else ""
        if word in SCALES:
            scale = SCALES[word]
            if before and before.isdigit():
                self.numbers[-1] = str(int(before[:18]) * scale)
            elif self._before(at) in ("a", "one"):
                self.numbers.append(str(scale))
            else:
                self.numbers.append(word)
            self._after_number = True
            return
        if word in _NUMBER_ENDINGS:
            if word == "k" and before.isdigit():
                self.numbers[-1] = before + "000"
                self._after_number = True
            elif word != "k" and not before.startswith("#"):
                self.numbers[-1] = "#" + before
            return
        value = self._lexicon.numbers[word]
        if value == "1" and self._english:  # `one` is rarely a number: `which one`, `one can`
            self._after_number = True
            if self._after(at) in UNITS or self._after(at) in TIME_UNITS:
                self.numbers.append(value)
            return
        if word == "second" and (number_before or self._before(at) in RATES):
            return  # a unit of time
        if number_before and self._before(at) in TENS and value.lstrip("#").isdigit() and int(value.lstrip("#")) < 10:
            ordinal = "#" if value.startswith("#") else ""
            self.numbers[-1] = ordinal + str(int(before) + int(value.lstrip("#"))) if before.isdigit() else before
        else:
            self.numbers.append(value)
        self._after_number = not value.startswith("#")

    def _date(self, at: int, word: str, number_before: bool) -> None:
        if self._english and word in DATE_NEEDS_COMPANY and not number_before:
            beside = at + 1 < len(self._found) and self._found[at + 1].kind == NUMBER
            if not beside and self._before(at) not in DATE_COMPANY and self._before(at) not in _NUMBER_ENDINGS:
                return
        self.dates.append(self._lexicon.dates[word])
        if self._before(at) in ("next", "last", "this"):
            self.dates.append(self._before(at))

    def _degree(self, at: int, word: str) -> None:
        if word in FILLERS_OF_DEGREE or self._before(at) in ("any", "once", "some", "no"):
            return
        if word == "more" and self._after(at) in ("about", "info", "information", "details", "detail", "on"):
            return
        self.degrees.append(DEGREES[word])


_NUMBER_ENDINGS: Final = frozenset({"st", "nd", "rd", "th", "k"})
_MARKED: Final = frozenset().union(
    LEXICONS[ENGLISH].negation, LEXICONS[ENGLISH].numbers, LEXICONS[ENGLISH].dates, SCALES, UNITS, TIME_UNITS, DEGREES, PARTICLES
)
"""English words that `_Reading` looks at; most words are none of them."""
_QUESTION_WORDS: Final = {name: frozenset(key.partition(" ")[0] for key in lexicon.questions) for name, lexicon in LEXICONS.items()}
"""By language: the first words of question words."""


def _names(found: Sequence[TextToken], begins: Sequence[bool], lexicon: Lexicon) -> tuple[list[str], list[str]]:
    """Stems of names, and names of several words as one each.

    A name is a word of `PROPER`, or a word with a capital letter that does not begin a sentence; in a text whose words have capitals
    throughout, capitals say nothing.
    """
    candidates = [
        at
        for at, token in enumerate(found)
        if token.kind == WORD and (token.folded in PROPER or (token.shown[0].isupper() and token.folded not in lexicon.function))
    ]
    if not candidates:
        return [], []
    by_capital = not _is_titled(found, begins, lexicon)
    names: list[str] = []
    parties: list[str] = []
    last = -2
    for at in candidates:
        token = found[at]
        word = token.folded
        capital = by_capital and token.shown[0].isupper() and (not begins[at] or (len(word) > 1 and token.shown.isupper()))
        if word in lexicon.dates or not (capital or word in PROPER):
            continue
        names.append(stem(word))
        if last == at - 1:
            parties[-1] += " " + word
        else:
            parties.append(word)
        last = at
    return names, parties


def _is_titled(found: Sequence[TextToken], begins: Sequence[bool], lexicon: Lexicon) -> bool:
    """Whether a text is written as a title (`How Do I Reset My Password`) or in capitals alone."""
    words = [token for token, begin in zip(found, begins, strict=True) if token.kind == WORD and not begin and token.folded != "i"]
    if len(words) < 2:
        return all(token.shown.isupper() for token in found if token.kind == WORD)
    capitals = [token for token in words if token.shown[0].isupper()]
    if len(capitals) == len(words):
        first = next((token for token, begin in zip(found, begins, strict=True) if begin), None)
        if first is None or first.folded not in lexicon.function:
            return True
    return len(capitals) * 10 >= len(words) * 6 and any(token.folded in lexicon.function for token in capitals)


def _questions(found: Sequence[TextToken], begins: Sequence[bool], language: str, flat: str) -> Bag:
    """The classes of the question words, each once; none for `how`, `what`, `which` and questions without a question word."""
    classes = set()
    table, firsts = LEXICONS[language].questions, _QUESTION_WORDS[language]
    for at, token in enumerate(found):
        word = token.folded
        if token.kind != WORD or word not in firsts:
            continue
        after = found[at + 1].folded if at + 1 < len(found) else ""
        name = table.get(f"{word} {after}") or table.get(word)
        if name is None:
            continue
        if name not in _PLACED or (not _joins_clauses(found, at) if begins[at] else _may_begin(found[at - 1])):
            classes.add(name)
    if language == ENGLISH:
        if " what " in flat:
            classes |= {AMOUNT} if _PRICE.search(flat) else set()
            classes |= {COUNT} if _NUMBER_OF.search(flat) else set()
        if _REASON.search(flat):
            classes.add(WHY)
    return tuple(sorted(classes))


def _joins_clauses(found: Sequence[TextToken], at: int) -> bool:
    """Whether the question word that begins a sentence joins two clauses, as in `When I travel, can I use my card?`: no auxiliary follows
    it, and the question comes later in the sentence."""
    if at + 1 >= len(found) or found[at].folded not in ("when", "where") or found[at + 1].folded in _AUXILIARIES:
        return False
    for place in range(at + 2, len(found) - 1):
        word, after = found[place].folded, found[place + 1].folded
        if found[place].kind == STOP:
            return False
        if word in _LATER_QUESTIONS or (word in _AUXILIARIES and after in _SUBJECTS):
            return True
    return False


def _may_begin(before: TextToken) -> bool:
    return before.kind == STOP or before.folded in _CUES


def _around(found: Sequence[TextToken], content: Sequence[tuple[int, str]]) -> tuple[Around, ...]:
    places = [at for at, token in enumerate(found) if token.kind == WORD and token.folded in _ORDER_WORDS]
    places = places[:MAX_AROUND]
    if not places:
        return ()
    sides = []
    for before, place, after in zip([-1, *places], places, [*places[1:], len(found)], strict=False):
        word = found[place].folded
        most = 4 if word in ("before", "after") else 2
        left = [stemmed for at, stemmed in content if before < at < place][-most:]
        right = [stemmed for at, stemmed in content if place < at < after][:most]
        if right:
            sides.append(Around("to" if word == "into" else word, frozenset(left), frozenset(right)))
    return tuple(sides)


def _flags(flat: str, words: Sequence[TextToken]) -> frozenset[str]:
    flags = set()
    if " by " in flat and _PASSIVE.search(flat):
        flags.add("passive")
    if " or " in flat:
        flags.add("or")
    if " and " in flat:
        flags.add("and")
    if (" used to " in flat or " use to " in flat) and _USED_TO.search(flat):
        flags.add("used-to")
    if not _PRESENT.search(flat):
        if _PAST.search(flat):
            flags.add("past")
        if _FUTURE.search(flat):
            flags.add("future")
    if words and words[0].folded in _AUXILIARIES:
        flags.add("yes-no")
    return frozenset(flags)
