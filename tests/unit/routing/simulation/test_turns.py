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


def test_what_a_limit_refused_stays_only_where_the_fleet_has_one() -> None:
    turns = [
        TraceRequest(0.0, 1, 5, tenant="a"),
        TraceRequest(1.0, 2, 5, tenant="a", limited=True),
        TraceRequest(2.0, 3, 5, tenant="b", limited=True),
        TraceRequest(3.0, 4, 5, tenant="b", after=1),
        TraceRequest(4.0, 5, 5, tenant="b", after=3),
    ]
    work = Workload("w", turns)
    assert [turn.prompt_tokens for turn in work.without_limited(["a", "b"]).turns] == [1, 2, 3, 4, 5]
    left = work.without_limited(["b"])
    assert [(turn.prompt_tokens, turn.after) for turn in left.turns] == [(1, -1), (3, -1), (4, -1), (5, 2)]
    assert left.notes == ["1 requests that a limit refused are left out: the fleet gives their tenants no limit"]


def test_who_waits_for_an_oversize_turn_waits_for_the_one_before() -> None:
    turns = [TraceRequest(1.0, 10, 5), TraceRequest(1.0, 90, 50, after=0, think_s=2.0), TraceRequest(1.0, 20, 5, after=1, think_s=3.0)]
    workload = Workload("w", turns).without_oversize(100)
    assert [(turn.prompt_tokens, turn.after, turn.think_s) for turn in workload.turns] == [(10, -1, 0.0), (20, 0, 5.0)]
    assert workload.notes == ["1 requests of more than 100 tokens are left out"]


def test_a_session_that_begins_oversize_begins_later() -> None:
    turns = [TraceRequest(1.0, 90, 50), TraceRequest(1.0, 20, 5, after=0, think_s=3.0)]
    assert [turn.after for turn in Workload("w", turns).without_oversize(100).turns] == [-1]


def test_an_answer_is_the_blocks_of_the_next_prompt_that_it_completes() -> None:
    # 2 blocks of 8 and 3 tokens more; the 14 tokens of the answer but the last fill block 2 and the whole of block 3
    turns = [TraceRequest(0.0, 19, 14, [1, 2]), TraceRequest(0.0, 60, 5, [1, 2, 3, 4, 5, 6, 7], after=0)]
    assert Workload("w", turns, 8).with_answers().turns[0].answer == [3, 4]
    other = [TraceRequest(0.0, 19, 14, [1, 2]), TraceRequest(0.0, 60, 5, [1, 9, 3, 4, 5, 6, 7], after=0)]
    assert Workload("w", other, 8).with_answers().turns[0].answer == ()
