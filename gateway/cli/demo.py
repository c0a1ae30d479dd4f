"""`tidegate demo`: starts engines and a gateway, makes a tenant and a key, asks two questions through the official client, and stays up.

Everything runs as separate processes on loopback, exactly as a person would start them by hand; the demo prints the settings that it
writes, so that a newcomer can go on from there. All of it ends with the demo.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from gateway.cli.admin_client import ADMIN, API, AdminClient
from gateway.cli.demo_engines import (
    READY_WITHIN_S,
    SIM_MODEL,
    SMOL_MODEL,
    DemoEngine,
    fail_with_log,
    spawn,
    start_sim,
    start_smollm2,
    start_vllm,
)
from gateway.cli.demo_observe import (
    Observed,
    console_settings,
    need_prometheus,
    pages,
    prometheus_url,
    start_prometheus,
    wait_for_charts,
    wait_for_scrape,
)
from gateway.cli.explain import blocks
from gateway.cli.printing import fail, out
from gateway.dashboards.rules import rules

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

PORT: Final = 8080
"""The data port unless another one is asked for; the next one is the admin port, where `tidegate` commands look for it."""

EngineKind = Literal["smollm2", "sim", "vllm"]

STARTING: Final = {
    "smollm2": "two llama.cpp servers with SmolLM2, a real model of 135 million parameters: fluent, and often wrong",
    "sim": "three simulated engines; they keep time like an 8B model on an H100, and their words have no meaning",
    "vllm": "two vLLM servers with SmolLM2, a real model of 135 million parameters: fluent, and often wrong",
}
QUESTIONS: Final = (
    "Rain wears down the rocks on land and washes a little salt out of them. Rivers carry this salt to the sea. The sun dries up the water "
    "of the sea, but the salt stays behind. This has gone on for millions of years, so the sea became salty. "
    "In one sentence: why is the sea salty?",
    "In one sentence: what do the rivers carry?",
)
"""Two turns of one conversation. The first is longer than a block of the prefix index (256 bytes), so that the second finds it cached."""
MEASURING: Final = (
    "Story {number}. Early in the morning a fox came out of the wood and went along the river, past the mill and its garden. The miller "
    "saw it and called his daughter, who ran out at once, but the fox was quicker: it jumped over a wall, crossed a field and was gone. "
    "In one sentence: what did the fox do?"
)
"""As long as the first question, so that one answer says enough of an engine's speed. Each engine's begins with another number: equal
ones would go where the first one is cached."""
ANSWER_TOKENS: Final = 48
"""Most tokens of an answer: a few seconds on one core."""


def demo(
    engine: Annotated[
        EngineKind,
        typer.Option(help="smollm2: two llama.cpp servers with a real model; sim: three simulated engines; vllm: made by `make demo`."),
    ] = "smollm2",
    vllm: Annotated[Path | None, typer.Option(help="For --engine vllm: the `vllm` command of its environment.")] = None,
    weights: Annotated[Path | None, typer.Option(help="For --engine vllm: the folder with the model.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit after the conversation.")] = False,
    terms: Annotated[bool, typer.Option("--terms", help="Print every term of each routing decision as well.")] = False,
    observe: Annotated[
        bool, typer.Option("--observe", help="Start Prometheus too, with the shipped alerts, and say where the charts are.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_534, help=f"Data port, and the next one for admin; 0: free ones. Default: {PORT} if both are free; with --once 0."
        ),
    ] = None,
) -> None:
    """Start engines and a gateway, ask two questions, print the answers and why they came from where they came."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)  # a shell starts background jobs with SIGINT ignored
    data_port = _data_port(port, once)
    if observe:
        need_prometheus()
    charts_from = prometheus_url() if observe else ""
    with contextlib.ExitStack() as at_last, tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        _label("starting", STARTING[engine])
        match engine:
            case "sim":
                pool = DemoPool(start_sim(stack, home), SIM_MODEL, "vllm", "h100-8b")
            case "smollm2":
                pool = DemoPool(start_smollm2(stack, home), SMOL_MODEL, "llamacpp", "cpu-135m")
            case "vllm":
                pool = DemoPool(start_vllm(stack, home, vllm, weights), SMOL_MODEL, "vllm", "cpu-135m")
        _label("engines", ", ".join(f"{one.id} {one.url}" for one in pool.engines))
        settings = _write_settings(home, pool, data_port, charts_from)
        key = _create_key(settings)
        ready = _start_gateway(stack, home, settings)
        base_url, admin_url = (f"http://127.0.0.1:{ready[port]}" for port in ("data_port", "admin_port"))
        demo_run = DemoRun(home, f"{base_url}/v1", admin_url, key, pool.model, terms)
        _label("gateway", f"{demo_run.base_url}, admin {demo_run.admin_url}")
        _label("tenant", "demo, with one key")
        targets = {"tidegate": admin_url.removeprefix("http://")}
        observed = start_prometheus(stack, home, targets, rules(), charts_from) if observe else None
        openai = _openai()
        begun = time.monotonic()
        try:
            request_id = _converse(openai, demo_run, engine, len(pool.engines), observed)
        except openai.OpenAIError as error:
            fail_with_log(f"the gateway did not answer as it should: {error}", home / "gateway.log")
        if observed is not None:
            _charts(observed, begun, once)
        if once:
            flags = ["--engine", engine, *(["--vllm", str(vllm), "--weights", str(weights)] if engine == "vllm" else [])]
            flags += ["--observe"] if observe else []
            _numbered("Try next", _next_after(flags))
            return
        _numbered("Try next, in another terminal in this folder", _next(demo_run, request_id))
        _print("")
        _label("console", f"{demo_run.admin_url}/console/, sign in with the token in {demo_run.token_file}")
        if observe:
            _label("charts at", f"{demo_run.admin_url}/console/#/charts?last=5+minutes")
        _label("your app", f"base_url {demo_run.base_url}, api_key {key}")
        _label("settings", str(settings))
        _print("Ctrl-C stops everything.")
        at_last.callback(_print, "\nstopped: no process and no file of the demo is left")
        signal.pause()


