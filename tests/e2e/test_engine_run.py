import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.cli.demo_engines import free_port
from tests.timing import HANG_S, hang_s, skip_stalled

pytestmark = pytest.mark.slow

ENGINE = """\
import argparse, os, sys
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--port"), parser.add_argument("--served-model-name")
known, _ = parser.parse_known_args()
os.execv(sys.executable, [sys.executable, "-m", "backends.simengine", "--port", known.port, "--model", known.served_model_name])
"""
TOKEN = "a-token-of-24-characters-"


class Admin:
    """An admin port that speaks the contract and remembers what was asked of it, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bodies: list[dict[str, object]] = []
        self.in_flight = 0
        self.answered = 2
        self.model = "tiny"
        self.says = "kv_events: is not known"
        self.refuses_events = self.refuses = False
        self.members: set[str] = set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, reply = outer._reply(self.command, self.path, self.headers.get("authorization"), body)
                self.send_response(status)
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _reply(self, method: str, path: str, authorization: str | None, body: bytes) -> tuple[int, bytes]:
        if path == "/pools":
            return 200, json.dumps({"pools": [{"name": "chat", "model": self.model, "dialect": "vllm"}]}).encode()
        if method == "GET":
            seen = [{"backend": one, "in_flight": self.in_flight, "state": "draining"} for one in sorted(self.members)]
            return 200, json.dumps({"backends": seen, "workers": {"expected": 2, "answered": self.answered}}).encode()
        if authorization != f"Bearer {TOKEN}":
            return 401, b'{"error":{"message":"The admin token is missing or wrong."}}'
        self.asked.append(f"{method} {path}")
        if method == "POST" and path == "/admin/v1/backends":
            asked = json.loads(body)
            self.bodies.append(asked)
            if self.refuses or (self.refuses_events and "kv_events" in asked):
                return 400, json.dumps({"error": {"message": self.says}}).encode()
            self.members.add(asked["id"])
            return 201, b"{}"
        if method == "DELETE":
            self.members.discard(path.rpartition("/")[2])
            return 204, b""
        return 202, b'{"grace_s":20,"message":""}'

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def admin() -> Iterator[Admin]:
    one = Admin()
    yield one
    one.close()


@pytest.fixture
def start(tmp_path: Path, admin: Admin) -> Iterator[Callable[..., tuple["subprocess.Popen[str]", int]]]:
    (tmp_path / "engine.py").write_text(f"#!{sys.executable}\n{ENGINE}")
    (tmp_path / "engine.py").chmod(0o755)
    started: list[subprocess.Popen[str]] = []

    def run(*more: str, pool: bool = True) -> tuple["subprocess.Popen[str]", int]:
        port = free_port()
        command = [sys.executable, "-m", "gateway", "engine", "run", "vllm-cpu-test", "--executable", str(tmp_path / "engine.py")]
        command += ["--set", f"port={port}", "--set", "grace_s=5", "--admin", admin.url, *(["--pool", "chat"] if pool else []), *more]
        environment = {**os.environ, "TIDEGATE_ADMIN_TOKEN": TOKEN}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        return started[-1], port

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(HANG_S)
        assert process.stderr is not None
        process.stderr.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + hang_s()
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=HANG_S) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def test_an_engine_is_registered_when_healthy_drained_before_it_is_ended_and_then_removed(
    start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin
) -> None:
    process, port = start()
    until(lambda: bool(admin.members))
    assert answers(port)
    socket = f"ipc:///tmp/tidegate-{port}"
    events = {"endpoint": f"{socket}-kv.sock", "replay": f"{socket}-replay.sock"}
    assert admin.bodies == [{"pool": "chat", "id": "vllm-cpu-test", "url": f"http://127.0.0.1:{port}", "kv_events": events}]
    admin.in_flight = 1
    process.send_signal(signal.SIGTERM)
    until(lambda: len(admin.asked) == 2)
    time.sleep(1.5)
    assert answers(port), "ended while a request ran"
    admin.in_flight = 0
    assert process.wait(HANG_S) == 0
    assert not answers(port)
    assert admin.asked == [
        "POST /admin/v1/backends",
        "POST /admin/v1/backends/vllm-cpu-test/drain?grace_s=5",
        "DELETE /admin/v1/backends/vllm-cpu-test",
    ]


def test_what_never_ends_is_ended_with_the_grace(start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin) -> None:
    process, port = start("--set", "grace_s=1")
    until(lambda: bool(admin.members))
    admin.in_flight = 1
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_S) == 0
    assert not answers(port)
    assert not admin.members


@pytest.mark.parametrize(("answered", "more"), [(1, ()), (2, ("--wait-grace",))])
def test_an_answer_that_does_not_cover_everybody_waits_for_the_whole_grace(
    start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin, answered: int, more: tuple[str, ...]
) -> None:
    process, port = start(*more)
    until(lambda: bool(admin.members))
    admin.answered = answered
    told = time.monotonic()
    process.send_signal(signal.SIGTERM)
    until(lambda: len(admin.asked) == 2)
    time.sleep(4.2)  # of 5 s; where everybody answers 3 s are enough
    there = answers(port)
    if not there and time.monotonic() - told > 5.0:
        skip_stalled("the grace was over before it could be seen that the engine runs")
    assert there
    assert process.wait(HANG_S) == 0


def test_an_engine_that_dies_takes_its_registration_and_its_code_along(
    start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin
) -> None:
    process, _ = start()
    until(lambda: bool(admin.members))
    (engine,) = [
        int(line)
        for line in subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
    ]
    os.kill(engine, signal.SIGKILL)
    assert process.wait(HANG_S) == 128 + signal.SIGKILL
    assert admin.asked == ["POST /admin/v1/backends", "DELETE /admin/v1/backends/vllm-cpu-test"]


def test_a_gateway_that_knows_no_events_gets_the_backend_without(
    start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin
) -> None:
    admin.refuses_events = True
    start()
    until(lambda: bool(admin.members))
    assert [sorted(body) for body in admin.bodies] == [["id", "kv_events", "pool", "url"], ["id", "pool", "url"]]


def test_an_engine_that_the_gateway_refuses_does_not_stay_behind(
    start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin
) -> None:
    admin.refuses = True
    process, port = start()
    assert process.wait(HANG_S) == 1
    assert not answers(port)


def test_a_port_that_is_served_already_keeps_the_engine_from_starting(
    start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin
) -> None:
    taken = int(admin.url.rpartition(":")[2])
    process, _ = start("--set", f"port={taken}")
    assert process.wait(HANG_S) == 1
    assert admin.asked == []
    assert process.stderr is not None
    assert f"port {taken} of 127.0.0.1 is taken" in process.stderr.read()


def test_a_pool_that_is_not_there_is_said_before_the_start(start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin) -> None:
    process, port = start("--pool", "nosuch")
    assert process.wait(HANG_S) == 1
    assert process.stderr is not None
    said = process.stderr.read()
    assert "--pool nosuch: the gateway has no such pool; there are chat" in said
    assert "trying again" not in said
    assert admin.asked == []
    assert not answers(port)


def test_a_refusal_that_is_not_about_events_is_not_tried_again_and_another_model_is_said(
    start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin
) -> None:
    admin.model = "other"
    process, _ = start()
    until(lambda: bool(admin.members))
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 0
    assert process.stderr is not None
    assert "pool chat asks for other" in process.stderr.read()
    admin.says = "The id is registered already."
    admin.refuses = True
    admin.bodies.clear()
    process, _ = start()
    assert process.wait(HANG_S) == 1
    assert len(admin.bodies) == 1


def test_without_a_pool_no_gateway_is_needed(start: Callable[..., tuple["subprocess.Popen[str]", int]], admin: Admin) -> None:
    process, port = start(pool=False)
    until(lambda: answers(port))
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 0
    assert admin.asked == []


def test_an_engine_that_is_not_installed_is_said(start: Callable[..., tuple["subprocess.Popen[str]", int]]) -> None:
    process, _ = start("--executable", "/nowhere/vllm")
    assert process.wait(HANG_S) == 127
    assert process.stderr is not None
    assert "cannot be started (No such file or directory)" in process.stderr.read()
