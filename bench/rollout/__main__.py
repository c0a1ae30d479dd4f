"""`make bench-rollout`: whole rollouts by the thousand on simulated traffic (`bench.rollout.traffic`), looked at every ten seconds.

`false_alarm_rate` is the part of rollouts that went back because some metric was found worse, of versions that are not: the same
version again, and one that is worse in every metric by exactly what its margin allows. `power_…` is the part in which a worse version
was found out; requests are all that the canary got until then.
"""

import argparse
import time
from random import Random
from statistics import median

import msgspec

from bench.results_file import Row, machine, percentile, refresh, write_rows
from bench.rollout.course import Ended, rollout
from bench.rollout.traffic import RATIOS, SHARES, Version, pools
from policies.rollout.plan import DEFAULT_STEPS, OnTimeout, RolloutPlan, RolloutStep, StepNeeds
from policies.rollout.samples import METRICS

SAME = Version("the same version")
AT_MARGIN = Version(
    "worse by every margin, no more",
    {name: 1 + METRICS[name].margin for name in RATIOS},
    {name: METRICS[name].margin for name in SHARES},
)
WORSE = (
    ("power_tpot_20pct", Version("inter-token latency +20 %", {"itl": 1.2})),
    ("power_tpot_30pct", Version("inter-token latency +30 %", {"itl": 1.3})),
    ("power_errors_3pct", Version("error rate 1 % to 3 %", {}, {"errors": 0.02})),
)
# more noise than is assumed before there is much to learn it from (`Metric.wander`, `evidence.WANDER_S`)
ROUGH = (
    ("twice", "twice as much noise of one arm", {"strays": 2.0}),
    ("lasting", "noise of one arm that lasts five minutes", {"lasts": 5.0}),
)
PLAN = RolloutPlan("bench")
# what is no worse than its margins would be looked at for a day, and then wait for somebody: an hour shows how it goes
HOLD_S = 3600.0
SHORT = msgspec.structs.replace(
    PLAN,
    steps=(*DEFAULT_STEPS[:-2], RolloutStep(0.5, max_s=HOLD_S, needs=StepNeeds.GOOD_ENOUGH), RolloutStep(1.0)),
    on_timeout=OnTimeout.HOLD,
)


def worse_rows(metric: str, name: str, ended: list[Ended]) -> tuple[list[Row], str]:
    """Figures of a version that is to be found out, and its line of the table."""
    found = [one for one in ended if one.found_worse]
    requests, minutes = [one.requests for one in found] or [0], [one.after_s / 60 for one in found] or [0]
    figures = [
        (metric, len(found) / len(ended), "share"),
        (f"requests_{metric.removeprefix('power_')}", median(requests), "canary requests"),
        (f"requests_p90_{metric.removeprefix('power_')}", percentile(requests, 0.9), "canary requests"),
        (f"minutes_{metric.removeprefix('power_')}", median(minutes), "min"),
        (f"reached_all_{metric.removeprefix('power_')}", sum(one.done for one in ended) / len(ended), "share"),
    ]
    rows = [Row(metric=m, subject="tidegate", value=round(value, 4), unit=unit, n=len(ended)) for m, value, unit in figures]
    cells = f"{figures[0][1]:.1%} | {figures[1][1]:,.0f} ({figures[2][1]:,.0f}) | {figures[3][1]:.0f} min | {figures[4][1]:.1%}"
    return rows, f"| {name} | {len(ended):,} | {cells} |"


def good_rows(ended: list[Ended], at_margin: list[Ended]) -> tuple[list[Row], list[str]]:
    """Figures of versions that are not to be found worse, and their lines."""
    done = [one.after_s / 60 for one in ended if one.done]
    alarms, edge = (sum(one.found_worse for one in those) / len(those) for those in (ended, at_margin))
    figures = [
        ("false_alarm_rate", alarms, "share", len(ended)),
        ("false_alarm_rate_at_margin", edge, "share", len(at_margin)),
        ("good_reached_all", len(done) / len(ended), "share", len(ended)),
        ("good_minutes", median(done or [0]), "min", len(ended)),
        ("good_minutes_p90", percentile(done or [0], 0.9), "min", len(ended)),
        ("at_margin_reached_all", sum(one.done for one in at_margin) / len(at_margin), "share", len(at_margin)),
    ]
    rows = [Row(metric=m, subject="tidegate", value=round(value, 4), unit=unit, n=n) for m, value, unit, n in figures]
    took = f"median {figures[3][1]:.0f} min, 90 % within {figures[4][1]:.0f} min"
    return rows, [
        f"| {SAME.name} | {len(ended):,} | {alarms:.2%} | {figures[2][1]:.1%} | {took} |",
        f"| {AT_MARGIN.name} | {len(at_margin):,} | {edge:.2%} | {figures[5][1]:.1%} | {HOLD_S / 60:.0f} min at 50 %, then held |",
    ]


def rough_rows(name: str, words: str, ended: list[Ended], at_margin: list[Ended]) -> tuple[list[Row], str]:
    """Figures under more noise than the test assumes, and their line."""
    same, edge = (sum(one.found_worse for one in those) / len(those) for those in (ended, at_margin))
    rows = [
        Row(metric=f"false_alarm_rate_{name}", subject="tidegate", value=round(same, 4), unit="share", n=len(ended)),
        Row(metric=f"false_alarm_rate_at_margin_{name}", subject="tidegate", value=round(edge, 4), unit="share", n=len(at_margin)),
    ]
    return rows, f"| {words} | {len(ended):,} | {same:.2%} | {edge:.2%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1000, help="of each version")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    pool = pools(Random(given.seed))

    def run(version: Version, plan: RolloutPlan, rollouts: int = given.rollouts) -> list[Ended]:
        # seeded by version, so that one more version leaves the others' figures alone
        rng = Random(f"{given.seed} {version.name}")
        ended = [rollout(rng, pool, version, plan) for _ in range(rollouts)]
        print(f"{time.monotonic() - began:5.0f} s  {version.name}", flush=True)
        return ended

    rows, good = good_rows(run(SAME, PLAN), run(AT_MARGIN, SHORT))
    worse = []
    for metric, version in WORSE:
        figures, line = worse_rows(metric, version.name, run(version, PLAN))
        rows.extend(figures)
        worse.append(line)
    rough = []
    for name, words, noise in ROUGH:
        noisy = [msgspec.structs.replace(version, name=f"{version.name}, {words}", **noise) for version in (SAME, AT_MARGIN)]
        figures, line = rough_rows(name, words, *(run(version, SHORT, max(1, given.rollouts // 4)) for version in noisy))
        rows.extend(figures)
        rough.append(line)
    write_rows("rollout", rows)
    command = f"`python -m bench.rollout --rollouts {given.rollouts} --seed {given.seed}`, {machine()}"
    lines = [f"{command}: alpha {PLAN.terms.alpha:g} over all metrics, 20 requests a second, looked at every 10 s.", ""]
    lines += ["| version | rollouts | false alarms | reached 100 % | after |", "|---|---|---|---|---|", *good, ""]
    lines += ["| version | rollouts | found out | canary requests until then, median (90 %) | after | reached 100 % |"]
    lines += ["|---|---|---|---|---|---|", *worse, ""]
    lines += ["| more noise than is assumed | rollouts | false alarms | of the version at its margins |", "|---|---|---|---|", *rough, ""]
    refresh("rollout", "\n".join(lines))


if __name__ == "__main__":
    main()
