"""A supervisor that becomes a new one keeps its pid, its sockets and its children; one that cannot stays what it is."""

import os
import signal

import pytest

from gateway.process.hot_restart import VARIABLE, handed_over
from tests.supervised import Running, Start, gone, until, wait_until_gone

pytestmark = pytest.mark.slow


def starts(running: Running) -> int:
    """How many supervisors there were."""
    return len((running.home / "starts").read_text())


def children(running: Running) -> set[int]:
    return {slot["pid"] for slot in running.slots().values()}


def replaced(running: Running, before: set[int]) -> bool | None:
    """For `until`."""
    now = children(running)
    return True if now and None not in now and not now & before else None


@pytest.mark.fault("restart under load")
def test_everything_is_new_but_the_pid_and_no_connection_is_refused(start: Start) -> None:
    running = start(workers=2).ready()
    told, before, answers = running.read("ready.json"), children(running), []
    running.process.send_signal(signal.SIGUSR2)

    def asked_until_replaced() -> bool | None:
        answers.append(running.ask())
        return replaced(running, before)

    until(asked_until_replaced, "every child is replaced")
    answers += [running.ask() for _ in range(50)]
    assert None not in answers
    assert starts(running) == 2
    assert running.read("ready.json") == told, "the same ports and the same pid"
    for pid in before:
        wait_until_gone(pid)
    assert running.stop() == 0
    assert list((running.home / "run").iterdir()) == [running.home / "run" / "lock"]


def test_there_may_be_more_workers(start: Start) -> None:
    running = start().ready()
    (running.home / "more").touch()
    running.process.send_signal(signal.SIGUSR2)
    until(lambda: True if len(running.slots()) == 3 and None not in children(running) else None, "a second worker")
    until(lambda: True if len(running.pids()) == 2 else None, "both answer")
    (running.home / "more").unlink()
    before = children(running)
    running.process.send_signal(signal.SIGUSR2)
    until(lambda: replaced(running, before), "every child is replaced")
    assert len(running.slots()) == 3, "and they do not get fewer"
    assert running.stop() == 0


def test_a_start_that_would_fail_is_not_begun(start: Start) -> None:
    running = start("broken").ready()
    before = children(running)
    running.process.send_signal(signal.SIGUSR2)
    assert running.process.stderr
    assert b'"event":"ready"' in running.process.stderr.readline()
    assert b"the new start fails (exit 4)" in running.process.stderr.readline()
    assert (children(running), starts(running)) == (before, 1)
    assert running.stop() == 0


def test_what_is_told_meanwhile_is_heard(start: Start) -> None:
    """SIGTERM during the rehearsal, and a worker that dies in it."""
    running = start("slow", workers=2).ready()
    running.process.send_signal(signal.SIGUSR2)
    answer = running.ask()
    assert answer
    os.kill(answer[1], signal.SIGKILL)
    until(lambda: True if running.slots()[f"worker-{answer[0]}"]["restarts"] == 1 else None, "it is seen")
    (running.home / "slow").unlink()
    until(lambda: True if starts(running) == 2 else None, "a new supervisor")
    assert running.slots()[f"worker-{answer[0]}"]["restarts"] == 1, "and it is remembered"
    (running.home / "slow").touch()
    running.process.send_signal(signal.SIGUSR2)
    assert running.stop() == 0, "a signal that comes while it is made anew waits for it"
    assert gone(running.process.pid)


@pytest.mark.parametrize("value", ["", "nonsense", "9999"])
def test_the_variable_is_for_its_own_use(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match="unset it"):
        handed_over()
    assert VARIABLE not in os.environ
    assert handed_over() is None
