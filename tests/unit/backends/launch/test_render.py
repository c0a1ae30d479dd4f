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


@pytest.mark.parametrize(("name", "flag"), [("vllm-8b", "tokenizer"), ("sglang-8b", "tokenizer-path")])
def test_a_tokenizer_that_lies_elsewhere_is_mounted_too(name: str, flag: str) -> None:
    for tokenizer, folders in {"/tok/llama": ["/models", "/tok"], "/models/a/tok": ["/models"], "org/llama": ["/models"]}.items():
        assert model_folders(launched(name, {flag: tokenizer})) == folders


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


DIGEST = "sha256:0123456789ab" + "0" * 52


def test_every_form_checks_the_digest_before_it_starts_the_engine(tmp_path: Path) -> None:
    launch = launched("vllm-8b", {"digest": DIGEST, "model": "/models/m", "host": "0.0.0.0"})
    check = f"tidegate model digest /models/m --expect {DIGEST}"
    names = "--served-model-name llama-3.1-8b llama-3.1-8b@sha256-0123456789ab"
    script = shell(launch)
    assert script.index(f"\n{check} >/dev/null\n") < script.index("\nexec ")
    assert names in script
    unit = systemd(launch)
    assert unit.index(f"\nExecStartPre=/usr/bin/env {check}\n") < unit.index("\nExecStart=")
    services = yaml.safe_load(compose(launch))["services"]
    assert services["vllm-8b"]["depends_on"] == {"vllm-8b-digest": {"condition": "service_completed_successfully"}}
    digest = services["vllm-8b-digest"]
    assert [*digest["entrypoint"], *digest["command"]] == check.split()
    deployment, _ = yaml.safe_load_all(kubernetes(launch))
    (first,) = deployment["spec"]["template"]["spec"]["initContainers"]
    assert [*first["command"], *first["args"]] == check.split()
    assert first["volumeMounts"] == [{"name": "models", "mountPath": "/models", "readOnly": True}]


def test_a_script_does_not_start_the_engine_on_other_weights(tmp_path: Path) -> None:
    (tmp_path / "tidegate").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "engine").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    for file in ("tidegate", "engine"):
        (tmp_path / file).chmod(0o755)
    launch = _at(launched("vllm-8b", {"digest": DIGEST}), str(tmp_path / "engine"))
    (tmp_path / "run.sh").write_text(shell(launch))
    done = subprocess.run(["sh", str(tmp_path / "run.sh")], check=False, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (done.returncode, (tmp_path / "started").exists()) == (1, False)


def test_a_digest_that_is_none_is_refused() -> None:
    with pytest.raises(LaunchError, match="write sha256: and 64 digits"):
        launched("vllm-8b", {"digest": "abc"})
