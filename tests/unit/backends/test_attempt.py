import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.attempt import BUDGET_FLOOR, CUT, ELSEWHERE, MAX_CONTINUATIONS, SAVED, RetryBudget, may_go_on, may_retry
from domain.faults import SOURCE, Kind, Source


def ask(kind: Kind = Kind.CONNECT_FAILED, **given: object) -> bool:
    arguments = {"retries": 0, "answer_begun": False, "spent_share": 0.0, "budget": RetryBudget(), **given}
    return may_retry(kind, **arguments)  # type: ignore[arg-type]


def test_only_engines_failures_are_tried_elsewhere() -> None:
    assert {SOURCE[kind] for kind in ELSEWHERE} == {Source.ENGINE}
    assert [kind for kind in Kind if ask(kind)] == [kind for kind in Kind if kind in ELSEWHERE]


@pytest.mark.req("R11")
@pytest.mark.parametrize("given", [{"answer_begun": True}, {"retries": 1}, {"spent_share": 0.51}])
def test_never_after_the_first_byte_nor_twice_nor_late(given: dict[str, object]) -> None:
    assert ask()
    assert not ask(**given)


@pytest.mark.req("R11")
@given(st.integers(1, 400), st.integers(1, 64), st.floats(0.0, 1.0), st.integers(0, 2**32))
def test_retries_stay_within_the_budget_under_any_interleaving(requests: int, lanes: int, failing: float, seed: int) -> None:
    rng, budget = random.Random(seed), RetryBudget()
    in_flight: list[int] = []
    retried = 0
    while requests or in_flight:
        if requests and (len(in_flight) < lanes) and (not in_flight or rng.random() < 0.6):
            requests -= 1
            budget.active += 1
            budget.arrived += 1
            in_flight.append(0)
            continue
        retries = in_flight.pop(rng.randrange(len(in_flight)))
        budget.retrying -= retries
        if rng.random() < failing and ask(retries=retries, budget=budget):
            budget.retry()
            retried += 1
            in_flight.append(1)
            assert budget.retrying <= max(BUDGET_FLOOR, 0.2 * budget.active + 1)
        else:
            budget.active -= 1
    assert (budget.active, budget.retrying) == (0, 0)
    assert retried <= SAVED + 0.2 * 400


@pytest.mark.req("R11")
def test_attempts_are_at_most_a_quarter_more_than_requests() -> None:
    budget, attempts = RetryBudget(), 0
    for _ in range(1000):
        budget.active += 1
        budget.arrived += 1
        attempts += 1
        if ask(budget=budget):
            budget.retry()
            attempts += 1
            budget.retrying -= 1
        budget.active -= 1
    assert attempts <= 1250


@pytest.mark.req("R11")
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_the_workers_of_a_host_share_what_is_always_allowed_and_what_is_saved_up(workers: int) -> None:
    """At once: the configured floor, and one per worker; over time: what one worker had saved up, and one per worker."""
    budgets = [RetryBudget(workers) for _ in range(workers)]
    at_once = 0
    for budget in budgets:
        while ask(budget=budget):
            budget.retry()
            at_once += 1
    assert BUDGET_FLOOR <= at_once < BUDGET_FLOOR + workers
    for budget in budgets:
        budget.retrying = 0
        while ask(budget=budget):
            budget.retry()
            budget.retrying = 0
            at_once += 1
    assert at_once <= max(SAVED, workers), "nothing was earned meanwhile"


@pytest.mark.req("R11")
def test_an_answer_goes_on_after_its_engines_failure_alone_and_a_bounded_number_of_times() -> None:
    assert {SOURCE[kind] for kind in CUT} == {Source.ENGINE}
    assert Kind.INVALID_REPLY not in CUT, "what is garbage may have been garbage before"
    for kind in Kind:
        assert may_go_on(kind, 0) is (kind in CUT)
        assert may_go_on(kind, 1) is (kind in CUT | ELSEWHERE)
        assert not may_go_on(kind, MAX_CONTINUATIONS)
