"""Workloads: scaling moves arrivals only, and a cut never leaves a turn without the one it waits for."""

from hypothesis import given
from hypothesis import strategies as st

from routing.simulation.turns import TraceRequest, Workload, fresh_chain


def test_scaling_moves_arrivals_only() -> None:
    work = Workload("w", [TraceRequest(10.0, 5, 5), TraceRequest(0.0, 5, 5, after=0, think_s=4.0)])
    denser = work.scaled(2.0)
    assert [(turn.at_s, turn.think_s) for turn in denser.turns] == [(5.0, 0.0), (0.0, 4.0)]
    assert work.scaled(1.0) is work


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(-1, 30)), min_size=1, max_size=30), st.integers(1, 30))
def test_a_cut_keeps_what_is_waited_for(drawn: list[tuple[float, int]], count: int) -> None:
    turns = [TraceRequest(at, i + 1, 1, after=after if after < i else -1, think_s=1.0) for i, (at, after) in enumerate(drawn)]
    kept = Workload("w", turns).first(count).turns
    assert len(kept) == min(count, len(turns))
    for at, turn in enumerate(kept):
        before = turns[turn.prompt_tokens - 1].after
        assert turn.after < at
        assert (kept[turn.after].prompt_tokens - 1 if turn.after >= 0 else -1) == before


def test_fresh_chains_share_nothing_and_repeat() -> None:
    assert fresh_chain(200, 64, 1) == fresh_chain(200, 64, 1)
    assert len(fresh_chain(200, 64, 1)) == 3
    assert not set(fresh_chain(200, 64, 1)) & set(fresh_chain(200, 64, 2))
