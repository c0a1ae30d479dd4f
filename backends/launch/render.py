"""A launch configuration rendered as a shell script, a compose file or a systemd unit. Pure; values are quoted by each format's rules.

Kubernetes is in `kubernetes.py`.
"""

import shlex
from pathlib import PurePosixPath
from typing import Any, Final

import yaml

from backends.launch.config import Scalar
from backends.launch.resolve import Launch, LaunchError

HEADER: Final = "made by `tidegate engine render`; a starting point, not measured on your machine"

GATEWAY_IMAGE: Final = "tidegate:latest"
"""The image that checks a model's digest before a container of an engine starts."""

_SYSTEMD_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}


def shell(launch: Launch) -> str:
    """A script for sh: variables, then `exec` of the engine, so that signals reach it."""
    lines = ["#!/bin/sh", f"# {launch.config.name}: {launch.config.summary}", f"# {HEADER}", "set -eu"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in launch.environment.items()]
    lines += [shlex.join(digest_check(launch)) + " >/dev/null"] if launch.digest else []
    return "\n".join([*lines, "exec " + " \\\n  ".join(shlex.join(part) for part in parts(launch.command))]) + "\n"


def digest_check(launch: Launch) -> tuple[str, ...]:
    """The command that ends with code 1 unless the model has the launch's digest."""
    return ("tidegate", "model", "digest", str(launch.parameters["model"]), "--expect", launch.digest)


def parts(command: tuple[str, ...]) -> list[list[str]]:
    """The command line split before each flag."""
    cut: list[list[str]] = [[]]
    for argument in command:
        if argument.startswith("--") and cut[-1]:
            cut.append([])
        cut[-1].append(argument)
    return cut


