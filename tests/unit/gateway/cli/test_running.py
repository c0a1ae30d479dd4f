"""`tidegate status`, `reload` and `stop` against an admin port, and by the run directory of a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import app
from gateway.process.snapshots import PolicyState, WorkerSnapshot
from tests.admin_harness import Processes, Reloads, bearer
from tests.admin_socket import AdminSocket, admin_socket
from tests.command_line import Commands


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminSocket]:
    monkeypatch.chdir(tmp_path)
    with admin_socket(tmp_path) as made:
        yield made


def processes(port: AdminSocket) -> Processes:
    made = port.admin.parts.gateway
    assert isinstance(made, Processes)
    return made


def test_the_state_is_told_with_stores_policies_and_rollouts(port: AdminSocket) -> None:
    done = port.run("status")
    assert done.exit_code == 0, done.output
    for said in (f"gateway {port.url}, version 1: ready", "workers: 1 of 1 answer", "process 7, data port 8080, admin port 8081"):
        assert said in done.stdout
    assert "stores: database reachable; counters memory\npolicies: d1\nrollouts: none in force" in done.stdout
    told = port.json("status")
    assert (told["ready"], told["gateway"]["stores"]["database"], told["warnings"]) == (True, "reachable", [])


def test_what_needs_a_look_is_a_warning(port: AdminSocket) -> None:
    processes(port).snapshots = [
        WorkerSnapshot(index=n, pid=n, state="ready", started_at=1.0, policies=PolicyState(f"d{n}", 7.0, ("acme.yaml:1:1: bad",) * n, n))
        for n in range(2)
    ]
    done = port.run("status")
    assert "policies: d0, d1\n" in done.stdout
    assert "warning: worker 1 refuses the policy files as they are now: acme.yaml:1:1: bad" in done.stdout
    assert "warning: the workers have different policies" in done.stdout


def test_policies_that_are_active_and_hardly_meant_are_a_warning(port: AdminSocket) -> None:
    closed = "acme.yaml:2:1: models: the policy of tenant acme has no model, so every request is refused"
    processes(port).snapshots = [
        WorkerSnapshot(index=n, pid=n, state="ready", started_at=1.0, policies=PolicyState("d", 7.0, warnings=(closed,))) for n in range(2)
    ]
    assert port.run("status").stdout.count(f"warning: {closed}") == 1
    reloads = port.admin.parts.reloading
    assert isinstance(reloads, Reloads)
    reloads.states = [PolicyState("d", 7.0, warnings=(closed,))]
    for command in (("policy", "reload"), ("reload", "--policies")):
        done = port.run(*command)
        assert (done.exit_code, done.stderr) == (0, f"warning: {closed}\n")


def test_without_a_token_the_open_routes_are_told_and_what_is_missing(port: AdminSocket) -> None:
    done = Commands(env={"TIDEGATE_ADMIN_TOKEN": ""}).invoke(app, ["status", "--admin", port.url])
    assert (done.exit_code, "version 1: ready" in done.stdout, "no admin token" in done.stderr) == (0, True, True)
    wrong = port.run("status", token="wrong")
    assert (wrong.exit_code, "admin token is missing or wrong" in wrong.stderr) == (0, True)


def test_nobody_there_is_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = Commands().invoke(app, ["status", "--admin", "http://127.0.0.1:1"])
    assert (done.exit_code, "no gateway answers" in done.stderr) == (1, True)


def test_reload_signals_the_first_process_and_waits_until_every_process_is_another(port: AdminSocket) -> None:
    done = port.run("reload")
    assert done.exit_code == 0, done.output
    assert "every process has been replaced: admin, worker-0" in done.stdout
    assert port.run("reload", "--code", "--no-wait").exit_code == 0
    assert processes(port).signals == [(7, signal.SIGHUP), (7, signal.SIGUSR2)]
    assert "policies d1 in force in 2 workers" in port.run("reload", "--policies").stdout
    assert port.run("reload", "--policies", "--code").exit_code == 2
    assert port.within(port.admin.actions()) == ["gateway.reload.settings", "gateway.reload.code"]


def test_what_a_reload_does_not_take_up_is_named(port: AdminSocket) -> None:
    processes(port).kept = ["data.bind is 127.0.0.1:9090 in the settings file, and the running gateway keeps 127.0.0.1:8080"]
    done = port.run("reload")
    assert (done.exit_code, "note: not taken up: data.bind is 127.0.0.1:9090 in the settings file" in done.stderr) == (0, True)
    assert "warning: data.bind is 127.0.0.1:9090 in the settings file" in port.run("status").stdout


def test_settings_with_mistakes_are_not_taken_up(port: AdminSocket, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-more-than-24-characters")
    (tmp_path / "tidegate.yaml").write_text(
        f'admin: {{bind: "{port.url.removeprefix("http://")}"}}\nsecrets: {{admin_token: {{file: token}}}}\n'
    )
    done = Commands().invoke(app, ["reload"])
    assert (done.exit_code, "nothing was reloaded" in done.stderr, "pools" in done.stderr) == (1, True, True)
    assert processes(port).signals == []


@pytest.mark.parametrize("option", [[], ["--code"]])
def test_a_reload_that_no_process_could_follow_is_refused_with_the_reason_and_signals_nobody(port: AdminSocket, option: list[str]) -> None:
    processes(port).refused = "file /etc/hook cannot be read (FileNotFoundError); create it, readable by this user only"
    done = port.run("reload", *option)
    assert (done.exit_code, "file /etc/hook cannot be read (FileNotFoundError)" in done.stderr) == (1, True), done.output
    assert "nothing was reloaded" in done.stderr
    assert processes(port).signals == []
    assert port.within(port.admin.actions()) == []


def test_a_replacement_that_ends_ends_the_waiting_with_its_reason(port: AdminSocket) -> None:
    processes(port).failing = "it ended (exit 1)"
    done = port.run("reload", "--timeout", "1h")
    assert (done.exit_code, "worker-0 was not replaced: it ended (exit 1); the old processes go on" in done.stderr) == (1, True), (
        done.output
    )
    processes(port).signals.append((7, signal.SIGHUP))
    processes(port).failing = "it was not ready within 60 s"
    assert "worker-0 was not replaced: it was not ready within 60 s" in port.run("reload", "--timeout", "1h").stderr


def test_stop_asks_first_and_is_for_those_who_run_the_gateway(port: AdminSocket) -> None:
    assert port.run("stop").exit_code == 1, "nobody said yes"
    refused = port.run("stop", "--yes", token=bearer("auditor")["authorization"].removeprefix("Bearer "))
    assert (refused.exit_code, "needs one of the roles" in refused.stderr) == (1, True)
    assert processes(port).signals == []
    done = port.run("stop", "--yes", "--no-wait")
    assert (done.exit_code, "process 7 drains, for at most 30 s" in done.stdout) == (0, True)
    assert processes(port).signals == [(7, signal.SIGTERM)]


def test_a_process_of_this_machine_is_stopped_by_its_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        (tmp_path / "ready.json").write_text(json.dumps({"data_port": 1, "admin_port": 2, "pid": child.pid}))
        done = Commands().invoke(app, ["stop", "--run-dir", str(tmp_path), "--yes", "--no-wait"])
        assert (done.exit_code, f"process {child.pid} drains" in done.stdout) == (0, True)
        assert child.wait(30) == -signal.SIGTERM
    finally:
        child.kill()
    gone = Commands().invoke(app, ["stop", "--run-dir", str(tmp_path / "none"), "--yes"])
    assert (gone.exit_code, "no gateway runs with the run directory" in gone.stderr) == (1, True)
    assert not os.path.exists(tmp_path / "none")
