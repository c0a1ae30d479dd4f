"""How many comparisons a rollout's verdict by the judge needs, and how often it is wrong: `python -m bench.judge_pairs`.

Comparisons of both arms with given chances, through `gateway.judge.pair_samples` into the verdict of a rollout that compares the usual
metrics and `judged`, looked at after every two pairs. The alternative, both samples from each pair, takes the same comparisons.
"""

import argparse
import random
from collections.abc import Sequence

from bench.results_file import Row, percentile, refresh, write_rows
from gateway.judge.pair_samples import LostPair, PairSamples
from gateway.judge.questions import PairOutcome
from policies.rollout.evidence import no_evidence
from policies.rollout.samples import JUDGED, METRICS
from policies.rollout.verdict import DEFAULT_MARGINS, ComparisonTerms, Judgement, judge

MARGIN = METRICS[JUDGED].margin
CASES = ((0.40, 0.40), (0.425, 0.375), (0.50, 0.30), (0.60, 0.20), (0.70, 0.10))
"""The chances that the canary and the baseline lose a comparison; the second one differs by the margin."""


def pairs_until_worse(lost: tuple[float, float], seed: int, most: int, alpha: float, *, both: bool) -> int | None:
    """The comparisons until the canary is found worse; None where it is not within `most`."""
    rng, samples = random.Random(seed), PairSamples()
    terms = ComparisonTerms(alpha=alpha, margins={**DEFAULT_MARGINS, JUDGED: MARGIN})
    evidence = no_evidence({JUDGED: MARGIN})
    for pair in range(1, most + 1):
        dice = rng.random()
        outcome: PairOutcome = "baseline" if dice < lost[0] else "canary" if dice < sum(lost) else "tie"
        found = LostPair(outcome == "baseline", outcome == "canary") if both else samples.add("r", outcome)
        if found is not None:
            evidence = evidence.fold(found.interval(pair))
            if pair % 2 == 0 and judge(terms, evidence).judgement is Judgement.WORSE:
                return pair
    return None


def measured(rollouts: int, most: int, alpha: float) -> tuple[list[Row], list[str]]:
    """The rows, and the lines of the table."""
    rows: list[Row] = []
    lines = [
        "| the canary loses | the baseline loses | counted | found worse | comparisons until then, median (90 %) |",
        "|---|---|---|---|---|",
    ]
    for lost in CASES:
        for both in (False, True):
            found = [pairs_until_worse(lost, seed, most, alpha, both=both) for seed in range(rollouts)]
            until: Sequence[int] = sorted(pairs for pairs in found if pairs is not None)
            subject = f"{lost[0]:g}:{lost[1]:g}{':both' if both else ''}"
            share = len(until) / rollouts
            rows.append(Row(metric="judged_worse", subject=subject, value=round(share, 4), unit="", n=rollouts))
            middle = ""
            if len(until) > rollouts / 2:
                rows.append(Row(metric="judged_pairs", subject=subject, value=percentile(until, 0.5), unit="comparisons", n=len(until)))
                middle = f"{percentile(until, 0.5):,.0f} ({percentile(until, 0.9):,.0f})"
            counted = "both arms of each" if both else "one arm of each"
            lines.append(f"| {100 * lost[0]:g} % | {100 * lost[1]:g} % | {counted} | {100 * share:.1f} % | {middle} |")
    return rows, lines


def main() -> None:
    """Measure, write the rows and the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=300)
    parser.add_argument("--most", type=int, default=4000, help="comparisons of one rollout")
    parser.add_argument("--alpha", type=float, default=0.05)
    asked = parser.parse_args()
    rows, lines = measured(asked.rollouts, asked.most, asked.alpha)
    write_rows("judge_pairs", rows)
    told = f"`python -m bench.judge_pairs --rollouts {asked.rollouts}`: alpha {asked.alpha:g}, {asked.most:,} comparisons at most."
    text = "\n".join([told, "", *lines])
    refresh("judge_pairs", text)
    print(text)


if __name__ == "__main__":
    main()
