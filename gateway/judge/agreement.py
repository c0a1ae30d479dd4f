"""How far a model agrees with labelled answers: the cases that come with Tidegate, and the figures of a model's verdicts on them. Pure.

The cases are short and clear on purpose: whoever fails here cannot judge, and whoever passes is not proven. Chance alone agrees, too: with
as many passes as failures a coin is right half of the time. So agreement is told as Cohen's kappa beside the share (Cohen, "A coefficient
of agreement for nominal scales", 1960): 0 is chance, 1 is full agreement.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.judge.questions import (
    PAIR_FORM,
    PASS_FROM,
    SCORE_FORM,
    Better,
    Message,
    better_in,
    outcome_of,
    pair_question,
    score_in,
    score_question,
)

CASES: Final = Path(__file__).with_name("cases.jsonl")


class LabelledCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One labelled case: an answer that a person finds good or bad, or two of which one is better."""

    name: str
    prompt: str
    label: Literal["pass", "fail", "A", "B"]
    answer: str = ""
    """The answer of a case to score."""
    a: str = ""
    b: str = ""
    """The answers of a case to compare."""
    rubric: str = ""
    """Empty for the usual one."""

    @property
    def compares(self) -> bool:
        """Whether two answers are compared."""
        return self.label in ("A", "B")


def labelled_cases(lines: bytes | None = None) -> tuple[LabelledCase, ...]:
    """The cases of a text with one JSON object a line; those that come with Tidegate without one.

    Raises:
        ValueError: a line is no case; the message has its number.
    """
    cases = []
    for number, line in enumerate((CASES.read_bytes() if lines is None else lines).splitlines(), 1):
        if line.strip():
            try:
                cases.append(msgspec.json.decode(line, type=LabelledCase))
            except (msgspec.DecodeError, UnicodeError) as error:
                raise ValueError(f"line {number}: {error}") from None
    return tuple(cases)


class CaseVerdict(msgspec.Struct, frozen=True):
    """What a model said of a case."""

    case: LabelledCase
    score: int | None = None
    """None where it gave no score, or the case compares."""
    first: Better | None = None
    """The better answer with A as A; None where it named none."""
    second: Better | None = None
    """The better answer with B as A."""

    @property
    def word(self) -> str:
        """The verdict as a label: `pass`, `fail`, `A`, `B`, `tie`, `swayed`, or `unreadable`."""
        if not self.case.compares:
            return "unreadable" if self.score is None else "pass" if self.score >= PASS_FROM else "fail"
        if self.first is None or self.second is None:
            return "unreadable"
        return {"canary": "A", "baseline": "B"}.get(outcome := outcome_of(self.first, self.second), outcome)

    @property
    def agrees(self) -> bool:
        """Whether it is the label."""
        return self.word == self.case.label


def questions_on(case: LabelledCase, mark: str) -> list[tuple[list[Message], dict[str, object]]]:
    """The questions on a case: the messages and the form of the verdict of each. A pair is asked about in both orders.

    Args:
        mark: stands between the texts.
    """
    if not case.compares:
        return [(score_question(case.rubric, case.prompt, case.answer, mark), SCORE_FORM)]
    orders = ((case.a, case.b), (case.b, case.a))
    return [(pair_question(case.rubric, case.prompt, *order, mark), PAIR_FORM) for order in orders]


def verdict_of(case: LabelledCase, replies: Sequence[str]) -> CaseVerdict:
    """What the replies to the questions on a case say."""
    if not case.compares:
        return CaseVerdict(case, score=score_in(replies[0]))
    first, second = (better_in(reply) for reply in replies)
    return CaseVerdict(case, first=first, second=second)


class AgreementFigures(msgspec.Struct, frozen=True):
    """A model's agreement with labelled cases. Shares are 0 to 1, and None without cases of their kind."""

    cases: int
    unreadable: int
    """Verdicts that could not be read."""
    scored: int
    score_agreement: float | None
    """Share of scored cases whose pass or failure is the label."""
    kappa: float | None
    """Cohen's kappa of the same; None where it is not defined, because one side says the same of every case."""
    passed_bad: int
    """Bad answers that passed."""
    failed_good: int
    """Good answers that did not."""
    compared: int
    pair_agreement: float | None
    """Share of compared cases whose better answer is the label, in both orders."""
    swayed: int
    """Cases whose verdict followed the order."""


def figures_of(verdicts: Sequence[CaseVerdict]) -> AgreementFigures:
    """The figures of a model's verdicts. An unreadable verdict agrees with nothing, and is left out of kappa."""
    scored = [verdict for verdict in verdicts if not verdict.case.compares]
    compared = [verdict for verdict in verdicts if verdict.case.compares]
    words = [(verdict.case.label, verdict.word) for verdict in scored]
    return AgreementFigures(
        cases=len(verdicts),
        unreadable=sum(verdict.word == "unreadable" for verdict in verdicts),
        scored=len(scored),
        score_agreement=_share(scored),
        kappa=kappa_of([pair for pair in words if pair[1] != "unreadable"]),
        passed_bad=words.count(("fail", "pass")),
        failed_good=words.count(("pass", "fail")),
        compared=len(compared),
        pair_agreement=_share(compared),
        swayed=sum(verdict.word == "swayed" for verdict in compared),
    )


def _share(verdicts: Sequence[CaseVerdict]) -> float | None:
    return sum(verdict.agrees for verdict in verdicts) / len(verdicts) if verdicts else None


def kappa_of(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Cohen's kappa of pairs of labels: (p - e) / (1 - e), p the share of equal pairs, e the share that chance makes equal."""
    n = len(pairs)
    if not n:
        return None
    equal = sum(label == said for label, said in pairs) / n
    words = {word for pair in pairs for word in pair}
    chance = sum(sum(label == word for label, _ in pairs) * sum(said == word for _, said in pairs) for word in words) / n**2
    return None if chance == 1 else (equal - chance) / (1 - chance)
