"""The limit of file descriptors is raised, and bounds the connections."""

import resource
import subprocess
import sys

import pytest

from gateway.process.file_descriptors import LEAST_CONNECTIONS, RESERVED, bounded_connections, connections_within

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize(
    ("descriptors", "wanted", "connections"),
    [(1024, 20_000, 448), (65_536, 20_000, 20_000), (256, 20_000, 64), (20, 20_000, LEAST_CONNECTIONS), (1024, 100, 100), (64, 4, 4)],
)
def test_each_connection_may_need_one_to_an_engine(descriptors: int, wanted: int, connections: int) -> None:
    assert connections_within(descriptors, wanted) == connections
    if descriptors > RESERVED + 2 * LEAST_CONNECTIONS:
        assert 2 * connections + RESERVED <= max(descriptors, 2 * wanted + RESERVED)


def under(soft: int, hard: int) -> str:
    """What a process prints that begins with these limits."""
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from gateway.process.file_descriptors import bounded_connections
class Log:
    def warning(self, event, **fields):
        print(event, fields["descriptors"], fields["connections"], fields["max_connections"], fields["remedy"])
print(bounded_connections(1000, Log()), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert under(256, 4096) == "1000 4096\n"


def test_a_low_hard_limit_is_said_with_its_remedy() -> None:
    said = under(256, 512)
    assert said.endswith("\n192 512\n")
    assert "512 192 1000 raise the hard limit to 2128" in said


def test_nothing_is_said_without_a_log() -> None:
    assert bounded_connections(10) == 10


def test_descriptors_are_kept_for_others() -> None:
    assert connections_within(1024, 1000) - connections_within(1024, 1000, kept=512) == 256
