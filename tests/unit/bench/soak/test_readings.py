import os

import pytest

from bench.soak.readings import rss_mib, slope


def test_slope_is_the_growth_of_the_second_for_one_of_the_first() -> None:
    assert slope([(0, 5), (1, 7), (2, 9)]) == pytest.approx(2)
    assert slope([(3, 4), (3, 9)]) == 0


def test_memory_of_a_process_is_read() -> None:
    assert 1 < rss_mib(os.getpid()) < 100_000