def compose(launch: Launch) -> str:
    """A compose file with one service. Ports are published on loopback; raises LaunchError for a relative model path."""
    program, *arguments = launch.image_command
    hardware = launch.config.hardware
    service: dict[str, Any] = {
        "image": launch.config.image,
        "entrypoint": [program],
        "command": arguments,
        "environment": launch.environment,
        "ports": [f"127.0.0.1:{port}:{port}" for port in ports(launch).values()],
        "volumes": [f"{folder}:{folder}:ro" for folder in model_folders(launch)],
        "shm_size": f"{hardware.shm_gib}g",
        "ulimits": {"nofile": 65536},
        "stop_signal": "SIGTERM",
        "stop_grace_period": f"{launch.stop_s}s",
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", f"import urllib.request as u; u.urlopen('http://127.0.0.1:{launch.port}/health', timeout=2)"],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{launch.config.ready_s}s",
        },
    }
    if hardware.gpus:
        device = {"driver": "nvidia", "count": hardware.gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    else:
        service["deploy"] = {"resources": {"limits": {"cpus": str(hardware.cpus), "memory": f"{hardware.memory_gib}g"}}}
    services = {launch.config.name: service}
    if launch.digest:
        command = list(digest_check(launch)[1:])
        checked = {"image": GATEWAY_IMAGE, "entrypoint": ["tidegate"], "command": command, "volumes": service["volumes"]}
        services[f"{launch.config.name}-digest"] = {**checked, "restart": "no", "network_mode": "none"}
        service["depends_on"] = {f"{launch.config.name}-digest": {"condition": "service_completed_successfully"}}
    # compose expands $NAME in every value
    document = _each_text({"services": services}, lambda text: text.replace("$", "$$"))
    return f"# {HEADER}\n" + yaml_text(document)


def systemd(launch: Launch) -> str:
    """A service unit. The account `tidegate` is the gateway's, so that it may read event sockets in the runtime folder."""
    name = launch.config.name
    program = launch.command[0]
    if not program.startswith("/"):
        raise LaunchError(f"systemd wants the program's whole path; say --executable /path/to/{program}")
    command = " \\\n  ".join(" ".join(_systemd_word(word, command=True) for word in part) for part in parts(launch.command))
    return "\n".join(
        [
            f"# {HEADER}",
            "[Unit]",
            f"Description={_systemd_text(f'{name}: {launch.config.summary}')}",
            "After=network-online.target",
            "Wants=network-online.target",
            "",
            "[Service]",
            "Type=exec",
            "User=tidegate",
            "Group=tidegate",
            *(f"Environment={_systemd_word(f'{key}={value}', command=False)}" for key, value in launch.environment.items()),
            *([f"ExecStartPre=/usr/bin/env {' '.join(digest_check(launch))}"] if launch.digest else []),
            f"ExecStart={command}",
            "KillMode=mixed",
            f"TimeoutStopSec={launch.stop_s}",
            "Restart=on-failure",
            "RestartSec=5",
            "LimitNOFILE=65536",
            f"RuntimeDirectory=tidegate-{name}",
            "RuntimeDirectoryMode=0750",
            f"CacheDirectory=tidegate-{name}",
            "NoNewPrivileges=yes",
            "PrivateTmp=yes",
            "ProtectSystem=full",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def runtime_dir(name: str) -> Scalar:
    """The folder of a rendered unit's sockets (RuntimeDirectory=)."""
    return f"/run/tidegate-{name}"


def ports(launch: Launch) -> dict[str, int]:
    """The ports that a container must open, by name: the API, and those of KV events and the load push where they use TCP."""
    opened = {"http": launch.port}
    if launch.kv_events is not None:
        for name, endpoint in (("kv-events", launch.kv_events.endpoint), ("kv-replay", launch.kv_events.replay_endpoint)):
            if endpoint.startswith("tcp://"):
                opened[name] = int(endpoint.rpartition(":")[2])
    if launch.load_push is not None:
        opened["load-push"] = int(launch.load_push.endpoint.rpartition(":")[2])
    return opened


def model_folders(launch: Launch) -> list[str]:
    """The folders that a container must mount: those of the model, of a draft model, and of a tokenizer that lies elsewhere.

    Raises LaunchError for a relative path.
    """
    folders: list[str] = []
    for name in ("model", "draft_model"):
        if name not in launch.parameters:
            continue
        path = PurePosixPath(str(launch.parameters[name]))
        if not path.is_absolute() or path == path.parent:
            raise LaunchError(f"a container needs an absolute path; say --set {name}=/models/… (here: {path})")
        if (folder := _folder_of(path)) not in folders:
            folders.append(folder)
    tokenizer = PurePosixPath(str(launch.flags.get("tokenizer-path" if launch.engine == "sglang" else "tokenizer", "")))
    # a name of the hub is no path, and what lies below a mounted folder is mounted with it
    if tokenizer.is_absolute() and tokenizer != tokenizer.parent and not any(tokenizer.is_relative_to(folder) for folder in folders):
        folders.append(_folder_of(tokenizer))
    return folders


def _folder_of(path: PurePosixPath) -> str:
    """The folder to mount for a path: the one that it lies in, or itself at the root."""
    return str(path.parent if path.parent != path.parent.parent else path)


def yaml_text(*documents: dict[str, Any]) -> str:
    """YAML, members in the order given."""
    text: str = yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=140, allow_unicode=True)
    return text


class _Plain(yaml.SafeDumper):
    """PyYAML's safe dumper without anchors: people copy parts of these files."""

    def ignore_aliases(self, data: object) -> bool:
        """Always True, so that a value that occurs twice is written twice."""
        return True


def _each_text(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: _each_text(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_each_text(part, change) for part in value]
    return change(value) if isinstance(value, str) else value


def _systemd_word(word: str, *, command: bool) -> str:
    """One word by systemd.service(5), "Command lines": C escapes in double quotes, %% and, in commands, $$."""
    escaped = _systemd_text(word)
    if command:
        escaped = escaped.replace("$", "$$")
    plain = escaped == word and word and not set(word) & set(" ';#")
    return word if plain else f'"{escaped}"'


def _systemd_text(text: str) -> str:
    return "".join(_SYSTEMD_ESCAPES.get(letter, letter) for letter in text)
