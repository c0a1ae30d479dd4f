"""`tidegate logs`: requests are found, shown and watched, and printed as the lines that the simulator reads."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.request_log.reader import RequestContent
from tests.admin_socket import AdminSocket, admin_socket
from tests.unit.gateway.admin.routes.test_requests import keep, log_of, request


@pytest.fixture
def port(tmp_path: Path) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path) as served:
        content = RequestContent("user: hi", "hello", redacted=("email",))
        slow = request(2, queue_s=0.15, attempts=1, pool="chat", backend="e1", tenant="bolt", rule="night", detail="none")
        served.within(keep(served.admin, slow, content=content))
        served.within(keep(served.admin, request(1), request(3, outcome="overloaded", status=503)))
        yield served


def test_requests_are_found(port: AdminSocket) -> None:
    assert [row["at_unix"] - 1_800_000_000 for row in port.json("logs", "find")] == [3, 2, 1]
    assert [row["model"] for row in port.json("logs", "find", "--tenant", "bolt", "--rule", "night", "--slower-than", "100ms")] == ["sim"]
    assert [row["outcome"] for row in port.json("logs", "find", "--failed")] == ["overloaded"]
    assert [row["duration_ms"] for row in port.json("logs", "find", "--order", "slowest", "--limit", "2")] == [300, 200]
    assert port.json("logs", "find", "--since", "2027-01-15T08:00:03Z")[0]["outcome"] == "overloaded"
    assert port.json("logs", "find", "--since", "1s", "--until", "2000-01-01") == []
    table = port.run("logs", "find")
    assert request(1).id in table.stdout
    for wrong in (("--since", "yesterday"), ("--slower-than", "long")):
        assert port.run("logs", "find", *wrong).exit_code == 2


def test_lines_are_those_of_the_access_log_oldest_first(port: AdminSocket, tmp_path: Path) -> None:
    written = tmp_path / "trace.jsonl"
    assert port.run("logs", "find", "--lines", "-o", str(written)).exit_code == 0
    assert written.read_bytes() == b"".join(
        one.line + b"\n"
        for one in (
            request(1),
            request(2, queue_s=0.15, attempts=1, pool="chat", backend="e1", tenant="bolt", rule="night", detail="none"),
            request(3, outcome="overloaded", status=503),
        )
    )


def test_a_request_is_shown_with_its_timeline_and_its_texts(port: AdminSocket) -> None:
    shown = port.run("logs", "show", request(2).id).stdout
    for part in ("of bolt at", "sim on e1: ok with status 200 after 200 ms", "queue", "150.0 ms", "cause: none", "rule: night", "hello"):
        assert part in shown
    assert "(redacted: email)" in shown
    assert port.json("logs", "show", request(2).id)["slowest_step"] == "queue"
    missing = port.run("logs", "show", "req-00000000-1")
    assert missing.exit_code == 1
    assert "no finished request 'req-00000000-1' is kept" in missing.stderr


def test_requests_are_watched_until_the_key_ends(port: AdminSocket) -> None:
    log, authenticator = log_of(port.admin), port.admin.parts.authenticator
    turns: list[None] = []

    async def sleep(_seconds: float) -> None:
        turns.append(None)
        if len(turns) == 2:
            next(iter(log.collector._watchers)).give([request(4)])
            authenticator._digest = None  # the bootstrap token is taken away

    log.sleep = sleep
    watched = port.run("logs", "tail", "-n", "2", "--json")
    assert [json.loads(line)["at_unix"] - 1_800_000_000 for line in watched.stdout.splitlines()] == [2, 3, 4]
    assert watched.exit_code == 1
    assert "the key is no longer valid" in watched.stderr
