"""Real coding agents, unmodified, complete a task with a tool call through a gateway (`make test-agents`).

Each agent runs with an empty home in an empty folder. The target starts this file in a network namespace that has a loopback device alone,
so no agent reaches another machine. The engine is scripted (`scripted_engine.py`): the agent's whole loop over its own API is tried,
not a model.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from tests.agents.scripted_engine import DONE, MODEL, ScriptedEngine
from tests.gateway_harness import Gateway, gateway
from tests.timing import until

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".venv-agents" / "node_modules"
WITHIN_S = 240
"""An agent that hangs is ended. Either of them took under 3 s on two quiet cores."""

pytestmark = pytest.mark.client


@asynccontextmanager
async def served() -> AsyncIterator[tuple[ScriptedEngine, Gateway]]:
    engine = ScriptedEngine()
    server = uvicorn.Server(uvicorn.Config(engine.app, port=0, lifespan="off", access_log=False, log_config=None))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    pools = [{"name": "agents", "model": MODEL, "dialect": "vllm", "backends": [{"id": "one", "url": url}]}]
    policy = {"tenant": "*", "models": [{"name": MODEL, "pool": "agents"}]}
    try:
        async with gateway(pools=pools, policies=(policy,)) as running:
            yield engine, running
    finally:
        server.should_exit = True
        await serving


async def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    """What a program printed; it has to end well."""
    home = folder / "home"
    work = folder / "work"
    for path in (home, work):
        path.mkdir(exist_ok=True)
    known = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment}
    child = await asyncio.create_subprocess_exec(
        *command,
        env=known,
        cwd=work,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, complaints = await asyncio.wait_for(child.communicate(), WITHIN_S)
    finally:
        if child.returncode is None:
            child.kill()
    assert child.returncode == 0, f"{said.decode()}\n{complaints.decode()}"
    return said.decode()


def test_nothing_but_this_machine_can_be_reached() -> None:
    devices = [path.name for path in Path("/sys/class/net").iterdir()] if os.environ.get("TIDEGATE_ALONE") else []
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    assert (devices != [], routes) == (True, []), "run this by `make test-agents`"


async def test_claude_code_completes_a_task(tmp_path: Path) -> None:
    async with served() as (engine, running):
        environment = {
            "ANTHROPIC_BASE_URL": running.url,
            "ANTHROPIC_API_KEY": running.keys["acme"],
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        task = ["-p", "Write the word harbour into note.txt", "--output-format", "json", "--allowedTools", "Bash"]
        said = json.loads(
            await run(["node", str(PACKAGES / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"), *task], environment, tmp_path)
        )
        assert (said["result"], said["is_error"]) == (DONE, False)
        assert (tmp_path / "work" / "note.txt").read_text() == "harbour\n"
        last = engine.chats[-1]["messages"]
        assert last[-1]["role"] == "tool"
        assert "x-anthropic-billing-header" not in json.dumps(engine.chats)
        agent = [chat["messages"][0] for chat in engine.chats if chat.get("tools")]
        assert len(agent) >= 2
        assert all(opening == agent[0] for opening in agent), "the beginning of the prompt stays the same, so that engines have it cached"
        assert said["usage"]["output_tokens"] == 20 * said["num_turns"]
        assert {record.endpoint for record in running.records if record.outcome == "ok"} >= {"/v1/messages"}
        assert running.open_holds == 0


async def test_codex_completes_a_task(tmp_path: Path) -> None:
    async with served() as (engine, running):
        settings = {
            "model_provider": "tidegate",
            "model_providers.tidegate.name": "tidegate",
            "model_providers.tidegate.base_url": f"{running.url}/v1",
            "model_providers.tidegate.env_key": "TIDEGATE_KEY",
            "model_providers.tidegate.wire_api": "responses",
            "web_search": "disabled",
        }
        given = [word for name, value in settings.items() for word in ("-c", f'{name}="{value}"')]
        task = ["exec", "--model", MODEL, "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *given]
        program = ["node", str(PACKAGES / "@openai" / "codex" / "bin" / "codex.js")]
        said = await run([*program, *task, "Write the word harbour into note.txt"], {"TIDEGATE_KEY": running.keys["acme"]}, tmp_path)
        assert DONE in said
        assert (tmp_path / "work" / "note.txt").read_text() == "harbour\n"
        assert engine.chats[-1]["messages"][-1]["role"] == "tool"
        assert {record.endpoint for record in running.records if record.outcome == "ok"} >= {"/v1/responses"}
        assert running.open_holds == 0
