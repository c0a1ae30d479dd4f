"""How much of what engines cache is used again."""

import pytest

from routing.rates import Reuse


def test_it_is_the_share_of_tokens_that_were_cached_lately() -> None:
    reuse = Reuse()
    assert reuse.share == 0.0
    for _ in range(1000):
        reuse.note(1000, 900)
        reuse.note(9000, 2100)
    assert reuse.share == pytest.approx(0.3, abs=0.01)  # of tokens, not of prompts
    for _ in range(1000):
        reuse.note(5000, 0)
    assert reuse.share < 0.01
