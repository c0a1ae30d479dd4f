"""The breaker of a detector: how many failures open it, for how long, and who tries it then."""

import random

from guardrails.detectors.breaker import FAILURES, JITTER, REST_FIRST_S, REST_LONGEST_S, DetectorBreaker


def opened(breaker: DetectorBreaker, now: float) -> None:
    for _ in range(FAILURES):
        breaker.enter(now)
    for _ in range(FAILURES):
        breaker.failed(now, probe=False)


def test_it_opens_with_the_last_of_the_failures_and_no_sooner() -> None:
    breaker = DetectorBreaker(random.Random(1))
    for _ in range(FAILURES - 1):
        breaker.failed(0.0, probe=False)
    assert not breaker.shut(0.0)
    breaker.failed(0.0, probe=False)
    assert breaker.shut(0.0)
    assert breaker.opened == 1


def test_rests_double_up_to_the_longest_and_differ() -> None:
    lasted = []
    for seed in range(20):
        breaker, now = DetectorBreaker(random.Random(seed)), 0.0
        opened(breaker, now)
        rests = []
        for _ in range(8):
            began = now
            while breaker.shut(now):
                now += 0.01
            rests.append(now - began)
            assert breaker.enter(now)
            breaker.failed(now, probe=True)
        lasted.append(rests[0])
        for number, rest in enumerate(rests):
            middle = min(REST_FIRST_S * 2**number, REST_LONGEST_S)
            assert middle * (1 - JITTER) - 0.011 <= rest <= middle * (1 + JITTER) + 0.011
    assert len({round(rest, 2) for rest in lasted}) > 15, "workers do not come back in step"


def test_one_question_tries_it_and_its_end_decides() -> None:
    breaker = DetectorBreaker(random.Random(1))
    opened(breaker, 0.0)
    now = REST_FIRST_S * (1 + JITTER)
    assert not breaker.shut(now)
    assert breaker.enter(now)
    assert breaker.shut(now)
    breaker.failed(now, probe=False)  # a late one from before
    breaker.unknown(probe=False)
    assert breaker.shut(now), "only the end of the question that tries it counts"
    breaker.unknown(probe=True)
    assert not breaker.shut(now)
    assert breaker.enter(now)
    breaker.succeeded()
    assert not breaker.shut(now)
    assert not breaker.enter(now)
