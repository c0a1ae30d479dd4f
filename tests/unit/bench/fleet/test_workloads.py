from itertools import pairwise

import pytest

from bench.fleet import workloads
from bench.fleet.workloads import CASES, capacity_of, case_of, dice, most_tokens, prepared


def test_an_unknown_workload_and_one_without_a_capacity_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no workload 'chess'; there are shared-prefix"):
        case_of("chess")
    monkeypatch.setattr(workloads, "_capacities", dict)
    with pytest.raises(ValueError, match="--workloads lora` measures it"):
        capacity_of(case_of("lora"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_is_prepared_that_no_engine_takes(case: workloads.Case) -> None:
    workload = prepared(case, None, dice(0), sealed=False, limit=200)
    if workload is not None:
        assert len(workload.turns) <= 200
        assert all(turn.prompt_tokens + turn.output_tokens <= most_tokens(case) for turn in workload.turns)


def test_shared_prefixes_arrive_at_an_even_rate() -> None:
    workload = prepared(case_of("shared-prefix"), None, dice(0), sealed=False, limit=20_000)
    assert workload is not None
    assert len(workload.turns) >= 10_000
    quarters = [sum(1 for turn in workload.turns if 225.0 * at <= turn.at_s < 225.0 * (at + 1)) for at in range(4)]
    assert all(abs(one - other) < 300 for one, other in pairwise(quarters))
