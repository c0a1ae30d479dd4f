"""A real receiver: what Arize Phoenix shows of a real gateway's requests (`make test-receivers`).

`tidegate serve` with two simulated engines sends its traces over OTLP; they are read back by Phoenix's own API, as its pages read them.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.e2e.test_serve import ask, serving
from tests.engines.processes import ROOT, Process, engine_home, free_port, start, stopping
from tests.timing import HANG_S, until

pytestmark = pytest.mark.client

PHOENIX = ROOT / ".venv-phoenix"
SIM = SimSettings(models=("sim",), speed=1000)
PROJECT = "tidegate-test"
CALLERS_SPAN = "00f067aa0ba902b7"
STEPS = {"authenticate", "interpret", "look_ahead", "admit", "look_up", "choose", "forward", "settle"}
SERVED, CALL = "POST /v1/chat/completions", "chat sim"
PLAIN, STREAMED, RETRIED, FAILED = (f"{at:032x}" for at in range(0xA1, 0xA5))

Shown = dict[str, Any]
Traces = dict[str, list[Shown]]


def shown(phoenix: Process, trace_id: str) -> list[Shown]:
    """The spans of a trace that Phoenix has; none while it does not know the project."""
    reply = phoenix.get(f"/v1/projects/{PROJECT}/spans?limit=1000&trace_id={trace_id}")
    return [] if reply.status_code == 404 else list(reply.raise_for_status().json()["data"])


def tokens_below(phoenix: Process, span_id: str) -> int:
    """Tokens of a span and of all below it, as Phoenix adds them up for its list of traces."""
    query = f'{{ getSpanByOtelId(spanId: "{span_id}") {{ cumulativeTokenCountTotal }} }}'
    reply = phoenix.post("/graphql", {"query": query}).raise_for_status().json()
    return int(reply["data"]["getSpanByOtelId"]["cumulativeTokenCountTotal"])


@pytest.fixture(scope="module")
def phoenix() -> Iterator[Process]:
    assert (PHOENIX / ".made").exists(), f"{PHOENIX.name} is not there or not complete; run `make test-receivers`"
    with engine_home("phoenix") as home:
        port = free_port()
        settings = {
            "PHOENIX_WORKING_DIR": str(home),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        process = start("phoenix", [str(PHOENIX / "bin/phoenix"), "serve"], home, url=f"http://127.0.0.1:{port}", **settings)
        with stopping(process):
            process.wait_ready("/healthz")
            yield process


@pytest.fixture
async def traces(phoenix: Process, tmp_path: Path) -> Traces:
    """A plain and a streamed request, one that is retried on the other engine, and one that fails on both; as Phoenix has them."""
    async with SimEngine(SIM) as engine, SimEngine(SIM) as other, httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        settings = {
            "data": {"bind": "127.0.0.1:0"},
            "admin": {"bind": "127.0.0.1:0"},
            "drain": {"accept_s": 0.0, "grace_s": 5.0},
            "pools": [{"name": "chat", "model": "sim", "backends": [{"id": "e0", "url": engine.url}, {"id": "e1", "url": other.url}]}],
            "traces": {
                "ratio": 1.0,
                "resource": {"openinference.project.name": PROJECT},
                "exporters": {"phoenix": {"endpoint": f"{phoenix.url}/v1/traces"}},
            },
        }
        written = re.sub(r"([{}])", r"\1\1", json.dumps(settings))
        async with serving(tmp_path, "", settings=written) as served:

            async def asked(trace_id: str, **fields: object) -> int:
                headers = {**served.headers, "traceparent": f"00-{trace_id}-{CALLERS_SPAN}-01"}
                reply = await client.post(f"{served.url}/v1/chat/completions", json=ask(**fields), headers=headers)
                return reply.status_code

            statuses = [await asked(PLAIN), await asked(STREAMED, stream=True)]
            favoured = max((engine, other), key=lambda one: len(one.received))  # it has the prompt in its cache
            favoured.misbehave([FaultRule("status_500", first=1)])
            statuses.append(await asked(RETRIED))
            for one in (engine, other):
                one.misbehave([FaultRule("status_500")])
            statuses.append(await asked(FAILED))
            assert statuses == [200, 200, 200, 502]
            await until(lambda: all(shown(phoenix, trace_id) for trace_id in (PLAIN, STREAMED, RETRIED, FAILED)), 0.2)
    return {trace_id: shown(phoenix, trace_id) for trace_id in (PLAIN, STREAMED, RETRIED, FAILED)}


def named(spans: list[Shown], name: str) -> list[Shown]:
    """The spans of this name, the first one first."""
    return sorted((span for span in spans if span["name"] == name), key=lambda span: str(span["start_time"]))


async def test_phoenix_shows_every_step_its_parent_the_attributes_of_calls_and_each_failure(
    phoenix: Process, traces: Traces, record_property: Any
) -> None:
    for trace_id, spans in traces.items():
        (root,), (forward,) = named(spans, SERVED), named(spans, "forward")
        assert root["parent_id"] == CALLERS_SPAN
        assert {span["name"] for span in spans} == {SERVED, CALL} | STEPS
        assert {span["parent_id"] for span in spans if span["name"] in STEPS} == {root["context"]["span_id"]}
        assert {span["parent_id"] for span in named(spans, CALL)} == {forward["context"]["span_id"]}
        assert {span["context"]["trace_id"] for span in spans} == {trace_id}
    assert [len(named(spans, CALL)) for spans in traces.values()] == [1, 1, 2, 2]

    for trace_id in (PLAIN, STREAMED, RETRIED):
        (root,), call = named(traces[trace_id], SERVED), named(traces[trace_id], CALL)[-1]
        said = call["attributes"]
        # Phoenix's own words, which its lists and sums are made of
        assert call["span_kind"] == "LLM"
        assert (said["llm.model_name"], said["llm.system"], said["llm.token_count.completion"]) == ("sim", "vllm", 4)
        # and the words of OpenTelemetry, which it keeps
        assert (said["gen_ai.request.model"], said["gen_ai.provider.name"], said["gen_ai.operation.name"]) == ("sim", "vllm", "chat")
        assert said["gen_ai.usage.output_tokens"] == 4
        assert said["gen_ai.usage.input_tokens"] == said["llm.token_count.prompt"] > 0
        assert said["gen_ai.response.finish_reasons"] == ["length"]
        assert [event["name"] for event in call["events"]] == ["first_token"]
        assert said.get("gen_ai.request.stream", False) is (trace_id == STREAMED)
        assert (root["status_code"], call["status_code"]) == ("UNSET", "UNSET")
        assert tokens_below(phoenix, root["context"]["span_id"]) == said["llm.token_count.total"], "each token is counted once"

    first, second = named(traces[RETRIED], CALL)
    assert (first["status_code"], first["status_message"]) == ("ERROR", "engine answered 500")
    assert first["attributes"]["error.type"] == "engine_error"
    assert first["attributes"]["tidegate.backend"] != second["attributes"]["tidegate.backend"]
    states = {(span["name"], span["status_code"], span["attributes"].get("error.type")) for span in traces[FAILED]}
    assert {name for name, state, kind in states if (state, kind) == ("ERROR", "engine_error")} == {SERVED, "forward", CALL}
    assert {state for name, state, _ in states if name not in (SERVED, "forward", CALL)} == {"UNSET"}
    record_property("figure", f"Phoenix {version()}: {sum(map(len, traces.values()))} spans of four requests")


def version() -> str:
    """Of Phoenix, as it is pinned."""
    (pinned,) = re.findall(r"^arize-phoenix==([\d.]+)$", (ROOT / "requirements-phoenix.in").read_text(), re.MULTILINE)
    return str(pinned)
