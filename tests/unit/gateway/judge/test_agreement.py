"""The labelled cases that come with Tidegate, and the figures of a judge's agreement with them."""

from collections import Counter

import pytest

from gateway.judge.agreement import CaseVerdict, LabelledCase, figures_of, kappa_of, labelled_cases

CASES = labelled_cases()


def test_the_cases_are_many_balanced_and_have_what_they_need() -> None:
    labels = Counter(case.label for case in CASES)
    assert (len(CASES), labels) == (40, {"pass": 12, "fail": 12, "A": 8, "B": 8})
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.prompt
        assert bool(case.a and case.b) is case.compares
        assert case.compares or case.answer or case.name == "empty"


def right(case: LabelledCase) -> CaseVerdict:
    if case.compares:
        return CaseVerdict(case, first=case.label, second="B" if case.label == "A" else "A")  # type: ignore[arg-type]
    return CaseVerdict(case, score=5 if case.label == "pass" else 1)


def test_a_judge_that_is_right_agrees_wholly() -> None:
    figures = figures_of([right(case) for case in CASES])
    assert (figures.score_agreement, figures.kappa, figures.pair_agreement) == (1.0, 1.0, 1.0)
    assert (figures.unreadable, figures.passed_bad, figures.failed_good, figures.swayed) == (0, 0, 0, 0)


def test_a_judge_that_passes_everything_and_takes_the_first_is_found_out() -> None:
    verdicts = [CaseVerdict(case, first="A", second="A") if case.compares else CaseVerdict(case, score=5) for case in CASES]
    figures = figures_of(verdicts)
    assert (figures.score_agreement, figures.kappa, figures.passed_bad) == (0.5, 0.0, 12)
    assert (figures.pair_agreement, figures.swayed) == (0.0, 16)


def test_an_unreadable_verdict_agrees_with_nothing() -> None:
    figures = figures_of([CaseVerdict(case) for case in CASES])
    assert (figures.unreadable, figures.score_agreement, figures.kappa) == (40, 0.0, None)
    assert figures_of([]).score_agreement is None


def test_kappa_is_cohens() -> None:
    # the textbook's table: 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: p = 0.7, e = 0.5
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert kappa_of(pairs) == pytest.approx(0.4)
    assert kappa_of([("y", "y")] * 3) is None


def test_a_line_that_is_no_case_is_named() -> None:
    good = b'{"name": "x", "prompt": "p", "label": "pass", "answer": "a"}\n\n'
    assert [case.name for case in labelled_cases(good)] == ["x"]
    with pytest.raises(ValueError, match=r"^line 3: .*label"):
        labelled_cases(good + b'{"name": "y", "prompt": "p", "label": "maybe"}')
