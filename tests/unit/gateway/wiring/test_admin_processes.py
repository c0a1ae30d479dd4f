"""What the admin process tells of settings that a rolling restart does not take up."""

from pathlib import Path

from gateway.config.load import Settings, load_settings
from gateway.config.read_secrets import read_every_secret
from gateway.process.snapshots import Supervision
from gateway.process.sockets import ProcessPlan
from gateway.process.worker_link import publish
from gateway.wiring.admin import OwnProcesses

POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'


def settings(folder: Path, more: str = "") -> Settings:
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "tidegate.yaml").write_text(POOLS + more)
    return load_settings(folder / "tidegate.yaml", {})


def supervised(folder: Path) -> None:
    """A supervisor that started with the defaults."""
    plan = ProcessPlan(
        data_host="127.0.0.1", data_port=8080, admin_host="127.0.0.1", admin_port=8081, workers=1, accept_s=5.0, grace_s=120.0
    )
    publish(folder, "supervisor.json", Supervision(1, 8080, 8081, (), plan.supervised()))


def fine(*, new_start: bool) -> None:
    """Settings with which every process starts."""


def test_settings_that_only_a_start_takes_up_are_named_with_what_is_kept(tmp_path: Path) -> None:
    supervised(tmp_path)
    assert OwnProcesses(settings(tmp_path), tmp_path, fine).unapplied() == []
    changed = settings(
        tmp_path, 'data: {bind: "[::1]:9090"}\nadmin: {bind: "0.0.0.0:9091"}\nworkers: 2\ndrain: {accept_s: 6, grace_s: 7}\n'
    )
    assert [said.partition(": ")[0] for said in OwnProcesses(changed, tmp_path, fine).unapplied()] == [
        "data.bind is [::1]:9090 in the settings file, and the running gateway keeps 127.0.0.1:8080",
        "admin.bind is 0.0.0.0:9091 in the settings file, and the running gateway keeps 127.0.0.1:8081",
        "workers is 2 in the settings file, and the running gateway keeps 1",
        "drain.accept_s is 6.0 in the settings file, and the running gateway keeps 5.0",
        "drain.grace_s is 7.0 in the settings file, and the running gateway keeps 120.0",
    ]


def test_a_supervisor_that_says_nothing_of_its_plan_is_believed(tmp_path: Path) -> None:
    made = OwnProcesses(settings(tmp_path, "workers: 3\n"), tmp_path, fine)
    assert made.unapplied() == []
    publish(tmp_path, "supervisor.json", Supervision(1, 8080, 8081, ()))
    assert made.unapplied() == []


async def test_a_secret_that_new_processes_would_miss_refuses_the_reload_with_the_sentence_of_a_start(tmp_path: Path) -> None:
    first = settings(tmp_path)

    def check(*, new_start: bool) -> None:
        read_every_secret(load_settings(tmp_path / "tidegate.yaml", {}))

    made = OwnProcesses(first, tmp_path, check)
    assert await made.refusal(new_start=False) == ""
    settings(tmp_path, 'alerts: {webhook: {url: "https://hooks.example.com/a", secret: {file: hook}}}\n')
    missing = f"file {tmp_path / 'hook'} cannot be read (FileNotFoundError); create it, readable by this user only"
    assert await made.refusal(new_start=False) == missing
    (tmp_path / "hook").write_text("x" * 8)
    assert "alerts.webhook.secret holds fewer than 24 characters" in await made.refusal(new_start=True)
    (tmp_path / "hook").write_text("x" * 24)
    assert await made.refusal(new_start=False) == ""
    (tmp_path / "tidegate.yaml").write_text("pools: 3\n")
    assert "tidegate.yaml:1:" in await made.refusal(new_start=False)
