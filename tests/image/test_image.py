"""The container image that `make image` built: unpacked, started as a container would start it, and asked a question.

No container runtime is needed: namespaces of mounts and processes, a read-only root, the image's own user, entry point and variables, no
capabilities and no new privileges. `make test-image` says where the image is; without one these tests skip.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.supervised import until

ROOT = Path(__file__).parents[2]
IMAGE = Path(os.environ.get("TIDEGATE_IMAGE", "/nonexistent"))
SECOND = ROOT / ".cache" / "image" / "second"
WITHIN_S = 60.0
TOKEN = "an-admin-token-of-the-test-of-the-image"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IMAGE.is_dir(), reason="make test-image builds the image and runs this"),
]

ENTER = """
set -eu
root=$1 etc=$2 state=$3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null urandom; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mkdir -m 1777 "$root/dev/shm"
mount --bind "$etc" "$root/etc/tidegate"
mount -o remount,bind,ro "$root/etc/tidegate"
mount --bind "$state" "$root/var/lib/tidegate"
"""


def layers(image: Path) -> list[dict[str, Any]]:
    """The layers of an OCI layout, in order."""
    (entry,) = json.loads((image / "index.json").read_text())["manifests"]
    found: list[dict[str, Any]] = json.loads(blob(image, entry["digest"]).read_text())["layers"]
    return found


def config(image: Path) -> dict[str, Any]:
    (entry,) = json.loads((image / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(image, entry["digest"]).read_text())
    found: dict[str, Any] = json.loads(blob(image, manifest["config"]["digest"]).read_text())
    return found


def blob(image: Path, digest: str) -> Path:
    return image / "blobs" / digest.replace(":", "/")


@dataclass
class Container:
    """Processes in the unpacked image."""

    root: Path
    etc: Path
    state: Path
    engine: int
    data: int
    admin: int
    """Ports."""

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs the image's entry point with these arguments in place of its own."""
        made = config(IMAGE)["config"]
        entry = ["chroot", "--groups=", f"--userspec={made['User']}", str(self.root), *made["Entrypoint"], *(arguments or made["Cmd"])]
        # the shell looks the program up before the variables become those of the image
        enter = ENTER + 'chroot=$(command -v chroot)\nshift 4\nexec setpriv --no-new-privs env -i $VARIABLES "$chroot" "$@"'
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "env", f"VARIABLES={' '.join(made['Env'])}", "sh", "-c", enter]
        return [*isolated, "image", str(self.root), str(self.etc), str(self.state), *entry]

    def ran(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=WITHIN_S, check=False)

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator["Process"]:
        with open(self.state.parent / "log", "ab") as log:
            process = Process(subprocess.Popen(self.command(*arguments), stdout=log, stderr=log, text=True))
        try:
            yield process
        finally:
            if process.outer.poll() is None:
                process.outer.kill()
                process.outer.wait(WITHIN_S)


