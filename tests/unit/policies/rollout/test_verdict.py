from math import log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rollout.evidence import Evidence, no_evidence
from policies.rollout.samples import METRICS, ArmSums, Interval, Scale, Tally
from policies.rollout.verdict import ComparisonTerms, Judgement, Verdict, judge


def seen(metric: str, values: list[tuple[float, float]], n: int = 20, m: int = 400) -> Evidence:
    """Of intervals with a mean or share of canary and baseline."""
    evidence = no_evidence({metric: 0.1})
    for index, (canary, baseline) in enumerate(values):
        arms = ArmSums(n, {metric: Tally(n, n * canary)}), ArmSums(m, {metric: Tally(m, m * baseline)})
        evidence = evidence.fold(Interval(index, *arms))
    return evidence


def latencies(times: float, intervals: int, spread: float = 0.05) -> list[tuple[float, float]]:
    rng = Random(4)
    return [(log(0.010 * times) + rng.gauss(0, spread), log(0.010) + rng.gauss(0, spread / 5)) for _ in range(intervals)]


def of(metric: str, evidence: Evidence, margin: float | None = None) -> Verdict:
    return judge(ComparisonTerms(margins={metric: METRICS[metric].margin if margin is None else margin}), evidence)


def test_a_slower_canary_is_worse_in_words() -> None:
    verdict = of("itl", seen("itl", latencies(1.31, 60)))
    assert verdict.judgement is Judgement.WORSE
    assert verdict.requests == 1200
    (finding,) = verdict.findings
    assert finding.low > 0.05
    assert finding.canary / finding.baseline == pytest.approx(1.31, rel=0.03)
    assert verdict.words.startswith("inter-token latency 13.")
    assert f" ms: at least {100 * finding.low:#.3g} % worse (confidence 99 %), after 1,200 requests" in verdict.words


def test_the_same_is_undecided_first_and_good_enough_later() -> None:
    assert "too early to say" in of("itl", seen("itl", latencies(1.0, 2))).words
    early = of("itl", seen("itl", latencies(1.0, 20)))
    assert early.judgement is Judgement.UNDECIDED
    assert " better and " in early.words
    assert of("itl", seen("itl", latencies(1.0, 2000))).judgement is Judgement.GOOD_ENOUGH


def test_a_metric_that_may_not_differ_either_way_is_worse_when_less() -> None:
    verdict = of("output_tokens", seen("output_tokens", latencies(0.5, 200)))
    assert verdict.judgement is Judgement.WORSE
    assert "% less" in verdict.words
    assert of("itl", seen("itl", latencies(0.5, 200))).judgement is Judgement.GOOD_ENOUGH


def test_errors_are_told_in_points() -> None:
    verdict = of("errors", seen("errors", [(0.10, 0.01)] * 60))
    assert verdict.judgement is Judgement.WORSE
    assert verdict.words.startswith("error rate 10 % against 1 %: at least ")
    assert "points worse (confidence 99 %), after 1,200 requests" in verdict.words


def test_no_errors_at_all_are_good_enough_once_there_are_enough_requests() -> None:
    assert of("errors", seen("errors", [(0.0, 0.0)] * 20)).judgement is Judgement.UNDECIDED
    assert of("errors", seen("errors", [(0.0, 0.0)] * 400)).judgement is Judgement.GOOD_ENOUGH


def test_errors_of_a_canary_count_though_the_baseline_has_none() -> None:
    assert of("errors", seen("errors", [(0.05, 0.0)] * 60)).judgement is Judgement.WORSE


@settings(max_examples=50)
@given(st.sampled_from([m.name for m in METRICS.values()]), st.floats(0.001, 0.05), st.integers(12, 60))
def test_who_is_worse_by_a_margin_is_worse_by_every_smaller_one(metric: str, margin: float, intervals: int) -> None:
    values = [(0.2, 0.02)] * intervals if METRICS[metric].scale is Scale.SHARE else latencies(1.5, intervals)
    evidence = seen(metric, values)
    if of(metric, evidence, margin).judgement is Judgement.WORSE:
        assert of(metric, evidence, margin / 2).judgement is Judgement.WORSE
    if of(metric, evidence, margin).judgement is Judgement.GOOD_ENOUGH:
        assert of(metric, evidence, margin * 2).judgement is Judgement.GOOD_ENOUGH


def test_more_metrics_make_each_less_easily_worse() -> None:
    evidence = seen("itl", latencies(1.3, 60))
    alone, among = of("itl", evidence), judge(ComparisonTerms(), evidence)
    assert among.findings[0].low < alone.findings[0].low
    assert [finding.metric for finding in among.findings] == ["itl"]  # nothing was seen of the others


def test_nothing_is_judged_on_few_samples() -> None:
    evidence = seen("errors", [(1.0, 0.0)] * 2)
    assert judge(ComparisonTerms(margins={"errors": 0.005}, min_samples=41), evidence).judgement is Judgement.UNDECIDED
    assert judge(ComparisonTerms(margins={"errors": 0.005}, min_samples=40), evidence).judgement is Judgement.WORSE
    assert judge(ComparisonTerms(), no_evidence(ComparisonTerms().margins)).words == "nothing was measured yet"


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"alpha": 0.5}, "alpha is 0.5"),
        ({"margins": {}}, "name at least one of errors, "),
        ({"margins": {"speed": 0.1}}, "no metric 'speed'"),
        ({"margins": {"errors": 0.0}}, "margin of errors"),
        ({"margins": {"errors": 1.0}}, "margin of errors"),
        ({"min_samples": 0}, "min_samples"),
        ({"interval_s": 0.5}, "interval_s"),
        ({"interval_s": 600.0}, "interval_s"),
    ],
)
def test_terms_that_cannot_be_are_refused(terms: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ComparisonTerms(**terms)  # type: ignore[arg-type]  # wrong on purpose
