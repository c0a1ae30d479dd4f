"""The supervisor's laws, on real processes: it runs in a process of its own, with tiny children that serve their pid."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gateway.claims import CannotStart, claim_admin_socket, claim_data_sockets, claim_run_dir
from gateway.forking import describe_end, ended_cleanly

WITHIN_S = 10.0
"""Patience of these tests; what they wait for takes milliseconds on an idle machine."""

PROGRAM = """
import asyncio, os, random, signal, sys, time
from pathlib import Path
from gateway.supervisor import CannotStart, Plan, run

home, workers, grace_s, ready_within_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])

def worker(seat):
    asyncio.run(serve(seat))

async def serve(seat):
    stop = asyncio.Event()
    if not (home / "stubborn").exists():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while (home / f"hold-{seat.index}").exists() and not stop.is_set():
        await asyncio.sleep(0.005)
    if (home / "fail").exists():
        sys.exit(3)
    async def answer(reader, writer):
        writer.write(f"{seat.index} {os.getpid()}".encode())
        writer.close()
    server = await asyncio.start_server(answer, sock=seat.sock)
    seat.ready()
    await stop.wait()
    server.close()
    await asyncio.sleep(0.05)  # what was accepted is answered

def admin(seat):
    signal.signal(signal.SIGTERM, lambda *_: (home / "draining").touch())
    seat.sock.listen()
    seat.ready()
    os.read(seat.lifeline, 1)

plan = Plan(data_host="127.0.0.1", data_port=0, admin_host="127.0.0.1", admin_port=0, workers=workers,
            accept_s=0.0, grace_s=grace_s, ready_within_s=ready_within_s)
sys.exit(run(plan, worker, admin, clock=time.monotonic, rng=random.Random(1), run_dir=home / "run"))
"""

T = TypeVar("T")


def until(find: Callable[[], T | None], what: str) -> T:
    """Waits for `find` to return something; polling because the other side is a process."""
    give_up_at = time.monotonic() + WITHIN_S
    while time.monotonic() < give_up_at:
        if (found := find()) is not None:
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {WITHIN_S} s: {what}")


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    home: Path

    def read(self, name: str) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            document: dict[str, Any] = json.loads((self.home / "run" / name).read_bytes())
            return document
        return None

    @property
    def data_port(self) -> int:
        state = until(lambda: self.read("supervisor.json"), "supervisor.json")
        return int(state["data_port"])

    def slots(self) -> dict[str, dict[str, Any]]:
        return {slot["name"]: slot for slot in (self.read("supervisor.json") or {}).get("slots", [])}

    def ready(self) -> "Running":
        until(lambda: self.read("ready.json"), "ready.json")
        return self

    def ask(self) -> tuple[int, int] | None:
        """(index, pid) of the worker that answered, or None when the connection was refused or not answered."""
        try:
            with socket.create_connection(("127.0.0.1", self.data_port), timeout=WITHIN_S) as sock:
                index, pid = sock.recv(64).split()
                return int(index), int(pid)
        except (ConnectionError, ValueError):
            return None

    def pids(self, asks: int = 40) -> set[int]:
        return {answer[1] for answer in (self.ask() for _ in range(asks)) if answer}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WITHIN_S)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def go(*marks: str, workers: int = 1, grace_s: float = 5.0, ready_within_s: float = 5.0) -> Running:
        for mark in marks:
            (tmp_path / mark).touch()
        arguments = [str(tmp_path), str(workers), str(grace_s), str(ready_within_s)]
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.PIPE)
        started.append(Running(process, tmp_path))
        return started[-1]

    yield go
    for one in started:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGINT)
            one.process.send_signal(signal.SIGTERM)
            try:
                one.process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        assert one.process.stderr
        one.process.stderr.close()


def wait_until_gone(pid: int) -> None:
    until(lambda: gone(pid), f"process {pid} ends")


def gone(pid: int) -> bool | None:
    """Whether a process has ended; None when not, for `until`. One that its parent has not noticed has ended too: there
    is no init in small containers."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return True if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" else None
    return True


def test_two_workers_share_a_free_port_and_end_with_0_on_sigterm(start: Start) -> None:
    running = start(workers=2).ready()
    assert running.process.stderr
    line = running.process.stderr.readline().decode()
    ready = running.read("ready.json")
    assert ready
    where = f"data http://127.0.0.1:{ready['data_port']} admin http://127.0.0.1:{ready['admin_port']}"
    assert line == f"tidegate ready: {where} workers 2 pid {ready['pid']}\n"
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


@pytest.mark.parametrize("fault", ["hold-0", "fail"])
def test_a_replacement_that_does_not_become_ready_leaves_the_old_one(start: Start, fault: str) -> None:
    running = start(ready_within_s=0.2).ready()
    before = running.slots()
    (running.home / fault).touch()
    running.process.send_signal(signal.SIGHUP)
    assert running.process.stderr
    assert b"tidegate ready" in running.process.stderr.readline()
    assert b"the old process stays" in running.process.stderr.readline()
    assert running.slots()["worker-0"]["pid"] == before["worker-0"]["pid"]
    assert running.slots()["admin"]["pid"] == before["admin"]["pid"], "the rest of the roll is given up"
    assert running.pids(5) == {before["worker-0"]["pid"]}
    assert running.stop() == 0


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
        assert private.stat().st_mode & 0o777 == 0o700
        (private / "ready.json").touch()
    assert not private.exists()


def test_ends_are_told_apart() -> None:
    exit_3, term, kill = 3 << 8, int(signal.SIGTERM), int(signal.SIGKILL)
    assert [describe_end(status) for status in (0, exit_3, term, kill)] == ["exit 0", "exit 3", "SIGTERM", "SIGKILL"]
    assert ended_cleanly(0, ready=True)
    assert ended_cleanly(term, ready=False), "told to end before it could handle SIGTERM"
    assert not ended_cleanly(term, ready=True), "a ready worker that dies of SIGTERM cut its streams"
    assert not ended_cleanly(kill, ready=False)
    assert not ended_cleanly(exit_3, ready=True)