@dataclass
class Process:
    outer: "subprocess.Popen[str]"
    """`unshare`, which ends with the code of the process within."""

    @property
    def pid(self) -> int:
        """The pid, seen from here, of the first process within."""
        return int(Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split()[0])

    def status(self) -> dict[str, str]:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The image's file tree."""
    folder = tmp_path_factory.mktemp("image") / "root"
    folder.mkdir(mode=0o755)
    for parent in (folder, folder.parent):
        parent.chmod(0o755)
    for layer in layers(IMAGE):
        subprocess.run(["tar", "-xf", str(blob(IMAGE, layer["digest"])), "-C", str(folder)], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def container(root: Path, tmp_path: Path) -> Container:
    engine, data, admin = free_ports(3)
    etc, state = tmp_path / "etc", tmp_path / "state"
    shutil.copytree(ROOT / "charts" / "systemd", etc)
    (etc / "admin-token").write_text(TOKEN)
    state.mkdir()
    os.chown(state, 65532, 65532)
    settings = (etc / "tidegate.yaml").read_text()
    for old, new in (
        ("0.0.0.0:8080", f"127.0.0.1:{data}"),
        ("127.0.0.1:8081", f"127.0.0.1:{admin}"),
        ("127.0.0.1:9001", f"127.0.0.1:{engine}"),
    ):
        assert settings.count(old) == 1
        settings = settings.replace(old, new)
    (etc / "tidegate.yaml").write_text(settings + "drain: {accept_s: 0.2, grace_s: 5}\n")
    return Container(root, etc, state, engine, data, admin)


def free_ports(count: int) -> Sequence[int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


def answered(url: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


def test_it_says_who_runs_it_and_how() -> None:
    made = config(IMAGE)["config"]
    assert made["User"] == "65532:65532"
    assert made["Entrypoint"] == ["/opt/tidegate/bin/tidegate"]
    assert made["Cmd"] == ["serve", "--config", "/etc/tidegate/tidegate.yaml"]
    assert made["StopSignal"] == "SIGTERM"


def test_there_is_no_shell_no_package_manager_and_no_way_to_become_root(root: Path) -> None:
    programs = {path.name for folder in ("usr/bin", "usr/sbin", "opt/tidegate/bin") for path in (root / folder).glob("*")}
    assert programs & {"sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "pip", "pip3", "perl", "curl", "wget"} == set()
    privileged = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o6000]
    writable = [path for path in root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o002 and path != root / "tmp"]
    assert (privileged, writable) == ([], [])


def test_the_list_of_parts_names_the_packages_of_debian_and_of_python() -> None:
    document = json.loads(IMAGE.with_name(f"{IMAGE.name}.spdx.json").read_text())
    parts = {package["name"] for package in document["packages"]}
    assert {"libc6", "libssl3", "python3.11-minimal", "tidegate", "uvloop", "msgspec", "cryptography"} <= parts


@pytest.mark.skipif(not SECOND.is_dir(), reason="there is no second build")
def test_a_second_build_has_the_same_layers() -> None:
    assert [layer["digest"] for layer in layers(IMAGE)] == [layer["digest"] for layer in layers(SECOND)]


def test_the_gateway_answers_from_a_read_only_root_without_privileges(container: Container) -> None:
    checked = container.ran("check", "--config", "/etc/tidegate/tidegate.yaml")
    assert checked.returncode == 0, checked.stderr
    made = container.ran("tenant", "create", "acme", "--config", "/etc/tidegate/tidegate.yaml", "--offline")
    assert made.returncode == 0, made.stderr
    with container.running("simengine", "--", "--port", str(container.engine), "--model", "my-model"), container.running() as gateway:
        answered(f"http://127.0.0.1:{container.engine}/health")
        answered(f"http://127.0.0.1:{container.admin}/readyz")
        key = container.ran("key", "create", "--tenant", "acme", "--config", "/etc/tidegate/tidegate.yaml")
        assert key.returncode == 0, key.stderr
        status = gateway.status()
        assert status["Uid"].split() == ["65532"] * 4
        assert (status["CapEff"].strip("0"), status["NoNewPrivs"]) == ("", "1")
        assert status["NSpid"].split()[-1] == "1", "it is the first process of its namespace, as in a container"
        asked = until(lambda: question(container.data, key.stdout.strip()), "the workers know the new key")
        assert asked.status_code == 200, asked.text
        assert asked.json()["choices"][0]["message"]["content"]
        os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.outer.wait(WITHIN_S) == 0
    assert (container.state / "tidegate.db").stat().st_uid == 65532


def question(port: int, key: str) -> httpx.Response | None:
    """The reply to a question; None while the key is not known."""
    reply = httpx.post(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        headers={"authorization": f"Bearer {key}"},
        json={"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
        timeout=WITHIN_S,
    )
    return None if reply.status_code == 401 else reply
