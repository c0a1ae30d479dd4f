"""What a service manager is told: the datagrams, when each is due, and nothing where no manager asks."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.process.sd_notify import ServiceManager
from tests.supervised import Start, until


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def told(manager: socket.socket) -> list[list[str]]:
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return messages


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def test_each_state_is_told_once(manager: socket.socket) -> None:
    service = ServiceManager(environment(manager), 7)
    service.reloaded(2, 0.5)
    assert told(manager) == [], "nothing was reloaded"
    service.ready(2, 1.0)
    service.reloading(2.0)
    service.reloaded(2, 3.0)
    service.reloaded(2, 4.0)
    service.stopping(145.0)
    assert told(manager) == [
        ["READY=1", "STATUS=serving with 2 workers"],
        ["RELOADING=1", "MONOTONIC_USEC=2000000", "STATUS=restarting every process, one at a time"],
        ["READY=1", "STATUS=serving with 2 workers"],
        ["STOPPING=1", "EXTEND_TIMEOUT_USEC=145000000", "STATUS=draining"],
    ]


def test_signs_of_life_come_twice_in_each_time_out(manager: socket.socket) -> None:
    service = ServiceManager(environment(manager, WATCHDOG_USEC="30000000", WATCHDOG_PID="7"), 7)
    for second in range(60):
        service.alive(float(second))
    assert told(manager) == [["WATCHDOG=1"]] * 4
    assert service.sign_at == 60.0


@pytest.mark.parametrize(
    "more", [{}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}]
)
def test_no_sign_of_life_where_none_is_asked_of_this_process(manager: socket.socket, more: dict[str, str]) -> None:
    service = ServiceManager(environment(manager, **more), 7)
    service.alive(1.0)
    assert (told(manager), service.sign_at) == ([], None)


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_nothing_is_sent_without_a_socket_that_is_known(address: str) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"}, 7)
    service.ready(1, 1.0)
    service.stopping(1.0)
    assert service.sign_at is None


def test_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("")  # the kernel chooses a free name
        name = sock.getsockname().removeprefix(b"\0").decode()
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}, 7).ready(1, 1.0)
        assert sock.recv(100) == b"READY=1\nSTATUS=serving with 1 worker"


def test_a_manager_that_is_gone_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}, 7).ready(1, 1.0)
    assert "the service manager cannot be told READY=1" in caplog.text


def test_a_supervisor_tells_its_start_its_restarts_and_its_end(
    manager: socket.socket, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(manager, WATCHDOG_USEC="200000").items():
        monkeypatch.setenv(name, value)
    running = start(grace_s=5.0)
    heard: list[str] = []

    def states(after: int) -> list[str]:
        heard.extend(message[0] for message in told(manager))
        return [state for state in heard if state != "WATCHDOG=1"][after:]

    until(lambda: states(0) or None, "the start is told")
    assert states(0) == ["READY=1"]
    assert (running.home / "run" / "ready.json").exists(), "ready is told when everything serves"
    pid = running.process.pid
    for number, done in ((signal.SIGHUP, 1), (signal.SIGUSR2, 3)):
        os.kill(pid, number)
        until(lambda after=done: True if len(states(after)) == 2 else None, f"{number.name} is told")  # type: ignore[misc]
        assert states(done) == ["RELOADING=1", "READY=1"]
    heard.clear()
    until(lambda: True if states(0) == [] and len(heard) >= 3 else None, "three signs of life without any other event")
    assert running.stop() == 0
    assert states(0) == ["STOPPING=1"]
