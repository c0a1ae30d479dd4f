"""The supervisor's laws, on real processes: it runs in a process of its own, with tiny children that serve their pid."""

import contextlib
import json
import os
import signal
from datetime import datetime
from pathlib import Path

import pytest

from gateway.process.children import describe_end, ended_cleanly
from gateway.process.sockets import CannotStart, claim_admin_socket, claim_data_sockets, claim_run_dir
from tests.supervised import Start, gone, until, wait_until_gone


def test_two_workers_share_a_free_port_and_end_with_0_on_sigterm(start: Start) -> None:
    running = start(workers=2).ready()
    assert running.process.stderr
    line = running.process.stderr.readline().decode()
    ready = running.read("ready.json")
    assert ready
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("timestamp")).tzinfo is not None
    assert told == {
        "event": "ready",
        "data": f"http://127.0.0.1:{ready['data_port']}",
        "admin": f"http://127.0.0.1:{ready['admin_port']}",
        "workers": 2,
        "pid": ready["pid"],
        "role": "supervisor",
        "level": "info",
    }
    pids = until(lambda: found if len(found := running.pids()) == 2 else None, "both workers answer")
    assert running.stop() == 0
    assert (running.home / "draining").exists(), "the admin process hears SIGTERM before it is let go"
    assert all(gone(pid) for pid in pids)
    assert list((running.home / "run").iterdir()) == [running.home / "run" / "lock"]


def test_no_connection_is_accepted_before_a_worker_is_ready(start: Start) -> None:
    running = start("hold-0")
    assert running.ask() is None
    assert running.read("ready.json") is None
    (running.home / "hold-0").unlink()
    running.ready()
    assert running.ask() is not None
    assert running.stop() == 0


def test_a_killed_worker_is_replaced_and_counted(start: Start) -> None:
    running = start().ready()
    answer = running.ask()
    assert answer
    os.kill(answer[1], signal.SIGKILL)
    # The socket stays: a connection made now waits for the replacement instead of being refused.
    second = running.ask()
    assert second
    assert second[1] != answer[1]
    slot = until(lambda: s if (s := running.slots()["worker-0"])["pid"] == second[1] else None, "the new pid is published")
    assert (slot["restarts"], slot["last_end"]) == (1, "SIGKILL")
    assert running.stop() == 0


@pytest.mark.fault("restart under load")
def test_a_rolling_restart_refuses_no_connection(start: Start) -> None:
    running = start(workers=2).ready()
    before = running.pids()
    running.process.send_signal(signal.SIGHUP)
    answers = []

    def replaced() -> bool | None:
        answers.append(running.ask())
        return None if before & {slot["pid"] for slot in running.slots().values()} else True

    until(replaced, "every worker is replaced")
    answers += [running.ask() for _ in range(50)]
    assert None not in answers
    assert not running.pids() & before
    for pid in before:
        wait_until_gone(pid)
    assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "ready_within_s"), [("hold-0", 2.0), ("fail", 60.0)])
def test_a_replacement_that_does_not_become_ready_leaves_the_old_one(start: Start, fault: str, ready_within_s: float) -> None:
    running = start(ready_within_s=ready_within_s).ready()  # the first start has no more time than its replacement
    before = running.slots()
    (running.home / fault).touch()
    running.process.send_signal(signal.SIGHUP)
    assert running.process.stderr
    assert b'"event":"ready"' in running.process.stderr.readline()
    assert b"the old process stays" in running.process.stderr.readline()
    refused = until(lambda: slot if (slot := running.slots()["worker-0"])["refused_replacements"] else None, "the refusal is published")
    why = "it was not ready within 2 s" if fault == "hold-0" else "it ended (exit "
    assert (refused["refused_replacements"], refused["last_refusal"].startswith(why)) == (1, True), refused
    assert refused["pid"] == before["worker-0"]["pid"]
    assert running.slots()["admin"]["pid"] == before["admin"]["pid"], "the rest of the roll is given up"
    assert running.pids(5) == {before["worker-0"]["pid"]}
    assert running.stop() == 0


@pytest.mark.slow
def test_a_worker_that_does_not_end_is_killed_and_the_exit_code_says_so(start: Start) -> None:
    running = start("stubborn").ready()
    running.process.send_signal(signal.SIGINT)
    until(lambda: True if (running.home / "draining").exists() else None, "the first SIGINT drains")
    assert running.stop(signal.SIGINT) == 1


def test_children_end_when_the_supervisor_is_killed(start: Start) -> None:
    running = start().ready()
    pids = [slot["pid"] for slot in running.slots().values()]
    running.process.kill()
    running.process.wait()
    for pid in pids:
        wait_until_gone(pid)


def test_a_port_that_is_taken_is_refused_with_the_key_to_change() -> None:
    with contextlib.closing(claim_admin_socket("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=rf"data port: cannot bind 127.0.0.1:{port} .*data\.bind"):
            claim_data_sockets("127.0.0.1", port, 1)
    with pytest.raises(CannotStart, match=r"admin port: admin.bind host 'no.such.host.invalid' is not an address"):
        claim_admin_socket("no.such.host.invalid", 0)


def test_a_second_gateway_cannot_quietly_share_the_port() -> None:
    sockets = claim_data_sockets("127.0.0.1", 0, 2)
    try:
        for sock in sockets:
            sock.listen()
        with pytest.raises(CannotStart, match="stop the process that has it"):
            claim_data_sockets("127.0.0.1", sockets[0].getsockname()[1], 2)
    finally:
        for sock in sockets:
            sock.close()


def test_a_run_directory_must_be_ours_and_short(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    with pytest.raises(CannotStart, match="others may write to it"), claim_run_dir(loose):
        pass
    with pytest.raises(CannotStart, match="too long for a unix socket"), claim_run_dir(tmp_path / ("x" * 100)):
        pass
    with claim_run_dir(None) as private:
        assert private.path.stat().st_mode & 0o777 == 0o700
        (private.path / "ready.json").touch()
    assert not private.path.exists()


def test_ends_are_told_apart() -> None:
    exit_3, term, kill = 3 << 8, int(signal.SIGTERM), int(signal.SIGKILL)
    assert [describe_end(status) for status in (0, exit_3, term, kill)] == ["exit 0", "exit 3", "SIGTERM", "SIGKILL"]
    assert ended_cleanly(0, ready=True)
    assert ended_cleanly(term, ready=False), "told to end before it could handle SIGTERM"
    assert not ended_cleanly(term, ready=True), "a ready worker that dies of SIGTERM cut its streams"
    assert not ended_cleanly(kill, ready=False)
    assert not ended_cleanly(exit_3, ready=True)
