"""Resolves a launch configuration and its parameters to the command line, environment and addresses of one engine. Pure.

Derived parameters, each of which may also be set directly:
- `events_endpoint`, `replay_endpoint`: on a loopback host KV events stay on the machine, elsewhere they are bound on every
  interface at `events_port` and `replay_port`. Events carry every prompt's tokens and the tenants' salts in clear.
- `digest`: of the model's manifest, empty unless set. The engine then proves it with a served name: vLLM gets a second one that ends with
  it, SGLang, which has one name only, gets it at the end of `served_name`.
- `load_endpoint` (SGLang): its load push needs a wildcard address (`resolve_load_pub_range`, 0.5.23), so it is off on loopback.
"""

import ipaddress
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from pydantic import JsonValue

from backends.launch.config import EngineName, LaunchConfig, Scalar
from backends.launch.manifest import Manifest, check_flags
from backends.launch.values import wrong_parameters
from domain.model_revisions import proof_of

_PLACE: Final = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_NUMBERS: Final = frozenset({"port", "events_port", "replay_port", "grace_s"})

_FOLLOWED: Final = frozenset({"host", "port", "model", "served_name", "grace_s", "bootstrap_port"})
"""Parameters that addresses, the served name and the time to stop follow, and that a flag of its own would leave behind."""

STOP_MARGIN_S: Final = 15
"""Seconds that an engine gets to exit after its own drain; vLLM's CPU build was measured at 1.4 s idle, GPUs free memory first."""


class LaunchError(Exception):
    """A launch configuration, a parameter or a flag is wrong; the text has one sentence a line."""


class KvEventsAddress(msgspec.Struct, frozen=True):
    """The endpoints at which a gateway on the engine's host subscribes: the engine's own, wildcards replaced by the engine's host."""

    endpoint: str
    replay_endpoint: str
    topic: str


class LoadPushAddress(msgspec.Struct, frozen=True):
    """The endpoint at which a gateway on the engine's host subscribes to its load reports."""

    endpoint: str
    """The first rank's endpoint; the other ranks have the next ports."""
    ranks: int
    """Number of data-parallel ranks."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, resolved and ready to be started or rendered."""

    config: LaunchConfig
    parameters: dict[str, Scalar]
    flags: dict[str, JsonValue]
    """Resolved, in the order of the file."""
    environment: dict[str, str]
    command: tuple[str, ...]
    """The whole command line."""
    image_command: tuple[str, ...]
    """The whole command line in a container."""
    host: str
    port: int
    id: str
    """The gateway's id of the backend."""
    served_name: str
    digest: str
    """The digest that the model must have; empty for any."""
    grace_s: int
    """How long running requests may go on after SIGTERM, seconds."""
    kv_events: KvEventsAddress | None
    load_push: LoadPushAddress | None
    revision: str = ""
    """The name of the registered revision that it serves; empty where it was rendered without one."""

    @property
    def engine(self) -> EngineName:
        """The kind of engine."""
        return self.config.engine

    @property
    def url(self) -> str:
        """The URL of this engine, as reached from its own machine."""
        host = self.host if not is_wildcard(self.host) else "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def stop_s(self) -> int:
        """Seconds between SIGTERM and SIGKILL: the drain, and the margin for exiting."""
        return self.grace_s + STOP_MARGIN_S


def is_wildcard(host: str) -> bool:
    """Whether a server bound to `host` answers on every interface."""
    return host in ("0.0.0.0", "::", "*", "")


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def resolve(config: LaunchConfig, manifest: Manifest, given: Mapping[str, JsonValue] | None = None) -> Launch:
    """The engine that `config` describes, with the `given` parameters and flags in place of its own.

    Raises:
        LaunchError: an unknown name, a value of the wrong kind, an undefined `{name}`, or flags that the engine would refuse.
    """
    parameters, flags = _with(config, manifest, given or {})
    parameters = _derived(config.engine, parameters)
    problems = wrong_parameters(parameters)
    digest = str(parameters.get("digest", ""))
    if digest and config.engine == "sglang":
        parameters["served_name"] = str(parameters["served_name"]).removesuffix(proof_of(digest)) + proof_of(digest)
    filled = {name: _fill(value, parameters, f"--{name}", problems) for name, value in flags.items()}
    if digest and config.engine == "vllm":
        filled["served-model-name"] = [str(parameters["served_name"]), f"{parameters['served_name']}{proof_of(digest)}"]
    environment = {name: str(_fill(value, parameters, name, problems)) for name, value in config.environment.items()}
    command = [str(_fill(part, parameters, "command", problems)) for part in config.command]
    inside = [str(_fill(part, parameters, "image_command", problems)) for part in config.image_command or config.command]
    problems += check_flags(manifest, filled) + contradictions(filled)
    if problems:
        raise LaunchError("\n".join(problems))
    argv = command_line(filled)
    return Launch(
        config=config,
        parameters=parameters,
        flags=filled,
        environment=environment,
        command=(*command, *argv),
        image_command=(*inside, *argv),
        host=str(parameters["host"]),
        port=int(parameters["port"]),
        id=str(parameters["id"]),
        served_name=str(parameters["served_name"]),
        digest=digest,
        grace_s=int(parameters["grace_s"]),
        kv_events=_events(filled, parameters),
        load_push=_load_push(filled, parameters),
    )