@dataclass(frozen=True)
class DemoPool:
    """The engines of the demo, and what the gateway is told about them."""

    engines: list[DemoEngine]
    model: str
    dialect: str
    hardware: str
    """The speed that the gateway assumes until it has measured them."""


@dataclass(frozen=True)
class DemoRun:
    """The running gateway of the demo, and how to use it."""

    home: Path
    base_url: str
    admin_url: str
    key: str
    model: str
    terms: bool
    """Whether to print every term of each decision."""

    @property
    def token_file(self) -> Path:
        """The file with the admin token."""
        return self.home / "admin-token"


def _leave(number: int, _frame: object) -> None:
    """Unwind the stack, so that every process is stopped and every file removed."""
    for again in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(0 if number == signal.SIGINT else 128 + number)


def _print(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def _label(name: str, text: str) -> None:
    out.print(f"{name:9} ", style="bold", end="", markup=False)
    _print(text)


def _numbered(title: str, steps: Sequence[tuple[str, str]]) -> None:
    out.print(f"\n{title}:", style="bold", markup=False)
    for number, (what, command) in enumerate(steps, 1):
        _print(f"{number}. {what}:\n   {command}")


# --- settings, key and gateway ----------------------------------------------------------------------------------------


def _data_port(asked: int | None, once: bool) -> int:
    """The data port to write into the settings, 0 for a free one. Ends the command when the asked one is taken."""
    if asked is None:
        if once:
            return 0
        taken = [port for port in (PORT, PORT + 1) if not is_free(port)]
        if taken:
            _print(f"Port {taken[0]} is taken, so the gateway gets free ports (--port names others).")
        return 0 if taken else PORT
    if asked:
        for port, use in ((asked, "the data port"), (asked + 1, "the admin port, the one after --port")):
            if not is_free(port):
                fail(f"Port {port} is taken or not allowed; it would be {use}. Name another one with --port, or 0 for a free one.", 2)
    return asked


def is_free(port: int) -> bool:
    """Whether this process can listen at the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else the end of an earlier demo's connections would count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _write_settings(home: Path, pool: DemoPool, port: int, charts_from: str) -> Path:
    data, admin = (port, port + 1) if port else (0, 0)
    backends = "\n".join(f'      - {{id: {e.id}, url: "{e.url}"}}' for e in pool.engines)
    (home / "policies").mkdir()
    (home / "policies" / "default.yaml").write_text(f'tenant: "*"\nmodels:\n  - {{name: {pool.model}, pool: chat}}\nexpose_headers: true\n')
    token_file = home / "admin-token"
    token_file.touch(mode=0o600)
    token_file.write_text(secrets.token_urlsafe(32))
    settings = home / "tidegate.yaml"
    settings.write_text(
        f'data: {{bind: "127.0.0.1:{data}"}}\nadmin: {{bind: "127.0.0.1:{admin}"}}\n'
        'stores: {sql: "sqlite:///tidegate.db"}\npolicies: policies\nsecrets: {admin_token: {file: admin-token}}\n'
        "log: {access: false}\ndrain: {accept_s: 0.0, grace_s: 10.0}\n"
        "engines: {first_token_base_s: 60.0}\n"  # the engines share a few busy cores
        f"pools:\n  - name: chat\n    model: {pool.model}\n    dialect: {pool.dialect}\n    hardware: {pool.hardware}\n"
        f"    backends:\n{backends}\n"
        f"{console_settings(charts_from) if charts_from else ''}"
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
    fail_with_log("the gateway did not become ready", log_path)


def _create_key(settings: Path) -> str:
    command = [sys.executable, "-m", "gateway", "key", "create", "--tenant", "demo", "--create-tenant", "--json", "-c", str(settings)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        fail(f"key create failed: {done.stderr}")
    key: str = json.loads(done.stdout)["key"]
    return key


# --- the conversation -------------------------------------------------------------------------------------------------


def _openai() -> ModuleType:
    try:
        import openai
    except ImportError:
        fail("The demo needs the openai package. Run: pip install openai")
    return openai


def _converse(openai: ModuleType, demo_run: DemoRun, engine: EngineKind, engines: int, observed: Observed | None) -> str:
    """Let the gateway measure its engines, then ask both questions as one conversation. Returns the last request's id."""
    measured = asyncio.run(_measure(openai, demo_run, engines))
    took = ", ".join(f"{name} {_ms(seconds)}" for name, seconds in sorted(measured.items()))
    _label("measured", f"one question to each engine, so that the gateway knows how fast it is; first token: {took}")
    if observed is not None:
        wait_for_scrape(observed.url, engines)
    # a proxy that the environment names is for addresses elsewhere
    client = openai.OpenAI(
        base_url=demo_run.base_url, api_key=demo_run.key, max_retries=5, http_client=openai.DefaultHttpxClient(trust_env=False)
    )
    messages: list[ChatCompletionMessageParam] = []
    request_id = ""
    for question in QUESTIONS:
        _print("")
        _label("you", question)
        messages.append({"role": "user", "content": question})
        answer, request_id = _ask(client, demo_run, messages)
        messages.append({"role": "assistant", "content": answer})
    if not demo_run.terms:
        _print("          every term of these decisions: --terms, or make demo TERMS=1")
    if engine == "sim":
        _print("\nThe engines were simulated: their words have no meaning. The demo with a real model: make demo")
    return request_id


async def _measure(openai: ModuleType, demo_run: DemoRun, engines: int) -> dict[str, float]:
    """Send as many requests at once as there are engines, of which the gateway gives one to each. Returns each engine's seconds to the
    first token."""

    async def one(number: int) -> tuple[str, float]:
        begun = time.monotonic()
        raw = await client.chat.completions.with_raw_response.create(
            model=demo_run.model,
            messages=[{"role": "user", "content": MEASURING.format(number=number)}],
            max_tokens=16,
            temperature=0,
            stream=True,
        )
        first_s = 0.0
        async for chunk in raw.parse():
            if not first_s and chunk.choices and chunk.choices[0].delta.content:
                first_s = time.monotonic() - begun
        return _answered_by(_decision(demo_run, raw.headers["x-tidegate-request-id"])), first_s

    async with openai.AsyncOpenAI(
        base_url=demo_run.base_url, api_key=demo_run.key, max_retries=5, http_client=openai.DefaultAsyncHttpxClient(trust_env=False)
    ) as client:
        return dict(await asyncio.gather(*[one(number + 1) for number in range(engines)]))


def _ask(client: Any, demo_run: DemoRun, messages: "list[ChatCompletionMessageParam]") -> tuple[str, str]:
    """Ask, print the answer as it comes, and which engine gave it and why. Returns the answer and the request's id."""
    begun = time.monotonic()
    raw = client.chat.completions.with_raw_response.create(
        model=demo_run.model,
        messages=messages,
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    out.print("answer    ", style="bold", end="")
    usage, answer, first_s = None, "", 0.0
    for chunk in raw.parse():
        usage = chunk.usage or usage
        if chunk.choices and (text := chunk.choices[0].delta.content):
            first_s = first_s or time.monotonic() - begun
            answer += text
            out.print(text, end="", markup=False, soft_wrap=True)
    _print("")
    if usage is None:
        fail("the stream carried no usage")
    request_id: str = raw.headers["x-tidegate-request-id"]
    decision = _decision(demo_run, request_id)
    details = usage.prompt_tokens_details
    cached = f", {details.cached_tokens or 0} of them from the engine's cache" if details is not None else ""
    _label("usage", f"{usage.prompt_tokens} prompt tokens{cached}, {usage.completion_tokens} completion tokens")
    overhead = f"{raw.headers['x-tidegate-overhead-ms']} ms of it in the gateway"
    _label("served by", f"{_answered_by(decision)}, first token after {_ms(first_s)}, {overhead}")
    _label("why", decision["reason"])
    for line in blocks(decision) if demo_run.terms else ():
        _print(f"        {line}")
    return answer, request_id


def _decision(demo_run: DemoRun, request_id: str) -> dict[str, Any]:
    """The routing decision about a request, from the admin API."""
    admin = AdminClient(demo_run.admin_url, demo_run.token_file.read_text())
    decision: dict[str, Any] = admin.read(f"{API}/requests/{request_id}/explanation")
    return decision


def _answered_by(decision: dict[str, Any]) -> str:
    backend: str = decision["served_by"] or decision["chosen"]
    return backend


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _charts(observed: Observed, begun: float, once: bool) -> None:
    """Print which charts have data, and where they are drawn.

    Args:
        begun: when the first request began.
        once: whether the demo ends now, so that there is nowhere to look.
    """
    charts = wait_for_charts(observed.url)
    took_s = time.monotonic() - begun
    have = ", ".join(f"{title.removeprefix('Tidegate: ')} {len(panels)}" for title, panels in charts.filled.items())
    _print("")
    _label("charts", f"with data {took_s:.1f} s after the first request began: {have}")
    if charts.late:
        fail(f"charts without data: {', '.join(panel.title for panel in charts.late)}")
    if once:
        return
    drawn, alerts = pages(observed.url)
    _label("drawn by", drawn)
    _label("alerts", alerts + (f", Alertmanager {observed.alertmanager_url}" if observed.alertmanager_url else ""))
    _print("          for Grafana: import the files that `tidegate export-dashboards` writes")


# --- what to try next -------------------------------------------------------------------------------------------------


def _next(demo_run: DemoRun, request_id: str) -> list[tuple[str, str]]:
    """What to try while the demo stays up, each with its command."""
    body = json.dumps({"model": demo_run.model, "messages": [{"role": "user", "content": "What is salt?"}], "max_tokens": 60})
    chat = f"curl {demo_run.base_url}/chat/completions -H 'authorization: Bearer {demo_run.key}' -H 'content-type: application/json'"
    admin = (f"--admin {demo_run.admin_url} " if demo_run.admin_url != ADMIN else "") + f"--token-file {demo_run.token_file}"
    return [
        ("Ask something else", f"{chat} -d '{body}'"),
        ("See every engine's cost in the last decision, term by term", f"{_tidegate()} explain {request_id} {admin}"),
        (
            "Allow this tenant one request a minute; five seconds later, repeat 1 twice: the second is refused, and told when to come back",
            f"{_tidegate()} limit set tenant:demo:requests:minute 1 {admin}",
        ),
    ]


def _next_after(flags: list[str]) -> list[tuple[str, str]]:
    """What to try once the demo has ended, each with its command."""
    again = f"{_tidegate()} demo {shlex.join(flags)}"
    return [
        ("The same again, and it stays up for your own requests", again),
        ("The same with every term of the routing decisions", f"{again} --once --terms"),
        ("Every command of Tidegate", f"{_tidegate()} --help"),
    ]


def _tidegate() -> str:
    """The command line of `tidegate` in the Python environment of this process, as short as it is from this folder."""
    script = Path(sys.executable).with_name("tidegate")
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m gateway"
    return shlex.quote(os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script))
