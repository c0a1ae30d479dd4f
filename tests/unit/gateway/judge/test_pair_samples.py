"""Compared pairs become samples of both arms, each pair of one arm alone."""

import random
from math import inf

from gateway.judge.pair_samples import MOST_WAITING, LostPair, PairSamples
from gateway.judge.questions import PairOutcome
from policies.rollout.evidence import no_evidence
from policies.rollout.samples import JUDGED, METRICS, Tally
from policies.rollout.verdict import DEFAULT_MARGINS, ComparisonTerms, Judgement, judge


def test_two_pairs_are_a_sample_of_each_arm() -> None:
    samples = PairSamples()
    assert samples.add("r1", "baseline") is None
    assert samples.add("r2", "canary") is None, "the pairs of rollouts do not mix"
    lost = samples.add("r1", "canary")
    assert lost == LostPair(canary_lost=True, baseline_lost=True)
    interval = lost.interval(7)
    assert (interval.index, interval.canary.requests, interval.baseline.requests) == (7, 0, 0), "they are no requests"
    assert interval.canary.tallies == interval.baseline.tallies == {JUDGED: Tally(1, 1.0)}
    assert samples.add("r2", "tie") == LostPair(canary_lost=False, baseline_lost=False)


def test_pairs_that_wait_are_bounded() -> None:
    samples = PairSamples()
    for n in range(3 * MOST_WAITING):
        samples.add(f"r{n}", "tie")
    assert len(samples._waiting) <= MOST_WAITING


def found_after(pairs: int, canary_wins: float, baseline_wins: float, seed: int, margin: float = 0.05) -> Judgement:
    """What a rollout that compares only this metric says after so many pairs."""
    rng, samples = random.Random(seed), PairSamples()
    terms = ComparisonTerms(alpha=0.05, margins={JUDGED: margin})
    evidence = no_evidence(terms.margins)
    for index in range(pairs):
        dice = rng.random()
        outcome: PairOutcome = "canary" if dice < canary_wins else "baseline" if dice < canary_wins + baseline_wins else "tie"
        if (lost := samples.add("r", outcome)) is not None:
            evidence = evidence.fold(lost.interval(index))
            if (judgement := judge(terms, evidence).judgement) is Judgement.WORSE:
                return judgement
    return judge(terms, evidence).judgement


def test_a_canary_that_loses_most_pairs_is_found_and_an_equal_one_is_not() -> None:
    assert [found_after(600, 0.1, 0.6, seed) for seed in range(5)] == [Judgement.WORSE] * 5
    assert Judgement.WORSE not in [found_after(600, 0.4, 0.4, seed) for seed in range(20)]


def test_a_rollout_that_does_not_ask_for_it_neither_pays_nor_waits_and_one_that_does_waits() -> None:
    assert JUDGED not in DEFAULT_MARGINS
    assert ComparisonTerms().margins.keys() == {name for name, metric in METRICS.items() if metric.by_default}
    asked = ComparisonTerms(margins={**DEFAULT_MARGINS, JUDGED: 0.05})
    verdict = judge(asked, no_evidence(asked.margins))
    (finding,) = verdict.findings
    assert (finding.metric, finding.judgement, finding.high) == (JUDGED, Judgement.UNDECIDED, inf)
    assert "too early to say, after 0 requests" in verdict.words
    assert judge(ComparisonTerms(), no_evidence(ComparisonTerms().margins)).findings == ()
