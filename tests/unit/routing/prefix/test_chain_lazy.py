"""The same hashes as at once, made as far as somebody looks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.prefix.chain import STRIDE, LazyChain, of_text
from routing.prefix.index import PrefixIndex

TEXT = bytes(range(256)) * 40


@given(st.integers(0, 3000), st.lists(st.integers(-200, 200), max_size=8), st.slices(190))
def test_it_is_the_chain_in_whatever_order_it_is_looked_at(size: int, indices: list[int], part: slice) -> None:
    plain, lazy = of_text(7, TEXT[:size], 16), LazyChain(7, TEXT[:size], 16)
    assert len(lazy) == len(plain)
    for index in indices:
        if -len(plain) <= index < len(plain):
            assert lazy[index] == plain[index]
        else:
            with pytest.raises(IndexError):
                lazy[index]
    assert lazy[part] == plain[part]
    assert list(lazy) == plain == lazy[:]


@pytest.mark.req("ROUTERS-22")
@pytest.mark.parametrize("held", [0, 1, 31, 32, 33, 500])
def test_hashing_ends_where_the_index_does(held: int) -> None:
    """The work is in proportion to what is known of a prompt, whatever its length."""
    index = PrefixIndex(10_000)
    index.stored("gpu-0", of_text(7, TEXT, 16)[:held])
    lazy = LazyChain(7, TEXT, 16)
    assert index.match(lazy, 0.0).held("gpu-0") == held
    assert held <= lazy.hashed <= held + STRIDE
    assert len(lazy) == 640
