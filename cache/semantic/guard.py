"""The answer-determining guard: whether two questions that look alike have the same answer as far as their texts can tell.

Embeddings hardly see a changed number, a negation or a swapped pair, so this guard compares them apart from any model. It has two
verdicts. `difference` names what must be equal and is not; a difference is a miss, whatever the similarity. `near_copy` says that two
texts differ in one or two content words, or in their order alone; nothing in a similarity tells such a pair from a paraphrase, so a
static threshold has to refuse it, while a decision that learns from compared answers may allow it.

Both are symmetric. Texts that are equal up to case and punctuation never differ. English is covered best; of German, French, Spanish,
Italian, Portuguese and Dutch the guard knows numbers, dates, negations and question words; of a language in another script nothing, so
there the words have to be equal. In languages that write nouns with capitals (German), each noun counts as a name.
"""

from collections import Counter
from typing import Final

from cache.semantic.contrasts import OPPOSING_PREFIXES, OPPOSITES, PARTICLES, SYMMETRIC
from cache.semantic.profiles import Around, Bag, Profile, profile

__all__ = ["DIFFERENCES", "Profile", "difference", "near_copy", "profile"]

LANGUAGE: Final = "language"
NUMBERS: Final = "numbers"
UNITS: Final = "units"
DATES: Final = "dates"
NEGATION: Final = "negation"
QUOTED: Final = "quoted"
IDENTIFIERS: Final = "identifiers"
NAMES: Final = "names"
QUESTION: Final = "question"
COMPARATIVES: Final = "comparatives"
PERSONS: Final = "persons"
ROLES: Final = "roles"
CHOICE: Final = "choice"
TENSE: Final = "tense"
OPPOSITE: Final = "opposites"
DIFFERENCES: Final = (
    LANGUAGE,
    NUMBERS,
    UNITS,
    DATES,
    NEGATION,
    QUOTED,
    IDENTIFIERS,
    NAMES,
    QUESTION,
    COMPARATIVES,
    PERSONS,
    ROLES,
    CHOICE,
    TENSE,
    OPPOSITE,
)
"""What `difference` may say, in the order in which it looks."""

MAX_CHANGED: Final = 2
"""Near-copies differ in at most so many content words on a side …"""
MIN_SHARED: Final = 0.5
"""… and share at least this part of the longer one's."""
MIN_ORDERED: Final = 3
"""Fewer content words say the same in any order: `reset password`, `password reset`."""

MAX_SOUGHT: Final = 64
"""A question with more quoted texts, identifiers or names passes only with the same ones, written in the same way."""

_TURNED: Final = {"before": "after", "after": "before", "over": "under", "under": "over", "from": "to", "to": "from"}


def difference(asked: Profile, kept: Profile) -> str:
    """What differs between two questions and decides their answers, as one of `DIFFERENCES`; empty when nothing does."""
    if asked.flat == kept.flat:
        return ""
    if (asked.language and kept.language and asked.language != kept.language) or not _same_script(asked, kept):
        return LANGUAGE
    if asked.numbers != kept.numbers:
        return NUMBERS
    if asked.units != kept.units:
        return UNITS
    if asked.dates != kept.dates:
        return DATES
    if asked.negations != kept.negations:
        return NEGATION
    if asked.quoted != kept.quoted and not (_all_stand_in(asked.quoted, kept) and _all_stand_in(kept.quoted, asked)):
        return QUOTED
    if asked.identifiers != kept.identifiers and not (_all_stand_in(asked.identifiers, kept) and _all_stand_in(kept.identifiers, asked)):
        return IDENTIFIERS
    if asked.names != kept.names and not (_are_words_of(asked.names, kept) and _are_words_of(kept.names, asked)):
        return NAMES
    if asked.questions != kept.questions:
        return QUESTION
    if asked.degrees != kept.degrees:
        return COMPARATIVES
    if asked.third_persons != kept.third_persons or _exchanged(asked.persons, kept.persons):
        return PERSONS
    return _difference_of_roles(asked, kept)


def _difference_of_roles(asked: Profile, kept: Profile) -> str:
    symmetric = not SYMMETRIC.isdisjoint(asked.known | kept.known)
    for one in asked.around:
        for other in kept.around:
            if _sides_exchanged(one, other, symmetric):
                return COMPARATIVES if one.word in ("than", "before", "after") else ROLES
    if not symmetric and (_parties_exchanged(asked, kept) or _subject_and_object_exchanged(asked, kept)):
        return ROLES
    ours, theirs = asked.flags, kept.flags
    if ("or" in ours and "or" not in theirs and "and" in theirs) or ("or" in theirs and "or" not in ours and "and" in ours):
        return CHOICE
    if ("used-to" in ours) != ("used-to" in theirs) or {"past", "future"} <= (ours ^ theirs):
        return TENSE
    return OPPOSITE if _opposed(asked, kept) else ""


