"""Single requests that simulated rollouts draw from, made once: it takes seconds, and every worker imports every test module."""

from random import Random

import pytest

from bench.rollout.traffic import pools


@pytest.fixture(scope="session")
def pool() -> dict[str, list[float]]:
    return pools(Random(1))
