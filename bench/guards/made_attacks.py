"""Made texts that the classifier for injection is trained on beside the visible sets: attempts, and honest texts with the same words.

Each family is a small grammar: templates with slots (`made_phrases.yaml`), filled by a seeded generator, so the same seed makes the same
texts. The families say in general what attempts do (override what was said, take a role that is freed of rules, ask for what is secret,
switch the task, append junk, cut a request into parts, pretend to be another turn, hide in a document). The honest families put the same
words where they are harmless. No text was copied from a set. The author had seen rows of all sets before, so a family is not independent of
a source that an evaluation leaves out; phrases written after rows of a source are marked with it, and are left out with it.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

Slots = Mapping[str, Sequence[str]]

_SLOT: Final = re.compile(r"\{([a-z_]+)\}")
MARK: Final = " @"
_DEEPEST: Final = 6
"""Slots inside slots, at most."""

_PHRASES: Final[dict[str, dict[str, list[str]]]] = yaml.safe_load(Path(__file__).with_name("made_phrases.yaml").read_text(encoding="utf-8"))
ATTACK_SLOTS: Final = _PHRASES["attack_slots"]
ATTACK_TEMPLATES: Final = _PHRASES["attack_templates"]
HONEST_SLOTS: Final = _PHRASES["honest_slots"]
HONEST_TEMPLATES: Final = _PHRASES["honest_templates"]


def without(slots: Slots, source: str | None) -> Slots:
    """The phrases of all slots, without their marks and without those that were written after rows of a source."""
    kept: dict[str, list[str]] = {}
    for name, phrases in slots.items():
        parted = [phrase.rpartition(MARK) if MARK in phrase else (phrase, "", "") for phrase in phrases]
        kept[name] = [phrase for phrase, _, after in parted if source is None or after != source]
    return kept


def filled(template: str, slots: Slots, rng: random.Random, given: dict[str, Sequence[str]] | None = None) -> str:
    """A template with all slots filled; `given` has texts for slots that no grammar knows, such as honest requests."""
    given = given or {}
    text = template
    for _ in range(_DEEPEST):
        text = _SLOT.sub(lambda match: match[0] if match[1] in given else rng.choice(slots[match[1]]), text)
    # last and once: honest texts have braces of their own
    return _SLOT.sub(lambda match: rng.choice(given[match[1]]), text)


def junk(request: str, words: Sequence[str], rng: random.Random) -> str:
    """A request with what an optimiser appends: pieces of words of all kinds and of code, glued by stray brackets."""
    glue = (
        " ",
        " ",
        " ",
        "",
        "[",
        "](",
        " {",
        "}. ",
        '"',
        "\\",
        "=",
        "!",
        "|",
        " !!",
        "<",
        "**",
        "]; ",
        "'",
        "#",
        " -> ",
        "_{",
        ")",
        "...",
        "?",
        "/",
    )
    parts: list[str] = []
    for _ in range(rng.randint(8, 25)):
        word = rng.choice(words)
        cased = rng.choice((str.lower, str.lower, str.title, str.upper, str))(word)
        cut = cased[rng.randint(0, 2) :] if rng.random() < 0.3 else cased
        parts += [cut, rng.choice(glue)]
    return f"{request} {''.join(parts)}"


def disguised(text: str, rng: random.Random) -> str:
    """A text as callers write it who want to pass a list of words."""
    ways: tuple[Callable[[str], str], ...] = (
        str.upper,
        lambda t: " ".join(t.replace(" ", "")),
        lambda t: t.translate(str.maketrans("aeio", "4310")),
        lambda t: "".join(c + ("-" if c.isalpha() and rng.random() < 0.15 else "") for c in t),
        lambda t: "".join(c for c in t if rng.random() > 0.04),
        str.lower,
    )
    return rng.choice(ways)(text)


class Honest(NamedTuple):
    """Honest texts that attempts are made with."""

    requests: Sequence[str]
    documents: Sequence[str]
    words: Sequence[str]


def attacks(seed: int, each: int, around: Honest, without_source: str | None = None) -> list[tuple[str, str]]:
    """`each` attempts of every family, as (family, text).

    Args:
        without_source: a set of attempts; the phrases that were written after its rows are left out.
        around: honest requests that attempts begin with, passages that they are hidden in, and words that junk is made of.
    """
    rng = random.Random(seed)
    given = {"honest": around.requests, "document": around.documents}
    slots = without(ATTACK_SLOTS, without_source)
    made = []
    for family, templates in ATTACK_TEMPLATES.items():
        for _ in range(each):
            text = filled(rng.choice(templates), slots, rng, given)
            made.append((family, disguised(text, rng) if rng.random() < 0.15 and family != "hidden" else text))
    for _ in range(each):
        request = rng.choice((rng.choice(around.requests), f"How to {rng.choice(slots['harm'])}"))
        made.append(("junk", junk(request, around.words, rng)))
    return made


def honest(seed: int, each: int) -> list[tuple[str, str]]:
    """`each` honest texts of every family, as (family, text)."""
    rng = random.Random(seed)
    return [
        (family, filled(rng.choice(templates), HONEST_SLOTS, rng)) for family, templates in HONEST_TEMPLATES.items() for _ in range(each)
    ]
