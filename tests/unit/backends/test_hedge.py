import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.hedge import ENOUGH, SAVED, SHARE, Hedge


def seen(*times: float) -> Hedge:
    hedge = Hedge(512)
    for one in times:
        hedge.began(one)
    return hedge


def test_the_delay_is_what_19_of_20_stay_under_and_unknown_at_first() -> None:
    assert seen(*[0.1] * (ENOUGH - 1)).delay_s is None
    hedge = seen(*[n / 100 for n in range(100)])
    assert hedge.delay_s == pytest.approx(0.95, abs=0.17)
    for _ in range(300):
        hedge.began(2.0)
    assert hedge.delay_s == 2.0, "a pool that became slow for good is not hedged more"


@given(st.lists(st.booleans(), max_size=2000))
def test_hedges_are_at_most_two_in_a_hundred_requests(asked: list[bool]) -> None:
    hedge, hedges = Hedge(512), 0
    for requests, late in enumerate(asked, 1):
        hedge.request()
        hedges += late and hedge.spend()
        assert hedges <= 1 + SHARE * requests + 1e-9


def test_a_quiet_hour_saves_no_burst_up() -> None:
    hedge = Hedge(512)
    for _ in range(10_000):
        hedge.request()
    assert [hedge.spend() for _ in range(5)] == [True] * int(SAVED) + [False] * (5 - int(SAVED))


@given(st.integers(1, 16), st.integers(0, 3000))
def test_the_hedges_of_a_host_are_two_in_a_hundred_of_its_requests_and_one_per_worker(workers: int, requests: int) -> None:
    hedges, spent = [Hedge(512, workers) for _ in range(workers)], 0
    for n in range(requests):
        hedges[n % workers].request()
        spent += hedges[n % workers].spend()
    assert spent <= 1 + SHARE * requests + 1e-6
    for hedge in hedges:
        for _ in range(1000):
            hedge.request()
        spent = 0
        while hedge.spend():
            spent += 1
        assert spent <= max(1, SAVED / workers)
