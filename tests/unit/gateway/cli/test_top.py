"""`tidegate top` against an admin port: in a terminal of 80 columns, by its keys, and once for scripts."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin_harness import TOKEN
from tests.admin_socket import AdminSocket, admin_socket
from tests.timing import hang_s

ROWS, COLUMNS = 24, 80
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]")


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminSocket]:
    monkeypatch.chdir(tmp_path)
    with admin_socket(tmp_path) as made:
        yield made


def interruptible() -> None:
    """A shell starts jobs in the background with SIGINT ignored, which they hand on to what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """`tidegate top` in a pseudo-terminal."""

    def __init__(self, port: AdminSocket, *arguments: str) -> None:
        self.end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(other)
        self._other = other
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "top", "--every", "200ms", "--admin", port.url, *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**environ, "TERM": "xterm", "TIDEGATE_ADMIN_TOKEN": TOKEN},
            start_new_session=True,
            preexec_fn=interruptible,  # noqa: PLW1509 - one C call
        )
        self.seen = ""

    def read(self) -> None:
        if select.select([self.end], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # the other end is closed
                self.seen += os.read(self.end, 65536).decode(errors="replace")

    def until(self, word: str) -> str:
        """Read until the word is on the screen; what was read since the last call."""
        deadline = time.monotonic() + hang_s()
        while word not in CODES.sub("", self.seen):
            assert time.monotonic() < deadline and self.process.poll() is None, self.seen
            self.read()
        read, self.seen = CODES.sub("", self.seen), ""
        return read

    def press(self, key: str) -> None:
        os.write(self.end, key.encode())

    def ended(self) -> int:
        """The exit code, once it has ended; the terminal is as it was before."""
        deadline = time.monotonic() + hang_s()
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            self.read()
        assert termios.tcgetattr(self._other) == self.before
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.end)
        os.close(self._other)


@contextlib.contextmanager
def terminal(port: AdminSocket) -> Iterator[Terminal]:
    made = Terminal(port)
    try:
        yield made
    finally:
        made.close()


def test_a_terminal_of_80_columns_is_drawn_and_follows_its_keys(port: AdminSocket) -> None:
    with terminal(port) as top:
        first = top.until("q quit")
        assert "requests/s" in first and "fleet (" in first and "tenants (" in first
        top.press("v")
        only = top.until("q quit")
        assert "fleet (" in only and "tenants (" not in only.rsplit("requests/s", 1)[-1]
        top.press("s")
        top.until("q quit")
        top.press("q")
        assert top.ended() == 0
        assert "\x1b[?1049l" in top.seen, "the screen from before is back"


def test_a_control_c_ends_it_and_gives_the_terminal_back(port: AdminSocket) -> None:
    with terminal(port) as top:
        top.until("q quit")
        top.process.send_signal(signal.SIGINT)
        assert top.ended() in (0, 130)


def test_a_gateway_that_goes_away_is_said_and_the_last_figures_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with admin_socket(tmp_path) as port:
        top = Terminal(port)
        top.until("q quit")
    try:
        assert "fleet (" in top.until("no answer, these are the last figures: no gateway answers") + top.until("q quit")
        top.press("q")
        assert top.ended() == 0
    finally:
        top.close()


def test_once_prints_one_frame(port: AdminSocket) -> None:
    done = port.run("top", "--once", "--every", "200ms")
    assert done.exit_code == 0, done.output
    assert "requests/s" in done.stdout and "fleet (" in done.stdout
    assert "q quit" not in done.stdout


def test_once_as_json_is_one_object(port: AdminSocket) -> None:
    shown = port.json("top", "--once", "--every", "200ms")
    assert set(shown) == {"gateway", "fleet", "tenants", "warnings", "over_s"}
    assert shown["over_s"] >= 0.2
    assert shown["gateway"]["requests_per_s"] == 0.0


def test_without_a_terminal_it_names_what_scripts_take(port: AdminSocket) -> None:
    done = port.run("top")
    assert done.exit_code == 2
    assert "--once" in done.stderr and "--json" in done.stderr


def test_json_is_a_line_for_each_look(port: AdminSocket) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "top", "--json", "--every", "200ms", "--admin", port.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,  # noqa: PLW1509 - one C call
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert all("fleet" in seen for seen in looks)
        process.send_signal(signal.SIGINT)
        assert process.wait(hang_s()) in (0, 130)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
