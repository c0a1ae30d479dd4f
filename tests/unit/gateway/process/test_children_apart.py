"""Work of the start runs in a process of its own: its result comes back, what it leaves in memory does not."""

import os
import signal
import sys

import pytest

from gateway.process.children import run_apart


@pytest.mark.parametrize("code", [0, 1, 7])
def test_the_result_of_the_work_comes_back(code: int) -> None:
    assert run_apart(lambda: code) == code


def test_the_work_changes_nothing_here() -> None:
    changed: list[int] = []

    def work() -> int:
        changed.append(os.getpid())
        sys.modules["only_there"] = sys
        return 0

    assert run_apart(work) == 0
    assert changed == []
    assert "only_there" not in sys.modules


def test_work_that_raises_is_told_on_stderr_and_ends_with_1(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise ZeroDivisionError("of the work")

    assert run_apart(work) == 1
    assert "ZeroDivisionError: of the work" in capfd.readouterr().err


def test_a_signal_is_told_apart_from_every_result() -> None:
    def work() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert run_apart(work) == 128 + signal.SIGKILL
