"""`python -m bench.cache.channel`: what tenant A can tell of tenant B's cached answers by the time of its own requests.

A asks fresh texts. Just before each of them B asks, and a coin decides what: A's text ("other"), or one that nobody asks again ("nobody"),
so that the gateway has had the same work a moment ago. The time to the whole of A's reply is taken. If nothing leaks, the times are of one
distribution, which the two-sample Kolmogorov-Smirnov test looks at. The coin knows nothing of the machine, so noise meets both groups
alike, and the test keeps its level although times near each other are alike.

"own" is the control of the same run, in between: A itself has made the request before, which has to be seen.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from bench.cache.two_samples import area, area_interval, compared, would_be_seen
from bench.cache.two_tenants import OWN_TOKENIZER, Caller, Reply, Setup, callers
from bench.results_file import Row, machine, percentile, refresh, write_rows

OTHER, NOBODY, OWN = "other", "nobody", "own"
OWN_SHARE: Final = 0.1
"""Trials of the control, beside those of the two groups."""
WARM: Final = 200
"""Trials whose times do not count."""
LEAK_P: Final = 0.001
"""Below it a variant leaks: of seven variants that leak nothing, one in 140 runs says so of one of them."""
SEPARABLE: Final = 0.95
"""The least area under the curve of the control."""
PAUSE_S: Final = 0.002
"""Between the earlier request and the measured one: by then the gateway has kept the earlier answer and its question."""
NO_HITS: Final = 0.2
"""The largest part of the control's replies that may be no hits: a look-up in Valkey that takes long on a busy machine is a miss."""
SYLLABLES: Final = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
EXACT, NEAR, MEMORY = "hit-exact", "hit-semantic", "miss"


class Variant(NamedTuple):
    """What is asked of which gateway."""

    name: str
    setup: Setup
    control: str
    """What the control's reply says of the cache."""
    characters: int = 90
    """Least length of a text."""
    paraphrase: bool = False
    """Whether the earlier question is another one than A's, with the same meaning."""
    asked_elsewhere: bool = False
    """Whether the control's earlier question stood under another system prompt: A then has its vector and not its answer."""
    block: int = 1
    """Trials in one partition of similar questions; a new one begins behind them. The first look-up in a partition has no neighbours to
    judge, which takes a few milliseconds and would hide small differences."""


VERIFIED, THRESHOLD = "{}", "{decision: threshold, threshold: 0.75}"
VARIANTS: Final = (
    Variant("answers in memory", Setup(VERIFIED), EXACT),
    Variant("the same, ten questions in a partition", Setup(VERIFIED), EXACT, block=10),
    Variant("answers in Valkey", Setup(VERIFIED, shared_store=True), EXACT),
    Variant("a paraphrase", Setup(THRESHOLD), NEAR, paraphrase=True),
    Variant("vectors of an engine", Setup(VERIFIED, engine_vectors=True), MEMORY, asked_elsewhere=True),
    Variant("prompts counted, o200k_base", Setup(VERIFIED, tokenizer="o200k_base"), EXACT, characters=390),
    Variant("prompts counted, model's tokenizer", Setup(VERIFIED, tokenizer=OWN_TOKENIZER), EXACT),
)


class Trial(NamedTuple):
    """One measured request, and what comes before it."""

    group: str
    system: str
    question: str
    before_system: str
    before: str


class Came(NamedTuple):
    """Replies to A by group, in microseconds."""

    other: list[float]
    nobody: list[float]
    own: list[float]


def questions(dice: Random, characters: int) -> tuple[str, str]:
    """A question that nobody has asked, and one with the same meaning; both of at least so many characters.

    Words are made of syllables, five to a word: 10^9 ones, so that two texts share none but those of the frame.
    """
    one, two = _word(dice), _word(dice)
    first, second = f"How can I renew the {one} of the {two} online?", f"Please tell me how to renew the {one} of the {two} online."
    more = ""
    while len(first) + len(more) < characters:
        more += f" It has a {_word(dice)} beside the {_word(dice)}."
    return first + more, second + more


def _word(dice: Random) -> str:
    return "".join(dice.choices(SYLLABLES, k=5))


def trials(variant: Variant, count: int, seed: int) -> Iterator[Trial]:
    """The trials in order: `count` of the two groups together, by a coin each, and the control's in between. The same seed gives the
    same."""
    dice, asked, number = Random(f"{seed} {variant.name}"), 0, 0
    while asked < count:
        system = f"You answer for desk {seed}-{number // variant.block}."
        number += 1
        question, alike = questions(dice, variant.characters)
        decoy, decoy_alike = questions(dice, variant.characters)
        group = OWN if dice.random() < OWN_SHARE else dice.choice((OTHER, NOBODY))
        asked += group != OWN
        same, foreign = (alike, decoy_alike) if variant.paraphrase else (question, decoy)
        before_system = f"You write for desk {seed}-{number}." if group == OWN and variant.asked_elsewhere else system
        yield Trial(group, system, question, before_system, foreign if group == NOBODY else same)


