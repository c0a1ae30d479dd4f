"""The short form of `make bench-rollout`."""

from math import comb
from random import Random

import msgspec

from bench.rollout.__main__ import AT_MARGIN, SAME
from bench.rollout.course import rollout
from bench.rollout.traffic import Version
from policies.rollout.plan import OnTimeout, RolloutPlan, RolloutStep

SHORT = RolloutPlan(
    "short",
    (RolloutStep(0.05, 50, 200), RolloutStep(0.25, 50, 200), RolloutStep(0.5, 50, 400), RolloutStep(1.0)),
    warm_up_s=60.0,
    on_timeout=OnTimeout.HOLD,
)


def at_most(rate: float, of: int) -> int:
    """So many events of that rate are exceeded once in ten thousand tries."""
    left, count = 1.0, -1
    while left > 1e-4:
        count += 1
        left -= comb(of, count) * rate**count * (1 - rate) ** (of - count)
    return count


def test_versions_that_are_no_worse_than_their_margins_seldom_go_back(pool: dict[str, list[float]]) -> None:
    rng, runs = Random(2), 100
    for version in (SAME, AT_MARGIN):
        ended = [rollout(rng, pool, version, SHORT) for _ in range(runs)]
        assert sum(one.found_worse for one in ended) <= at_most(SHORT.terms.alpha, runs)
        assert all(one.done or one.found_worse for one in ended)


def test_a_version_that_is_a_third_slower_goes_back(pool: dict[str, list[float]]) -> None:
    plan = msgspec.structs.replace(SHORT, steps=(*SHORT.steps[:-2], RolloutStep(0.5, 50, 1200), RolloutStep(1.0)))
    rng = Random(3)
    ended = [rollout(rng, pool, Version("slow", {"itl": 1.33}), plan) for _ in range(30)]
    assert sum(one.found_worse for one in ended) >= 29
    assert {one.metric for one in ended if one.found_worse} == {"itl"}
