"""The test run itself: a test that hangs fails, a run that fails says so by its exit code, and its output names files and reasons."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.progress import Progress
from tests.time_box import TimeBox
from tests.time_limit import TimeLimit

def pytest_addoption(parser):
    parser.addoption("--within", type=float)
    parser.addoption("--order")

def pytest_configure(config):
    if config.getoption("--within"):
        config.pluginmanager.register(TimeBox(config.getoption("--within"), config.getoption("--order")))
    config.pluginmanager.register(Progress(config))
    config.pluginmanager.register(TimeLimit())

def pytest_asyncio_loop_factories():
    import uvloop
    return {"uvloop": uvloop.new_event_loop}
"""
HANGING = """
import asyncio, time
import pytest
from hypothesis import given, settings, strategies as st
pytestmark = pytest.mark.timeout(0.2)

@settings(database=None, deadline=None)
@given(st.integers())
def test_of_examples(number): time.sleep(3600)

async def test_waits_for_what_never_comes(): await asyncio.Event().wait()
async def test_never_waits_long():
    while True: await asyncio.sleep(0)
def test_sleeps(): time.sleep(3600)
def test_is_well(): pass
"""
ENDS_LATE = """
import contextlib, time
import pytest
pytestmark = pytest.mark.timeout(2.0)

@pytest.fixture
def never_ends():
    yield
    time.sleep(3600)

@pytest.fixture
def deaf():
    yield
    while True:
        with contextlib.suppress(BaseException): time.sleep(3600)

def test_fails(never_ends): assert False
def test_fails_too(deaf): assert False
def test_is_well(): pass
"""
ENDS = """
import os, time

def test_before(): pass
def test_ends():
    time.sleep(0.5)  # pytest-xdist cannot bear a process that ends while it sends the next tests there
    os._exit(70)
def test_after(): pass
"""
SOUND = """
import pytest
from tests.timing import skip_stalled

def test_is_well(): pass
def test_is_well_too(): pass
def test_is_not_judged(): skip_stalled("a timer was 3 s late")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\naddopts = -q\ntimeout = 30\n")
    return tmp_path


def run(folder: Path, *options: str) -> tuple[int, str]:
    """The exit code and the output of pytest on the files of `folder`."""
    plugins = ("-p", "pytest_timeout", "-p", "pytest_asyncio.plugin", "-p", "xdist.plugin")
    command = [sys.executable, "-m", "pytest", *plugins, "--rootdir", str(folder), *options, str(folder)]
    # the other installed plugins take longer to load than these tests take
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["in one process", "in a worker"])
def test_a_test_that_hangs_fails_at_its_limit_and_the_others_run(folder: Path, options: tuple[str, ...]) -> None:
    (folder / "test_hanging.py").write_text(HANGING)
    code, output = run(folder, *options)
    assert code == 1
    assert output.count(": the test took longer than its limit") >= 4
    for name in ("test_of_examples", "test_waits_for_what_never_comes", "test_never_waits_long", "test_sleeps"):
        assert f"FAILED test_hanging.py::{name}" in output
    assert "1/1 test_hanging.py: 1 passed, 4 failed" in output
    assert "5 tests in 1 files" in output
    assert "4 failed. One of them alone" in output


def test_a_failed_test_whose_end_hangs_does_not_hold_up_the_run(folder: Path) -> None:
    (folder / "conftest.py").write_text(CONFTEST + "\nimport tests.time_limit\ntests.time_limit.AGAIN_S = 0.1\n")
    (folder / "test_ends_late.py").write_text(ENDS_LATE)
    code, output = run(folder, "-n", "1")
    assert code == 1, output
    assert "FAILED test_ends_late.py::test_fails (teardown)" in output
    assert "crashed while running 'test_ends_late.py::test_fails_too'" in output  # nothing else ends it
    assert "4 failed" in output
    assert "1 passed" in output


def test_a_process_that_ends_is_replaced_and_only_its_test_fails(folder: Path) -> None:
    for name in ("a", "b", "c"):
        (folder / f"test_{name}.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    (folder / "test_z.py").write_text(ENDS)
    code, output = run(folder, "-n", "1", "--dist", "loadfile")
    assert code == 1, output
    assert output.count("FAILED test_z.py::test_ends") == 1, output
    assert "8 passed" in output, output
    assert "1 failed. One of them alone" in output, output


def test_a_file_is_named_when_it_is_over_and_a_skip_with_its_reason(folder: Path) -> None:
    (folder / "test_sound.py").write_text(SOUND)
    (folder / "test_another.py").write_text("def test_it(): pass\n")
    code, output = run(folder, "-n", "2", "--dist", "loadfile")
    assert code == 0
    assert "2/2 " in output
    assert "test_sound.py: 2 passed, 1 skipped" in output
    assert "skipped 1: the machine stalled: a timer was 3 s late" in output
    assert "not judged, because the machine stalled: test_sound.py::test_is_not_judged" in output
    assert "4 tests in 2 files" in output
    assert "nothing failed" in output


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["in one process", "in a worker"])
def test_a_run_with_a_time_of_its_own_begins_nothing_after_it_and_says_how_much_was_left_out(
    folder: Path, options: tuple[str, ...]
) -> None:
    for name in "abcdefgh":
        (folder / f"test_{name}.py").write_text("import time\ndef test_one(): time.sleep(0.4)\ndef test_two(): pass\n")
    orders = set()
    for order in ("one", "another"):
        code, output = run(folder, "--within", "0.005", "--order", order, *options)
        assert code == 0
        begun = re.findall(r"(test_\w)\.py: 1 passed, 1 skipped", output)
        assert len(begun) == 1
        assert "skipped 15: the 0.005 minutes of this run were over" in output
        orders.add(begun[0])
    assert len(orders) == 2


def test_a_run_that_cannot_collect_a_file_is_not_green(folder: Path) -> None:
    (folder / "test_sound.py").write_text(SOUND)
    (folder / "test_broken.py").write_text("import a_module_that_is_not_there\n")
    code, output = run(folder, "-n", "2")
    assert code != 0
    assert "a_module_that_is_not_there" in output
    code, output = run(folder, "-n", "2", "--continue-on-collection-errors")
    assert code != 0
    assert "could not be read, so none of its tests ran: " in output
    assert "nothing failed" not in output