def _same_script(asked: Profile, kept: Profile) -> bool:
    if not asked.script or not kept.script:
        return True
    if asked.script != kept.script:
        return False
    return asked.script == "LATIN" or sorted(asked.words) == sorted(kept.words)


def _all_stand_in(texts: Bag, other: Profile) -> bool:
    """Whether each text stands in the other question as often, with or without quotes and capitals."""
    return len(texts) <= MAX_SOUGHT and all(other.flat.count(f" {text} ") >= texts.count(text) for text in texts)


def _are_words_of(names: Bag, other: Profile) -> bool:
    """Whether each name is among the other question's words as often, so that `paris` may answer for `Paris`."""
    return len(names) <= MAX_SOUGHT and all(other.words.count(name) >= names.count(name) for name in names)


def _exchanged(one: Bag, other: Bag) -> bool:
    """Whether two have changed their places: `can I call you`, `can you call me`."""
    return len(one) == len(other) == 2 and one[0] != one[1] and one == other[::-1]


def _sides_exchanged(one: Around, other: Around, symmetric: bool) -> bool:
    """Whether what stood before the word now stands after it, or the word has become its opposite before the same word."""
    if one.word == other.word:
        if symmetric and one.word != "than":
            return False
        left, right = one.left - one.right, one.right - one.left
        return not right.isdisjoint(other.left - other.right) and not left.isdisjoint(other.right - other.left)
    return _TURNED.get(one.word) == other.word and one.right == other.right and one.left == other.left


def _parties_exchanged(asked: Profile, kept: Profile) -> bool:
    """Whether two names have changed their roles. A passive (`is followed by`) exchanges them once more."""
    one, other = asked.parties, kept.parties
    if len(one) != 2 or len(other) != 2 or one[0] == one[1] or sorted(one) != sorted(other):
        return False
    joined = any(f" {one[0]} {word} {one[1]} " in asked.flat or f" {one[1]} {word} {one[0]} " in asked.flat for word in ("and", "or"))
    return not joined and (one != other) != (("passive" in asked.flags) != ("passive" in kept.flags))


def _subject_and_object_exchanged(asked: Profile, kept: Profile) -> bool:
    """`does the server need the client`, `does the client need the server`: two words around others have changed places."""
    if "yes-no" not in asked.flags or "yes-no" not in kept.flags or ("passive" in asked.flags) != ("passive" in kept.flags):
        return False
    return _two_exchanged(asked.words, kept.words) or _two_exchanged(asked.content, kept.content)


def _two_exchanged(one: Bag, other: Bag) -> bool:
    if len(one) != len(other):
        return False
    changed = [at for at in range(len(one)) if one[at] != other[at]]
    if len(changed) != 2 or changed[1] - changed[0] < 2:
        return False
    first, second = changed
    return one[first] == other[second] and one[second] == other[first] and not {"and", "or"} & set(one[first:second])


def _opposed(asked: Profile, kept: Profile) -> bool:
    """Whether one question has a word and the other, instead of it, its opposite."""
    ours, theirs = asked.known - kept.known, kept.known - asked.known
    for word in ours:
        if not theirs.isdisjoint(OPPOSITES.get(word, ())):
            return True
    for word in ours | theirs:
        others = theirs if word in ours else ours
        if len(word) > 2 and any(prefix + word in others for prefix in OPPOSING_PREFIXES):
            return True
    new, old = asked.particles - kept.particles, kept.particles - asked.particles
    return any(PARTICLES[particle] in old for particle in new)


def near_copy(asked: Profile, kept: Profile) -> bool:
    """Whether two questions differ in one or two content words, or in the order of content words alone.

    Questions with the same content words in the same order are no near-copies of that kind: they differ in words that say little.
    """
    one, other = asked.content, kept.content
    if one == other:
        return False
    ours, theirs = Counter(one), Counter(other)
    shared = (ours & theirs).total()
    longer = max(len(one), len(other))
    changed = max(len(one), len(other)) - shared
    if changed == 0:
        return longer >= MIN_ORDERED
    return changed <= MAX_CHANGED and shared >= MIN_SHARED * longer
