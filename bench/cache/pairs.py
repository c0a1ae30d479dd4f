"""`python -m bench.cache.pairs --data DIR`: what the guard of the semantic cache lets pass, on pairs of texts with a label.

A pair with label 1 means the same and should pass; one with label 0 does not and should be refused. No embedder takes part: it is the guard
alone, on pairs that were made to be hard. `difference` is what every decision asks; `+ near_copy` is what a static threshold asks too.

Sets, as folders of DIR: `pairs-paws-wiki` (sentences with one order changed), `pairs-checklist-qqp` (questions from templates, by kind) and
`pairs-gptcache-mock` (sentences with a rewrite; its label 0 is each rewrite beside the foreign sentence with most content words in common).
Each set is halved by a hash of the pair. The guard was made while looking at the half `tuning` alone.
"""

import argparse
import gzip
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from bench.cache.intervals import wilson
from bench.results_file import Row, machine, refresh, write_rows
from cache.semantic.guard import Profile, difference, near_copy, profile

TUNING, AWAY = "tuning", "kept away"
HALVES: Final = (TUNING, AWAY)
PAWS, CHECKLIST, MOCK = "PAWS-Wiki", "CheckList", "GPTCache mock"
TIMED: Final = "How can I transfer 250 dollars from my savings account to Brian's account in Paris before next Friday?"
LIKEWISE: Final = "What are the steps to transfer $250 from my savings account to the account of Brian in Paris, before next Friday?"
ROUNDS, CALLS = 9, 500


class Pair(NamedTuple):
    """Two texts, and whether they mean the same."""

    half: str
    kind: str
    a: str
    b: str
    same: bool


class Count(NamedTuple):
    """Pairs of one kind and label, and how many of them passed."""

    pairs: int
    passed: int
    strict: int
    """Passed both verdicts."""


def half(a: str, b: str) -> str:
    """The half that a pair belongs to, by the first bit of a SHA-256 of both texts."""
    return HALVES[hashlib.sha256(f"{a}\x1f{b}".encode()).digest()[0] % 2]


def lines(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def labelled(path: Path) -> Iterator[Pair]:
    for line in lines(path):
        yield Pair(half(line["a"], line["b"]), line.get("test", ""), line["a"], line["b"], int(line["label"]) == 1)


def mock(path: Path) -> Iterator[Pair]:
    """Each rewrite with its origin, and with the nearest foreign origin of its half."""
    rows = [(half(line["origin"], line["similar"]), line["origin"], line["similar"]) for line in lines(path)]
    for which, origin, similar in rows:
        yield Pair(which, "", origin, similar, True)
        words = set(profiled(similar).content)
        foreign = [other for side, other, _ in rows if side == which and other != origin]
        yield Pair(which, "", max(foreign, key=lambda text: (overlap(words, set(profiled(text).content)), text)), similar, False)


def overlap(one: set[str], other: set[str]) -> float:
    """The Jaccard index of two sets of words."""
    return len(one & other) / max(1, len(one | other))


@cache
def profiled(text: str) -> Profile:
    return profile(text)


def count(pairs: Sequence[Pair]) -> Count:
    passed = [pair for pair in pairs if not difference(profiled(pair.a), profiled(pair.b))]
    strict = [pair for pair in passed if not near_copy(profiled(pair.a), profiled(pair.b))]
    return Count(len(pairs), len(passed), len(strict))


def share(hits: int, of: int) -> str:
    """A share with its Wilson interval, in percent."""
    if of == 0:
        return ""
    low, high = wilson(hits, of)
    return f"{hits / of:.1%} ({low:.1%} to {high:.1%})"


def of_sets(sets: dict[str, list[Pair]]) -> tuple[str, list[Row]]:
    text = "| set | half | same, pass | same, `+ near_copy` | other, pass | other, `+ near_copy` |\n|---|---|---|---|---|---|\n"
    rows: list[Row] = []
    for name, pairs in sets.items():
        for which in HALVES:
            same = count([p for p in pairs if p.half == which and p.same])
            other = count([p for p in pairs if p.half == which and not p.same])
            cells = [share(c.passed if plain else c.strict, c.pairs) for c in (same, other) for plain in (True, False)]
            text += f"| {name} | {which}, {same.pairs} + {other.pairs} | " + " | ".join(cells) + " |\n"
            for metric, c in (("same", same), ("other", other)):
                for verdict, hits in (("difference", c.passed), ("near_copy", c.strict)):
                    label = f"{metric}:{verdict}"
                    rows.append(Row(metric=label, subject=f"{name}, {which}", value=round(hits / max(1, c.pairs), 4), unit="", n=c.pairs))
    return text, rows


def of_kinds(pairs: Sequence[Pair]) -> str:
    text = (
        "| CheckList's kind | label | "
        + " | ".join(f"{which}: pass | `+ near_copy`" for which in HALVES)
        + " |\n|---|---|---|---|---|---|\n"
    )
    for kind, same in sorted({(p.kind, p.same) for p in pairs}, key=lambda key: (key[1], key[0])):
        cells = []
        for which in HALVES:
            c = count([p for p in pairs if (p.kind, p.same, p.half) == (kind, same, which)])
            cells += [share(c.passed, c.pairs), share(c.strict, c.pairs)]
        text += f"| {kind} | {'same' if same else 'other'} | " + " | ".join(cells) + " |\n"
    return text


def microseconds() -> tuple[float, float]:
    """CPU time of a profile of `TIMED` and of both verdicts on a paraphrase that passes, the best of some rounds."""
    kept, asked = profile(TIMED), profile(LIKEWISE)
    if difference(asked, kept):
        raise ValueError("the paraphrase does not pass, so its time would be that of a part of the guard")
    works: tuple[Callable[[], object], ...] = (lambda: profile(TIMED), lambda: (difference(asked, kept), near_copy(asked, kept)))
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for at, work in enumerate(works):
            began = time.process_time()
            for _ in range(CALLS):
                work()
            best[at] = min(best[at], (time.process_time() - began) / CALLS * 1e6)
    return best[0], best[1]


def main() -> None:
    """Judge the guard, and refresh the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache.pairs", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the three sets")
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    profile_us, difference_us = microseconds()  # before the sets fill the memory that the garbage collector looks through
    sets = {
        PAWS: list(labelled(args.data / "pairs-paws-wiki" / "dev.jsonl.gz")),
        CHECKLIST: list(labelled(args.data / "pairs-checklist-qqp" / "mft.jsonl.gz")),
        MOCK: list(mock(args.data / "pairs-gptcache-mock" / "mock.jsonl.gz")),
    }
    table, rows = of_sets(sets)
    rows += [
        Row(metric="profile_us", subject=f"{len(TIMED)} characters", value=round(profile_us, 1), unit="us", n=ROUNDS),
        Row(metric="difference_us", subject=f"{len(TIMED)} characters", value=round(difference_us, 1), unit="us", n=ROUNDS),
    ]
    cost = (
        f"A profile of a question of {len(TIMED)} characters takes {profile_us:.0f} us of CPU, both verdicts on a paraphrase "
        f"{difference_us:.0f} us (the best of {ROUNDS} rounds of {CALLS})."
    )
    text = f"{table}\n{of_kinds(sets[CHECKLIST])}\n{cost}"
    print(text)
    if not args.print_only:
        write_rows("guard", rows)
        refresh("guard", f"`python -m bench.cache.pairs --data DIR`, {machine()}; Wilson intervals of 95 %.\n\n{text}")


if __name__ == "__main__":
    main()