def command_line(flags: Mapping[str, JsonValue]) -> list[str]:
    """Flags as arguments: a switch alone, JSON without spaces, several values after one flag."""
    argv: list[str] = []
    for name, value in flags.items():
        argv.append(f"--{name}")
        if isinstance(value, list):
            argv += [_text(item) for item in value]
        elif value is not True:
            argv.append(_text(value))
    return argv


def contradictions(flags: Mapping[str, JsonValue]) -> list[str]:
    """Combinations of flags that an engine accepts and that contradict each other, one sentence each."""
    problems = []
    running = _whole(flags, "max-num-seqs")
    admitted = _whole(flags, "max-num-queued-reqs")
    # the queue limit counts running and waiting together in the API process (SchedulerConfig.max_num_queued_reqs, vLLM 0.33)
    if running is not None and admitted is not None and admitted < running * (_whole(flags, "data-parallel-size-local") or 1):
        problems.append(
            f"--max-num-queued-reqs {admitted} counts running requests too, so --max-num-seqs {running} is never reached; raise it"
        )
    if flags.get("enable-priority-scheduling") is True and flags.get("schedule-policy", "fcfs") not in ("fcfs", "lof"):
        problems.append(f"--schedule-policy {flags['schedule-policy']} does not go with --enable-priority-scheduling; write fcfs or lof")
    silent = flags.get("disaggregation-mode") == "decode" and flags.get("disaggregation-decode-enable-radix-cache") is not True
    if silent and "kv-events-config" in flags:
        problems.append("--kv-events-config on a decode engine says nothing without --disaggregation-decode-enable-radix-cache")
    if "model-path" in flags and ":" in str(flags.get("served-model-name", "")):
        problems.append("--served-model-name holds a colon, which SGLang reads as base:adapter; choose another")
    return problems


def _whole(flags: Mapping[str, JsonValue], name: str) -> int | None:
    try:
        return int(str(flags[name]))
    except (KeyError, ValueError):
        return None


def _with(config: LaunchConfig, manifest: Manifest, given: Mapping[str, JsonValue]) -> tuple[dict[str, Scalar], dict[str, JsonValue]]:
    """The parameters and flags, overridden by the given ones; a name is looked up as a parameter first, then as a flag of the engine."""
    parameters = dict(config.parameters)
    flags = dict(config.flags)
    derived = {"events_endpoint", "replay_endpoint", "load_endpoint", "id", "digest"}
    for name, value in given.items():
        if name in parameters or name in derived:
            if isinstance(value, bool) or not isinstance(value, Scalar):
                raise LaunchError(f"--set {name}: takes text or a number, not {json.dumps(value)}")
            parameters[name] = _number(name, value) if name in _NUMBERS else value
        elif f"--{name}" in manifest.flags:
            place = _PLACE.fullmatch(str(config.flags.get(name)))
            if place is not None and place[1] in _FOLLOWED:
                raise LaunchError(f"--set {name}: is the parameter {place[1]}, which other parts follow; write --set {place[1]}=…")
            if value is None or value is False:
                flags.pop(name, None)
            else:
                flags[name] = value
        else:
            near = get_close_matches(name, [*parameters, *derived, *(flag[2:] for flag in manifest.flags)], n=1)
            raise LaunchError(
                f"--set {name}: neither a parameter of {config.name} nor a flag of {config.engine} {config.version}"
                + (f"; did you mean {near[0]}?" if near else "")
            )
    return parameters, flags


