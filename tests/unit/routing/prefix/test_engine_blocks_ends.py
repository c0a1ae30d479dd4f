from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.prefix.engine_blocks import done_by, packed, unpacked

hashes = st.integers(-(1 << 63), (1 << 63) - 1)


@settings(deadline=None)
@given(hashes, st.lists(st.integers(0, (1 << 32) - 1), max_size=70), st.lists(hashes, max_size=3))
def test_what_is_packed_is_unpacked(before: int, rest: list[int], done: list[int]) -> None:
    last = done[-1] if done else before
    kept = packed(last, array("I", rest), done)
    end = unpacked(kept)
    assert (end.last, list(end.rest), list(done_by(kept))) == (last, rest, done)
