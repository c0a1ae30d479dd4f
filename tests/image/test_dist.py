"""The wheel: what is in it, and that an empty environment with nothing but the wheel and its locked dependencies serves.

The contents are looked at in every run; the installation, which takes packages from the index, is one of the slow tests.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.supervised import until

ROOT = Path(__file__).parents[2]
PACKAGES = ("backends", "cache", "domain", "gateway", "guardrails", "policies", "routing", "tenancy")
SHARED = {
    "share/man/man1/tidegate.1": "docs/terminal/man/tidegate.1",
    "share/man/man1/tidegate-serve.1": "docs/terminal/man/tidegate-serve.1",
    "share/bash-completion/completions/tidegate": "docs/terminal/completion/tidegate.bash",
    "share/zsh/site-functions/_tidegate": "docs/terminal/completion/_tidegate",
    "share/fish/vendor_completions.d/tidegate.fish": "docs/terminal/completion/tidegate.fish",
    "share/tidegate/schema/tidegate.schema.json": "docs/schema/tidegate.schema.json",
    "share/tidegate/alerts/tidegate.rules.yml": "charts/alerts/tidegate.rules.yml",
    "share/tidegate/dashboards/tidegate-overview.json": "charts/dashboards/tidegate-overview.json",
}
"""By its path below the prefix of an environment: the file of the project."""


def built(folder: Path) -> Path:
    """A wheel, built as `make dist` builds it."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


def test_every_file_of_the_packages_is_in_it_and_no_other(wheel: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.partition("/")[0] in PACKAGES}
    assert {name for name in tracked if (ROOT / name).exists()} - names == set()
    assert {name for name in names - set(tracked) if name.endswith((".pyc", ".db", ".pepper", ".log"))} == set()
    assert {"gateway/console/static/index.html", "policies/examples/settings-minimal.yaml"} <= names
    assert any(name.endswith(".lua") for name in names)


def test_files_for_the_terminal_and_for_other_programs_are_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (data,) = {name.partition("/data/")[0] for name in archive.namelist() if "/data/" in name and ".data" in name}
        for target, source in SHARED.items():
            assert archive.read(f"{data}/data/{target}") == (ROOT / source).read_bytes(), target


def test_the_same_commit_makes_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert built(tmp_path).read_bytes() == wheel.read_bytes()


@contextlib.contextmanager
def running(*command: str, cwd: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with open(cwd / "log", "ab") as log:
        process = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel and what the wheel asks for, in the versions of requirements.lock."""
    home = tmp_path_factory.mktemp("environment")
    pins = [line.partition(" \\")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if line[:1].isalpha()]
    (home / "pins.txt").write_text("\n".join(pins))
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    binaries = home / "venv" / "bin"
    pip = [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--constraint", str(home / "pins.txt"), str(wheel)], check=True, capture_output=True)
    return binaries


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first one that needs the environment installs its packages
def test_an_environment_with_the_wheel_alone_serves(installed: Path, tmp_path: Path) -> None:
    def tidegate(*words: str) -> str:
        done = subprocess.run([installed / "tidegate", *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert tidegate("--version").startswith("tidegate 0.")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "everyone.yaml").write_text('tenant: "*"\nmodels:\n  - {name: chat, pool: chat}\n')
    engine_port = free_port()
    (tmp_path / "tidegate.yaml").write_text(
        'data: {bind: "127.0.0.1:0"}\nadmin: {bind: "127.0.0.1:0"}\ndrain: {accept_s: 0.1, grace_s: 5}\n'
        'stores: {counters: "valkey+embedded://"}\n'
        f'pools:\n  - {{name: chat, model: m, backends: [{{id: e, url: "http://127.0.0.1:{engine_port}"}}]}}\n'
    )
    tidegate("check")
    tidegate("tenant", "create", "acme")
    key = tidegate("key", "create", "--tenant", "acme")
    engine = (str(installed / "tidegate"), "simengine", "--", "--port", str(engine_port), "--model", "m")
    gateway = (str(installed / "tidegate"), "serve", "--run-dir", str(tmp_path / "run"))
    with running(*engine, cwd=tmp_path), running(*gateway, cwd=tmp_path) as serving:
        ready = until(lambda: (tmp_path / "run" / "ready.json").exists() or None, "the gateway is ready")
        assert ready
        ports = json.loads((tmp_path / "run" / "ready.json").read_text())
        data, admin = (f"http://127.0.0.1:{ports[name]}" for name in ("data_port", "admin_port"))
        question = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        with httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
            reply = until(
                lambda: r if (r := client.post(f"{data}/v1/chat/completions", json=question)).status_code == 200 else None, "an answer"
            )
            assert reply.json()["choices"][0]["message"]["content"]
            assert client.get(f"{admin}/console/").status_code == 200
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
@pytest.mark.timeout(900)
def test_man_finds_the_pages_of_the_environment(installed: Path) -> None:
    pages = installed.parent / "share" / "man"
    shown = subprocess.run(["man", "-M", str(pages), "tidegate-serve"], capture_output=True, text=True, check=True).stdout
    assert "--run-dir" in shown


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