def _number(name: str, value: Scalar) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise LaunchError(f"--set {name}: takes a whole number, not {value!r}") from None
    most = 86_400 if name == "grace_s" else 65_535
    if not 0 < number <= most:
        raise LaunchError(f"--set {name}: is between 1 and {most}, not {number}")
    return number


def _derived(engine: EngineName, parameters: dict[str, Scalar]) -> dict[str, Scalar]:
    host = str(parameters["host"])
    local = is_loopback(host)
    if not local:
        events = f"tcp://*:{parameters['events_port']}"
        replay = f"tcp://*:{parameters['replay_port']}"
    elif engine == "vllm":
        # vLLM binds wildcards and ipc only and *connects* to tcp://127.0.0.1 (ZmqEventPublisher, 0.33)
        folder = parameters["runtime_dir"]
        events, replay = (f"ipc://{folder}/tidegate-{parameters['port']}-{kind}.sock" for kind in ("kv", "replay"))
    else:
        at = f"[{host}]" if ":" in host else host.replace("localhost", "127.0.0.1")
        events = f"tcp://{at}:{parameters['events_port']}"
        replay = f"tcp://{at}:{parameters['replay_port']}"
    # an events endpoint that was set decides about the load push too
    wildcard = "*" in str(parameters.get("events_endpoint", events))
    computed: dict[str, Scalar] = {"events_endpoint": events, "replay_endpoint": replay, "load_endpoint": "auto" if wildcard else "off"}
    return {**computed, **parameters}


def _fill(value: Any, parameters: Mapping[str, Scalar], where: str, problems: list[str]) -> Any:
    """`value` with every `{name}` replaced; a text that consists of one `{name}` keeps the parameter's type."""
    if isinstance(value, dict):
        return {key: _fill(part, parameters, where, problems) for key, part in value.items()}
    if isinstance(value, list):
        return [_fill(part, parameters, where, problems) for part in value]
    if not isinstance(value, str):
        return value
    for name in _PLACE.findall(value):
        if name not in parameters:
            problems.append(f"{where}: {{{name}}} is no parameter; there are {', '.join(sorted(parameters))}")
            return value
    whole = _PLACE.fullmatch(value)
    return parameters[whole[1]] if whole else _PLACE.sub(lambda place: str(parameters[place[1]]), value)


def _events(flags: Mapping[str, JsonValue], parameters: Mapping[str, Scalar]) -> KvEventsAddress | None:
    events = flags.get("kv-events-config")
    if not isinstance(events, dict):
        return None
    host = str(parameters["host"])
    reachable = "127.0.0.1" if is_wildcard(host) else host
    endpoint, replay = (str(events.get(key, "")).replace("*", reachable) for key in ("endpoint", "replay_endpoint"))
    return KvEventsAddress(endpoint, replay, str(events.get("topic", "")))


def _load_push(flags: Mapping[str, JsonValue], parameters: Mapping[str, Scalar]) -> LoadPushAddress | None:
    """The ports that SGLang takes (`resolve_load_pub_range`, 0.5.23): those of its flag; with `auto` the ports after the events' ports, or
    after the replays' where these overlap. Only a wildcard address is bound."""
    events = flags.get("kv-events-config")
    requested = str(flags.get("load-publish-endpoint", "off"))
    if not isinstance(events, dict):
        return None
    ranks = _whole(flags, "dp-size") or _whole(flags, "data-parallel-size") or 1
    ports = {key: _port(str(events.get(key, ""))) for key in ("endpoint", "replay_endpoint")}
    first = _port(requested)
    if requested == "auto" and "*" in str(events.get("endpoint")) and ports["endpoint"]:
        first = ports["endpoint"] + ranks
        replay = ports["replay_endpoint"]
        if replay and first < replay + ranks and replay < first + ranks:
            first = replay + ranks
    elif "*" not in requested:
        return None
    if not first:
        return None
    host = str(parameters["host"])
    return LoadPushAddress(f"tcp://{'127.0.0.1' if is_wildcard(host) else host}:{first}", ranks)


def _port(endpoint: str) -> int:
    port = endpoint.rpartition(":")[2]
    return int(port) if endpoint.startswith("tcp://") and port.isdecimal() else 0


def _text(value: JsonValue) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value)
