"""The demo as a newcomer runs it, with simulated engines: what it prints, that its commands work, and that nothing of it is left. The real
engines are in tests/engines."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DEMO = (sys.executable, "-m", "gateway", "demo", "--engine", "sim")
READY_S = 180.0


@contextlib.contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([*DEMO, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def shell(command: str) -> str:
    """The output of a command as the demo printed it; `tidegate` is that of this environment and this checkout."""
    command = re.sub(r"^\S*tidegate ", f"{sys.executable} -m gateway ", command)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_the_demo(home: str) -> list[str]:
    """Command lines of processes that use the demo's folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if home in line]


def test_the_demo_says_why_its_commands_work_and_a_ctrl_c_leaves_nothing() -> None:
    with running("--port", "0", "--terms") as process:
        assert process.stdout is not None and process.stderr is not None
        printed = ""
        deadline = time.monotonic() + READY_S
        while "Ctrl-C stops everything." not in printed and time.monotonic() < deadline and (line := process.stdout.readline()):
            printed += line
        assert "Ctrl-C stops everything." in printed, printed + process.stderr.read()
        assert "their words have no meaning" in printed
        why = re.findall(r"^why +(.*)", printed, re.MULTILINE)
        assert len(why) == 2
        for line in why:
            assert re.match(r"sim-[123]: 0 waiting, \d+ of about \d+ prompt tokens cached[,;] .*\d ms", line), line
        assert re.match(r"sim-[123]: 0 waiting, [1-9]", why[1]), "the second question finds the first one's text cached"
        assert "queue_s 0" in printed
        chat, explain, limit = re.findall(r"^   (\S.*)", printed.split("Try next")[1], re.MULTILINE)
        assert json.loads(shell(chat))["usage"]["completion_tokens"] > 0
        assert why[1] in shell(explain)
        assert "limit tenant:demo:requests:minute is 1" in shell(limit)
        deadline = time.monotonic() + 60
        while "Try again in" not in (refused := shell(chat)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert json.loads(refused)["error"]["code"] == "rate_limit_exceeded"
        home = re.findall(r"^settings +(/.*)/tidegate.yaml$", printed, re.MULTILINE)[0]
        assert of_the_demo(home)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert (process.wait(60), process.stderr.read()) == (0, "")
        assert rest.strip() == "stopped: no process and no file of the demo is left"
        assert of_the_demo(home) == []
        assert not Path(home).exists()


def taken_beside_a_free_one(taken: socket.socket) -> int:
    """Listens on a port between two that nobody has: the demo names the first one of its ports that is taken."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as before, socket.socket() as after:
            before.bind(("127.0.0.1", 0))
            port = before.getsockname()[1] + 1
            after.bind(("127.0.0.1", port + 1))
            taken.bind(("127.0.0.1", port))
            taken.listen()
            return port


@pytest.mark.parametrize(("offset", "use"), [(0, "the data port"), (-1, "the admin port")])
def test_a_port_that_is_taken_is_named(offset: int, use: str) -> None:
    with socket.socket() as taken:
        port = taken_beside_a_free_one(taken)
        done = subprocess.run([*DEMO, "--port", str(port + offset)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Port {port} is taken")
    assert use in done.stderr


def test_an_unknown_engine_is_refused_with_the_values() -> None:
    done = subprocess.run([*DEMO[:-1], "tpu"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert all(engine in done.stderr for engine in ("smollm2", "sim", "vllm"))
