import random

import pytest

from bench.overload.figures import by_second, jain, overall, recovery_s
from bench.overload.load import Sample
from bench.overload.plan import SLO_TTFT_S, Phase, arrivals, planned


def sample(at_s: float, *, ttft_s: float | None = 0.5, how: str = "ok", tenant: int = 0) -> Sample:
    return Sample(at_s, tenant, "default", ttft_s=ttft_s, how=how, prompt_tokens=10, output_tokens=5)


def test_jain_is_one_when_all_have_the_same_and_a_share_when_one_has_it_all() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == 0


def test_goodput_counts_whole_answers_that_began_in_time() -> None:
    found = overall([sample(0), sample(1, ttft_s=SLO_TTFT_S + 0.1), sample(2, ttft_s=None, how="refused")], 2.0)
    assert (found["goodput_per_s"][0], found["answered_per_s"][0]) == (0.5, 1.0)
    assert found["refused_share"][0] == pytest.approx(1 / 3)


def test_a_tenant_that_got_nothing_counts_in_the_fairness() -> None:
    assert overall([sample(0), sample(0, tenant=1, how="left")], 1.0)["jain"][0] == pytest.approx(0.5)


def test_recovery_is_when_goodput_is_back_for_good() -> None:
    def run(bad_until: float, again: tuple[float, float] = (0, 0)) -> list[Sample]:
        bad = [(at, 20 <= at < bad_until or again[0] <= at < again[1]) for at in map(float, range(100))]
        return [sample(at, how="left" if wrong else "ok") for at, wrong in bad]

    assert recovery_s(run(30), (0, 20), 30, 100) == 0
    assert recovery_s(run(45), (0, 20), 30, 100) == pytest.approx(15, abs=1)
    assert recovery_s(run(45, (60, 70)), (0, 20), 30, 100) == pytest.approx(40, abs=1)
    assert recovery_s(run(100), (0, 20), 30, 100) == 70


def test_samples_by_second_are_those_of_their_own_second() -> None:
    assert by_second([sample(0.5), sample(0.9), sample(2.1, how="left")], 3) == [2, 0, 0]


def test_arrivals_are_those_of_the_phases_and_the_same_for_a_seed() -> None:
    phases = [Phase(50, 10), Phase(10, 0), Phase(50, 40)]
    plan = planned("a", phases, range(3))
    assert plan == planned("a", phases, range(3))
    at = [one.at_s for one in plan]
    assert at == sorted(at)
    assert sum(one < 50 for one in at) == pytest.approx(500, rel=0.2)
    assert not [one for one in at if 50 <= one < 60]
    assert sum(one > 60 for one in at) == pytest.approx(2000, rel=0.1)


def test_nothing_comes_in_no_time() -> None:
    assert arrivals(random.Random(1), [Phase(0, 5)]) == []
