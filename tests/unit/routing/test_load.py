"""What is in flight: every charge is released once, and what came and went since a mark is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.load import Load


@pytest.mark.req("ROUTERS-29")
@given(st.lists(st.booleans(), max_size=50), st.integers(0, 50))
def test_what_came_and_went_since_a_mark(steps: list[bool], at: int) -> None:
    load = Load(id for id in ("a", "b"))
    mark, sent, ended = load.mark("a"), 0, 0
    for index, charge in enumerate(steps):
        if index == at:
            mark, sent, ended = load.mark("a"), 0, 0
        if charge:
            load.charge("a")
            sent += 1
        elif load.in_flight["a"]:
            load.release("a")
            ended += 1
    assert load.since("a", mark) == (sent, ended)
    assert load.since("b", load.mark("b")) == (0, 0)
    assert load.total() == load.in_flight["a"]
