import configparser
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pydantic import JsonValue

from backends.launch.catalogue import load, names
from backends.launch.kubernetes import kubernetes
from backends.launch.manifest import manifest_for
from backends.launch.render import compose, model_folders, parts, ports, shell, systemd
from backends.launch.resolve import Launch, LaunchError, resolve

RENDERED = Path(__file__).parent / "rendered"
NASTY = 'it\'s $HOME "and" 100% `x` $(y); #z\\'


def launched(name: str, given: dict[str, JsonValue] | None = None) -> Launch:
    config = load(name)
    launch = resolve(config, manifest_for(config.engine, config.version), given)
    return launch if launch.command[0].startswith("/") else _at(launch, f"/opt/{launch.command[0]}")


def _at(launch: Launch, program: str) -> Launch:
    import msgspec

    return msgspec.structs.replace(launch, command=(program, *launch.command[1:]))


def systemd_words(line: str) -> list[str]:
    """What systemd makes of an ExecStart or Environment line: systemd.service(5), quoting and specifiers."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.replace("\\\n", " "))]


@pytest.mark.parametrize("name", names())
def test_a_shell_runs_exactly_the_command_with_the_environment(name: str, tmp_path: Path) -> None:
    launch = launched(name, {"served_name": NASTY.replace(":", "")})
    program = tmp_path / "engine"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\nenv -0\n')
    program.chmod(0o755)
    script = shell(_at(launch, str(program)))
    said = (
        subprocess.run(["sh", "-c", script], capture_output=True, check=True, env={"PATH": os.environ["PATH"]}).stdout.decode().split("\0")
    )
    count = len(launch.command) - 1
    assert tuple(said[:count]) == launch.command[1:]
    assert {f"{key}={value}" for key, value in launch.environment.items()} <= set(said[count:])


@pytest.mark.parametrize("name", names())
def test_systemd_reads_back_the_command_and_the_environment(name: str) -> None:
    launch = launched(name, {"served_name": NASTY})
    unit = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    text = systemd(launch)
    begun = text.index("ExecStart=") + len("ExecStart=")
    assert tuple(systemd_words(text[begun : text.index("\nKillMode=")])) == launch.command
    lines = [line.partition("=")[2] for line in text.splitlines() if line.startswith("Environment=")]
    assert [systemd_words(line) for line in lines] == [[f"{key}={value}"] for key, value in launch.environment.items()]
    assert f"TimeoutStopSec={launch.stop_s}\n" in text


@pytest.mark.parametrize("name", names())
def test_compose_reads_back_the_command_and_waits_for_the_drain(name: str) -> None:
    launch = launched(name, {"host": "0.0.0.0", "model": "/models/m", "served_name": NASTY})
    (service,) = yaml.safe_load(compose(launch))["services"].values()
    words = [word.replace("$$", "$") for word in (*service["entrypoint"], *service["command"])]
    assert tuple(words) == launch.image_command
    assert service["environment"] == launch.environment
    assert service["stop_grace_period"] == f"{launch.stop_s}s"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    devices = service["deploy"]["resources"].get("reservations", {}).get("devices", [])
    assert sum(one["count"] for one in devices) == launch.config.hardware.gpus


def test_a_container_needs_an_absolute_path_and_systemd_a_whole_one() -> None:
    launch = launched("vllm-cpu-test")
    with pytest.raises(LaunchError, match="--set model=/models/"):
        compose(launch)
    with pytest.raises(LaunchError, match="--executable /path/to/vllm"):
        systemd(_at(launch, "vllm"))


def test_folders_and_ports() -> None:
    launch = launched("vllm-70b-tp4", {"host": "0.0.0.0", "draft_model": "/drafts/d"})
    assert model_folders(launch) == ["/models", "/drafts"]
    assert ports(launch) == {"http": 8000, "kv-events": 5557, "kv-replay": 5657}
    assert ports(launched("vllm-8b")) == {"http": 8000}
    assert ports(launched("vllm-embeddings", {"host": "0.0.0.0"})) == {"http": 8000}
    assert model_folders(launched("vllm-8b", {"model": "/llama"})) == ["/llama"]


def test_lines_are_cut_before_flags() -> None:
    assert parts(("p", "x", "--a", "1", "--b", "--c", "2", "3")) == [["p", "x"], ["--a", "1"], ["--b"], ["--c", "2", "3"]]


FORMS: dict[str, Callable[[Launch], str]] = {"sh": shell, "compose.yaml": compose, "kubernetes.yaml": kubernetes, "service": systemd}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["vllm-70b-tp4", "sglang-pd-prefill", "vllm-cpu-test"])
def test_the_text_is_what_was_looked_at(name: str, form: str) -> None:
    """Snapshots; `TIDEGATE_RENDER=1` writes them anew."""
    text = FORMS[form](launched(name, {"host": "0.0.0.0", "model": "/models/m"}))
    file = RENDERED / f"{name}.{form}"
    if os.environ.get("TIDEGATE_RENDER") == "1":
        file.write_text(text)
    assert text == file.read_text()
