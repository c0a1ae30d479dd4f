"""Wilson's interval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cache.intervals import wilson


@given(st.integers(1, 10_000), st.data())
def test_each_bound_is_where_the_score_test_changes_its_mind(of: int, data: st.DataObject) -> None:
    """Wilson's definition: a bound b solves (share - b)² = z² b (1 - b) / n."""
    share = (hits := data.draw(st.integers(0, of))) / of
    for bound in wilson(hits, of):
        assert (share - bound) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / of, abs=1e-7)


@given(st.integers(1, 10_000), st.data())
def test_the_share_is_inside_and_the_sides_mirror(of: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, of))
    low, high = wilson(hits, of)
    assert 0 <= low <= hits / of + 1e-12 and hits / of - 1e-12 <= high <= 1
    mirrored = wilson(of - hits, of)
    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-9)


def test_nothing_counted_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
