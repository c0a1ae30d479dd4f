"""Fields with their lengths in front."""

from hypothesis import given
from hypothesis import strategies as st

from cache.fields import joined

ROWS = st.lists(st.binary(max_size=8), max_size=4)


@given(one=ROWS, other=ROWS)
def test_two_rows_of_fields_are_joined_alike_only_if_they_are_equal(one: list[bytes], other: list[bytes]) -> None:
    assert (joined(one) == joined(other)) == (one == other)
