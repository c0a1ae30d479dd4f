import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.cli import app
from tests.command_line import Commands, Result

LIMIT = {"requests": 64.0, "tokens": None, "own": 16.0}
UP = {
    "pool": "chat",
    "backend": "gpu-0",
    "revision": "r2",
    "up": True,
    "source": "static",
    "in_flight": 2,
    "signals_age_s": 0.04,
    "limit": LIMIT,
}
SIGNALS = {"read_at": 1.0, "running": 3, "waiting": 0, "kv_usage": 0.416}
DOWN = {"pool": "chat", "backend": "gpu-1", "up": False, "state": "draining", "source": "registered", "why": "refuses connections"}


@contextmanager
def admin(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/backends" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(*arguments: str) -> Result:
    return Commands(env={"COLUMNS": "200"}).invoke(app, ["backend", "list", *arguments])


def test_what_is_up_and_what_is_down_and_why() -> None:
    with admin(200, json.dumps({"backends": [{**UP, "signals": SIGNALS}, DOWN]}).encode()) as url:
        result = run("--admin", url)
        assert result.exit_code == 0
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│ gpu-" in line]
        assert rows == [
            ["gpu-0", "chat", "up", "r2", "static", "2", "16 of 64", "3", "0", "42%", "", "0.0 s"],
            ["gpu-1", "chat", "draining", "", "registered", "0", "", "?", "?", "?", "", "?"],
        ]
        assert "gpu-1: refuses connections" in result.stdout.splitlines()
        assert json.loads(run("--admin", url, "--json").stdout)["backends"][1] == DOWN


@pytest.mark.req("ROUTERS-6")
def test_what_is_unknown_is_a_question_and_no_zero() -> None:
    signals = {"read_at": 1.0, "running": 3, "missing": ["waiting", "kv_usage"]}
    with admin(200, json.dumps({"backends": [{**UP, "signals": signals}]}).encode()) as url:
        row, why = [line for line in run("--admin", url).stdout.splitlines() if "gpu-0" in line]
    assert [cell.strip() for cell in row.split("│")[8:11]] == ["3", "?", "?"]
    assert why == "gpu-0: does not report waiting, kv_usage"


def test_what_a_source_leaves_out_is_told_with_the_labels() -> None:
    source = {"name": "Kubernetes engines/chat", "pool": "chat", "owner": "kubernetes", "members": 1}
    left_out = {"left_out": 3, "labels": ["tidegate/revision r1", "no tidegate/revision"]}
    with admin(200, json.dumps({"backends": [UP], "sources": [source, source | left_out]}).encode()) as url:
        said = run("--admin", url).stderr.splitlines()
    assert said == ["Kubernetes engines/chat of pool chat: 3 engines left out by their labels (tidegate/revision r1; no tidegate/revision)"]


@pytest.mark.req("ROUTERS-11")
def test_what_is_known_of_the_prefix_cache_and_why_not_all() -> None:
    lost = {"blocks": 12, "trusted": False, "reason": "gap of 12 batches, and there is no replay address"}
    fleet = [{**UP, "kv": {"blocks": 840, "trusted": True}}, {**UP, "backend": "gpu-2", "kv": lost}]
    with admin(200, json.dumps({"backends": fleet}).encode()) as url:
        exact, untrusted, why = (line for line in run("--admin", url).stdout.splitlines() if "gpu-" in line)
    assert "840 exact" in exact
    assert "12 untrusted" in untrusted
    assert why.startswith("gpu-2: KV events: gap of 12 batches")


@pytest.mark.parametrize(("status", "body", "says"), [(404, b"{}", "answers 404"), (200, b"<html>", "does not answer like the admin port")])
def test_another_server_is_told_apart(status: int, body: bytes, says: str) -> None:
    with admin(status, body) as url:
        result = run("--admin", url)
    assert result.exit_code == 1
    assert says in result.stderr


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [("http://127.0.0.1:1", 1, "no gateway answers at"), ("localhost:8081", 2, "write http://host:port"), ("http://a..b", 1, "no gateway")],
)
def test_nobody_there_is_said_with_what_to_do(url: str, code: int, says: str) -> None:
    result = run("--admin", url)
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.output
