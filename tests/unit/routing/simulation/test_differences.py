"""Differences between policies: the interval holds the true one as often as it says, also where a queue makes many requests late."""

import random

from routing.simulation.differences import STRETCHES, Stretch, differences, stretches
from routing.simulation.outcomes import Outcomes, RequestEnd, none_yet
from routing.simulation.turns import TraceRequest, Workload

TRUE_S = 0.1
REQUESTS = 1600


def runs(seed: int) -> tuple[Workload, Outcomes, Outcomes]:
    """Two runs of which the second is `TRUE_S` slower in the mean; lateness fades over some ten requests."""
    rng = random.Random(seed)
    workload = Workload("w", [TraceRequest(float(at), 100, 1) for at in range(REQUESTS)])
    one, other = none_yet(REQUESTS), none_yet(REQUESTS)
    late = 0.0
    for at in range(REQUESTS):
        late = 0.9 * late + rng.gauss(0.0, 0.1)
        for outcomes, seconds in ((one, 1.0), (other, 1.0 + TRUE_S + late)):
            outcomes.arrived[at] = float(at)
            outcomes.first[at] = at + seconds
            outcomes.state[at] = RequestEnd.DONE
        one.cached[at], other.cached[at] = 50, 25
    return workload, one, other


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(60):
        found = differences(stretches(*runs(seed)), random.Random(seed))["ttft_mean_s"]
        held += found.low <= TRUE_S <= found.high
    assert held >= 51, "57 of 60 are promised; 20 stretches give some fewer"


def test_a_difference_without_spread_is_exact() -> None:
    found = differences(stretches(*runs(1)), random.Random(1))["hit_rate"]
    assert (found.mean, found.low, found.high, found.clear) == (-0.25, -0.25, -0.25, True)


def test_only_requests_that_both_answered_count() -> None:
    workload, one, other = runs(2)
    for at in range(100):
        other.state[at] = RequestEnd.REFUSED
        one.first[at] += 1e6
    found = stretches(workload, one, other)
    assert sum(stretch.requests for stretch in found) == REQUESTS - 100
    assert len(found) == STRETCHES
    assert abs(differences(found, random.Random(0))["ttft_mean_s"].mean) < 10.0


def test_nothing_in_common_gives_no_difference() -> None:
    workload, one, _ = runs(3)
    assert differences(stretches(workload, one, none_yet(REQUESTS)), random.Random(0)) == {}
    assert not differences([Stretch(1, 1.0, 1, 0), Stretch(1, -1.0, 1, 0)], random.Random(0))["ttft_mean_s"].clear