def measured(variant: Variant, count: int, seed: int, home: Path) -> Came:
    """The times of one variant.

    Raises:
        RuntimeError: one of A's fresh texts was a hit, or the control had too few, so that times would mean something else.
    """
    came, astray = Came([], [], []), 0
    with callers(home, variant.setup) as (ours, theirs):
        gc.collect()
        gc.disable()
        try:
            for number, trial in enumerate(trials(variant, count + WARM, seed)):
                reply = _tried(trial, ours, theirs)
                as_meant = reply.status == (variant.control if trial.group == OWN else "miss")
                if not as_meant and trial.group != OWN:
                    raise RuntimeError(f"{variant.name}: a fresh text was a {reply.status}")
                astray += not as_meant
                if as_meant and number >= WARM:
                    {OTHER: came.other, NOBODY: came.nobody, OWN: came.own}[trial.group].append(reply.us)
        finally:
            gc.enable()
    if astray > NO_HITS * (astray + len(came.own)):
        raise RuntimeError(f"{variant.name}: {astray} of the control's replies were no {variant.control}, {len(came.own)} were")
    return came


def _tried(trial: Trial, ours: Caller, theirs: Caller) -> Reply:
    (ours if trial.group == OWN else theirs).ask(trial.before_system, trial.before)
    time.sleep(PAUSE_S)
    return ours.ask(trial.system, trial.question)


class Verdict(NamedTuple):
    """What the times of one variant say."""

    name: str
    came: Came
    statistic: float
    p: float
    area: float
    interval: tuple[float, float]
    seen_us: float
    control: float
    """The area under the curve of the control against "nobody"."""
    control_p: float
    """The test's chance for the control against "nobody"."""

    @property
    def leaks(self) -> bool:
        return self.p < LEAK_P

    @property
    def sees(self) -> bool:
        """Whether a threshold tells the control from a fresh text nearly always."""
        return self.control >= SEPARABLE


def judged(name: str, came: Came, seed: int) -> Verdict:
    """Compare the groups of one variant."""
    found = compared(came.other, came.nobody)
    interval = area_interval(came.other, came.nobody, seed)
    seen_us = would_be_seen(came.other, came.nobody, LEAK_P)
    control = area(came.own, came.nobody), compared(came.own, came.nobody).p
    return Verdict(name, came, found.statistic, found.p, area(came.other, came.nobody), interval, seen_us, *control)


def rows_of(verdict: Verdict) -> list[Row]:
    """The rows of one variant."""
    came, n = verdict.came, len(verdict.came.other) + len(verdict.came.nobody)
    figures = [
        ("ks", verdict.statistic, "", n),
        ("p", verdict.p, "", n),
        ("auc", verdict.area, "", n),
        ("auc_low", verdict.interval[0], "", n),
        ("auc_high", verdict.interval[1], "", n),
        ("would_be_seen_us", verdict.seen_us, "us", n),
        ("control_auc", verdict.control, "", len(came.own)),
        ("control_p", verdict.control_p, "", len(came.own)),
    ]
    for group, times in came._asdict().items():
        figures += [
            (f"{group}_median_us", percentile(times, 0.5), "us", len(times)),
            (f"{group}_p99_us", percentile(times, 0.99), "us", len(times)),
        ]
    return [Row(metric=metric, subject=verdict.name, value=round(value, 5), unit=unit, n=count) for metric, value, unit, count in figures]


def table(verdicts: Sequence[Verdict]) -> str:
    """A line for each variant."""
    text = (
        "| variant | `other`: texts, median | `nobody`: texts, median | KS | p | AUC (95 %) | would be seen | control: median, AUC, p |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    for one in verdicts:
        other, nobody, own = ((len(times), percentile(times, 0.5)) for times in one.came)
        unlike = "" if one.sees else f" (**below {SEPARABLE}**)"
        text += (
            f"| {one.name} | {other[0]:,}, {other[1]:.0f} us | {nobody[0]:,}, {nobody[1]:.0f} us | {one.statistic:.4f} | "
            f"{_chance(one.p)}{' **leaks**' if one.leaks else ''} | {one.area:.3f} ({one.interval[0]:.3f} to {one.interval[1]:.3f}) | "
            f"{one.seen_us:.0f} us | {own[1]:.0f} us, {one.control:.3f}{unlike}, {_chance(one.control_p)} |\n"
        )
    return text


def _chance(p: float) -> str:
    return f"{p:.2f}" if p >= 0.01 else f"{p:.1e}" if p > 1e-12 else "< 1e-12"


def main() -> None:
    """Measure, and refresh the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache.channel", description=__doc__)
    parser.add_argument("--texts", type=int, default=2_000, help="fresh texts of each variant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="the variants whose names have this in them")
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    verdicts = []
    for variant in (one for one in VARIANTS if args.only in one.name):
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as home:
            verdicts.append(judged(variant.name, measured(variant, args.texts, args.seed, Path(home)), args.seed))
        print(f"{table(verdicts[-1:]).splitlines()[-1]}  {time.perf_counter() - begun:.0f} s", flush=True)
    text = table(verdicts)
    print(text)
    if not args.print_only:
        write_rows("channel", [row for verdict in verdicts for row in rows_of(verdict)])
        refresh("channel", f"`python -m bench.cache.channel --texts {args.texts} --seed {args.seed}`, {machine()}.\n\n{text}")


if __name__ == "__main__":
    main()
