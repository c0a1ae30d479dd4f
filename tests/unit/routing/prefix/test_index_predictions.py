from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.prefix.index import PREDICTION_TTL_S, BackendLife, Prediction, Predictions

CHAINS = [[*range(100, 100 + n)] for n in range(5)] + [[100, 101, *range(200, 200 + n)] for n in range(4)]
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, len(CHAINS) - 1)),
        st.tuples(st.just("withdraw"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 4), st.just(0)),
    ),
    max_size=40,
)


def bits(predictions: Predictions, block: int, now: float) -> int:
    out = 0
    for one in predictions.groups.get(block, ()):
        out |= one.bit_at(now)
    return out


@settings(deadline=None)
@given(OPS)
def test_a_block_is_predicted_where_a_prompt_with_it_went_lately_that_did_not_fail(ops: list[tuple[str, int, int]]) -> None:
    predictions, holders, now = Predictions(1_000, PREDICTION_TTL_S), [BackendLife(1 << i) for i in range(3)], 0.0
    made: list[tuple[Prediction, Sequence[int], float]] = []
    for op, a, b in ops:
        if op == "add":
            made.append((predictions.add(holders[a], CHAINS[b], now), CHAINS[b], now))
        elif op == "withdraw" and made:
            one, _, at = made.pop(a % len(made))
            predictions.withdraw(one)
            predictions.withdraw(one)
        elif op == "wait":
            now += a
        for block in range(100, 210):
            expected = 0
            for one, chain, at in made:
                if block in chain and now < at + PREDICTION_TTL_S:
                    expected |= one.holder.bit
            assert bits(predictions, block, now) == expected


def test_of_two_that_can_stand_in_the_one_that_stands_for_longer_does() -> None:
    predictions, holder = Predictions(1_000, PREDICTION_TTL_S), BackendLife(1)
    predictions.add(holder, [1, 2, 3], 0.0)
    predictions.add(holder, [1], 2.0)
    predictions.withdraw(predictions.add(holder, [1, 2, 3], 2.0))
    assert [bits(predictions, block, PREDICTION_TTL_S) for block in (1, 2, 3)] == [1, 0, 0]


@pytest.mark.req("ROUTERS-15")
def test_nothing_is_left_of_what_expired_or_failed(record_property: Callable[[str, object], None]) -> None:
    predictions, holder, now = Predictions(1_000_000, PREDICTION_TTL_S), BackendLife(1), 0.0
    most = 0
    for i in range(5_000):
        now += 0.01
        one = predictions.add(holder, range(i * 20, i * 20 + 20), now)
        if i % 3 == 0:
            predictions.withdraw(one)
            assert i * 20 not in predictions.groups
        most = max(most, len(predictions.groups))
    assert most <= (PREDICTION_TTL_S / 0.01 + 2) * 20
    now += PREDICTION_TTL_S
    for _ in range(200):
        predictions.add(holder, (), now)
    assert not predictions.groups
    record_property("figure", f"a failed dispatch leaves 0 blocks at once; 5,000 prompts in 50 s: at most {most:,} blocks, then 0")


@settings(deadline=None)
@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 40)), max_size=40))
def test_the_bound_holds_after_every_prediction(bound: int, runs: list[tuple[int, int, int]]) -> None:
    predictions, holders = Predictions(bound, PREDICTION_TTL_S), [BackendLife(1 << i) for i in range(3)]
    for who, first, length in runs:
        predictions.add(holders[who], range(first, first + length), 0.0)
        assert len(predictions.groups) <= bound


def test_a_life_that_is_over_is_predicted_nothing() -> None:
    predictions, holder = Predictions(100, PREDICTION_TTL_S), BackendLife(1)
    predictions.add(holder, [1, 2], 0.0)
    holder.bit = 0
    assert bits(predictions, 1, 0.0) == 0


def test_many_siblings_make_an_entry_no_longer() -> None:
    predictions, holders = Predictions(1_000, PREDICTION_TTL_S), [BackendLife(1), BackendLife(2)]
    for i in range(1_000):
        predictions.add(holders[i % 2], [1, 2, 3], i / 1_000)
    assert {len(group) for group in predictions.groups.values()} == {2}
