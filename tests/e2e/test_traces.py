"""Traces through a whole gateway: what an OTLP receiver gets, what engines are told, and what is kept."""

import asyncio
import contextlib
import json
import re
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.telemetry.otlp import ADVICE, ITS_OWN_LOG, NO_NAME, NO_TLS, NOT_THERE, NOT_TRUSTED, TOO_SLOW
from gateway.wiring.traces import traces_for
from tests.e2e.test_disaggregation import STRICT, pool
from tests.e2e.test_serve import ask, serving
from tests.gateway_harness import Gateway, chat, gateway, settings_for
from tests.otlp_receiver import OtlpReceiver, Seen, otlp_receiver
from tests.timing import HANG_S, until

SIM = SimSettings(models=("sim",), speed=1000)
CALLERS = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SERVER, CLIENT, INTERNAL = 2, 3, 1
ERROR = 2
HEALTHY_STEPS = ["authenticate", "interpret", "look_ahead", "admit", "look_up", "choose", "forward", "settle"]


def section(receiver: OtlpReceiver, **fields: Any) -> dict[str, Any]:
    return {"exporters": {"main": {"endpoint": receiver.url}}, "ratio": 1.0, **fields}


async def exported(running: Gateway, traces: dict[str, Any], count: int) -> None:
    """Send what the gateway has recorded through exporters of the settings, as a worker does."""
    records = await running.recorded(count)
    made = traces_for(settings_for(["http://127.0.0.1:9"], traces=traces))
    assert made is not None
    for record in records:
        made.observe(record)
    await made.close()


def tree(spans: list[Seen]) -> dict[str, list[str]]:
    """The names of each span's children, by its name, in the order of their begin."""
    names = {span.span_id: span.name for span in spans}
    found: dict[str, list[str]] = {}
    for span in sorted(spans, key=lambda span: (span.begin_ns, span.end_ns)):
        found.setdefault(names.get(span.parent_id, span.parent_id), []).append(span.name)
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_is_a_trace_with_a_span_for_each_step_and_the_engine_continues_it(stream: bool) -> None:
    with otlp_receiver() as receiver:
        traces = section(receiver)
        async with SimEngine(SIM) as engine, gateway(engine.url, traces=traces) as running, running.client() as client:
            headers = {"traceparent": f"00-{CALLERS}-{SPAN}-03", "tracestate": "vendor=value"}
            reply = await client.post("/v1/chat/completions", json=chat(max_tokens=4, stream=stream), headers=headers)
            assert reply.status_code == 200
            await exported(running, traces, 1)
            sent, state = engine.received[-1].headers[b"traceparent"].decode(), engine.received[-1].headers[b"tracestate"]
    spans = receiver.spans
    assert {span.trace_id for span in spans} == {CALLERS}
    assert {span.state for span in spans} == {"vendor=value"}
    assert state == b"vendor=value"
    called = "POST /v1/chat/completions"
    assert tree(spans) == {SPAN: [called], called: HEALTHY_STEPS, "forward": ["chat sim"]}
    by_name = {span.name: span for span in spans}
    root, attempt = by_name[called], by_name["chat sim"]
    assert sent == f"00-{CALLERS}-{attempt.span_id}-03", "the engine's spans are children of the attempt's"
    assert (root.kind, attempt.kind, by_name["admit"].kind) == (SERVER, CLIENT, INTERNAL)
    assert {span.status for span in spans} == {0}
    assert root.begin_ns <= min(span.begin_ns for span in spans)
    assert root.end_ns >= max(span.end_ns for span in spans)
    steps = [by_name[name] for name in HEALTHY_STEPS]
    assert [first.end_ns for first in steps[:-1]] == [then.begin_ns for then in steps[1:]], "one step begins where the other ends"
    host, port = engine.url.removeprefix("http://").split(":")
    usage = {key: value for key, value in attempt.attributes.items() if key.startswith("gen_ai.usage.")}
    assert usage == {"gen_ai.usage.input_tokens": usage["gen_ai.usage.input_tokens"], "gen_ai.usage.output_tokens": 4}
    assert usage["gen_ai.usage.input_tokens"] > 0
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "sim",
        "gen_ai.response.model": "sim",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.request.max_tokens": 4,
        "gen_ai.output.type": "text",
        "server.address": host,
        "server.port": int(port),
        "tidegate.backend": "e0",
    }
    assert expected.items() <= attempt.attributes.items()
    assert ("gen_ai.request.stream" in attempt.attributes) is stream
    assert ("gen_ai.response.time_to_first_chunk" in attempt.attributes) is stream
    assert attempt.events == ["first_token"]
    assert attempt.attributes["gen_ai.response.id"].startswith("chatcmpl-req-")
    assert [key for span in spans if span is not attempt for key in span.attributes if key.startswith("gen_ai")] == []
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["tidegate.tenant"] == "acme"
    assert root.attributes["tidegate.request_id"] == running.records[0].gateway_id
    assert root.resource["service.name"] == "tidegate"
    assert running.records[0].trace_id == CALLERS


async def test_without_a_context_of_the_caller_a_trace_begins_here() -> None:
    with otlp_receiver() as receiver:
        traces = section(receiver)
        async with SimEngine(SIM) as engine, gateway(engine.url, traces=traces) as running, running.client() as client:
            for headers in ({}, {"traceparent": f"00-{'0' * 32}-{SPAN}-01"}, {"traceparent": f"ff-{CALLERS}-{SPAN}-01"}):
                await client.post("/v1/chat/completions", json=chat(max_tokens=1), headers=headers)
            await exported(running, traces, 3)
            sent = [one.headers[b"traceparent"].decode() for one in engine.received]
    roots = [span for span in receiver.spans if span.kind == SERVER]
    assert len({span.trace_id for span in roots}) == 3
    assert [span.parent_id for span in roots] == ["", "", ""]
    assert CALLERS not in {span.trace_id for span in roots}
    assert [text[:3] + text[-2:] for text in sent] == ["00-03"] * 3, "the trace id is random and the trace sampled"
    assert [text[3:35] for text in sent] == [record.trace_id for record in running.records]


async def test_what_failed_or_fell_back_to_another_engine_is_traced_whatever_the_ratio_and_the_rest_is_not() -> None:
    with otlp_receiver() as receiver:
        traces = section(receiver, ratio=0.0)
        async with SimEngine(SIM) as engine, SimEngine(SIM) as other, gateway(engine.url, other.url, traces=traces) as running:
            async with running.client() as client:
                await client.post("/v1/chat/completions", json=chat(max_tokens=1))
                await client.post("/v1/chat/completions", json={"model": "sim"})  # the caller's own mistake: 400
                healthy = (engine.received + other.received)[-1].headers[b"traceparent"]
                for one in (engine, other):
                    one.misbehave([FaultRule("status_500", first=1)])
                reply = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
            await exported(running, traces, 3)
    assert healthy.endswith(b"-02"), "the engine is told that nobody keeps the trace"
    (root,) = [span for span in receiver.spans if span.kind == SERVER]
    assert root.attributes["http.response.status_code"] == reply.status_code
    attempts = [span for span in receiver.spans if span.kind == CLIENT]
    assert attempts[0].status == ERROR
    assert attempts[0].attributes["error.type"] == "engine_error"
    assert len({span.parent_id for span in attempts}) == 1


async def test_the_callers_flag_and_the_tenants_policy_decide() -> None:
    policies = [
        {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}]},
        {"tenant": "bolt", "traces": {"ratio": 1.0}},
        {"tenant": "crane", "traces": {"enabled": False}},
    ]
    context = f"00-{CALLERS}-{SPAN}-"
    with otlp_receiver() as receiver:
        traces = section(receiver, ratio=0.0)
        sent: dict[tuple[str, str], bytes] = {}
        async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies, traces=traces) as running:
            for tenant in ("acme", "bolt", "crane"):
                for flag in ("", "00", "01"):
                    async with running.client(tenant) as client:
                        headers = {"traceparent": context + flag} if flag else {}
                        await client.post("/v1/chat/completions", json=chat(max_tokens=1), headers=headers)
                        sent[tenant, flag] = engine.received[-1].headers.get(b"traceparent", b"")
            await exported(running, traces, 9)
    kept = [(span.attributes["tidegate.tenant"], span.parent_id) for span in receiver.spans if span.kind == SERVER]
    assert sorted(kept) == [("acme", SPAN), ("bolt", ""), ("bolt", SPAN)]
    flags = {key: value[-2:] for key, value in sent.items()}
    assert flags["acme", ""] == b"02"
    assert flags["acme", "00"] == flags["bolt", "00"] == b"00"
    assert flags["acme", "01"] == flags["bolt", "01"] == b"01"
    assert flags["bolt", ""] == b"03"
    assert [sent["crane", flag] for flag in ("", "00", "01")] == [b"", (context + "00").encode(), (context + "01").encode()]


async def test_each_exporter_gets_its_tenants_requests_and_one_of_a_tenant_names_nothing_inside() -> None:
    with otlp_receiver() as ours, otlp_receiver() as theirs:
        exporters = {
            "ours": {"endpoint": ours.url, "except_tenants": ["crane"]},
            "theirs": {"endpoint": theirs.url, "tenants": ["bolt"]},
        }
        traces = {"exporters": exporters, "ratio": 1.0}
        async with SimEngine(SIM) as engine, gateway(engine.url, traces=traces) as running:
            for tenant in ("acme", "bolt", "crane"):
                async with running.client(tenant) as client:
                    await client.post("/v1/chat/completions", json=chat(max_tokens=1))
            await exported(running, traces, 3)
    assert [span.attributes["tidegate.tenant"] for span in ours.spans if span.kind == SERVER] == ["acme", "bolt"]
    assert [span.attributes["tidegate.tenant"] for span in theirs.spans if span.kind == SERVER] == ["bolt"]
    inside = {"server.address", "server.port", "tidegate.backend", "tidegate.pool", "tidegate.policy"}
    named = [key for span in theirs.spans for key, value in span.attributes.items() if key in inside or value in ("e0", "chat-pool")]
    assert named == []
    assert inside <= {key for span in ours.spans for key in span.attributes}


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_a_disaggregated_request_has_a_span_for_its_prefill_and_both_engines_continue_the_trace(dialect: str) -> None:
    with otlp_receiver() as receiver:
        traces = section(receiver)
        async with pool(dialect, STRICT, traces=traces) as pair:
            assert (await pair.ask()).status_code == 200
            await exported(pair.gateway, traces, 1)
            sent = {name: pair[name].received[-1].headers[b"traceparent"].decode()[36:52] for name in STRICT}
    attempts = {span.attributes["tidegate.backend"]: span for span in receiver.spans if span.kind == CLIENT}
    assert {name: span.span_id for name, span in attempts.items()} == sent
    assert (attempts["p"].name, attempts["d"].name) == ("prefill sim", "chat sim")
    assert "gen_ai.usage.output_tokens" not in attempts["p"].attributes, "its answer is no answer of the caller's"
    assert attempts["d"].attributes["gen_ai.usage.output_tokens"] == 6
    assert attempts["p"].begin_ns <= attempts["d"].begin_ns


async def test_a_wait_in_the_queue_is_a_span_of_the_choice() -> None:
    slow = SimSettings(models=("sim",), speed=20, max_num_seqs=1)
    with otlp_receiver() as receiver:
        traces = section(receiver)
        limit = {"max_requests": 1}
        async with (
            SimEngine(slow) as engine,
            gateway(engine.url, traces=traces, pool={"limit": limit}) as running,
            running.client() as client,
        ):
            body = chat(max_tokens=20, ignore_eos=True)
            await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(3)))
            await exported(running, traces, 3)
            waited = {record.trace_id: record.queue_s for record in running.records if record.queued}
    queues = {span.trace_id: span for span in receiver.spans if span.name == "queue"}
    assert queues.keys() == waited.keys()
    assert waited
    for trace_id, span in queues.items():
        assert span.parent_id == receiver.trace(trace_id)["choose"].span_id
        assert (span.end_ns - span.begin_ns) / 1e9 == pytest.approx(waited[trace_id], abs=1e-5)
        assert span.attributes["tidegate.queue.result"] == "served"


@pytest.mark.req("R37")
async def test_no_text_of_a_caller_gets_into_a_span() -> None:
    canary = "canary-7f3a"
    with otlp_receiver() as receiver:
        traces = section(receiver)
        async with SimEngine(SIM) as engine, gateway(engine.url, traces=traces) as running, running.client() as client:
            said = [{"role": "user", "content": canary}]
            await client.post("/v1/chat/completions", json={"model": "sim", "messages": said, "max_tokens": 1})
            await client.post("/v1/chat/completions", json={"model": canary, "messages": said})
            await client.post("/v1/chat/completions", json={"model": "sim", "messages": canary})
            await client.post(
                "/v1/chat/completions", json=chat(max_tokens=1), headers={"authorization": f"Bearer {canary}", "cookie": canary}
            )
            await exported(running, traces, 4)
    assert len([span for span in receiver.spans if span.kind == SERVER]) == 4
    assert canary.encode() not in b"".join(receiver.bodies)


async def test_processes_export_while_they_serve_and_on_their_way_out_and_count_it(tmp_path: Path) -> None:
    with otlp_receiver() as receiver:
        (tmp_path / "auth").write_text("Bearer of-the-collector\n")
        more = (
            "traces:\n  ratio: 1\n  resource: {deployment.environment.name: test}\n  exporters:\n"
            f"    main: {{endpoint: '{receiver.url}', headers: {{authorization: {{file: auth}}}}}}\n"
            f"request_log: {{otlp: {{endpoint: '{receiver.url.replace('traces', 'logs')}', headers: {{authorization: {{file: auth}}}}}}}}\n"
        )
        async with SimEngine(SIM) as engine, serving(tmp_path, engine.url, more=more) as served:
            async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
                await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers=served.headers)
                await until(lambda: len(receiver.spans) > 0)
                line = 'tidegate_traces_total{exporter="main",result="sent"} 1.0'
                async with asyncio.timeout(HANG_S):
                    while line not in (text := (await client.get(f"{served.admin}/metrics")).text):
                        await asyncio.sleep(0.05)
                assert 'tidegate_traces_total{exporter="main",result="dropped"} 0.0' in text
                assert "\ntidegate_request_log_lost_total 0.0\n" in text
                line = 'tidegate_request_log_sink_total{result="sent",sink="otlp"} 1.0'
                async with asyncio.timeout(HANG_S):
                    while line not in (await client.get(f"{served.admin}/metrics")).text:
                        await asyncio.sleep(0.05)
                await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers=served.headers)
            served.process.terminate()
            assert await asyncio.to_thread(served.process.wait, 20) == 0
            logged = {line["trace_id"] for line in served.log_lines() if line.get("outcome") == "ok"}
    roots = [span for span in receiver.spans if span.kind == SERVER]
    assert {span.trace_id for span in roots} == logged
    assert {record.trace_id.hex() for record in receiver.logs} == logged
    assert {record.severity_text for record in receiver.logs} == {"INFO"}
    assert len(logged) == 2
    assert roots[0].resource["deployment.environment.name"] == "test"
    assert {headers["authorization"] for headers in receiver.headers} == {"Bearer of-the-collector"}
    assert "of-the-collector" not in (tmp_path / "err.log").read_text()


async def test_a_receiver_that_is_away_is_named_at_the_start_and_holds_up_nothing(tmp_path: Path) -> None:
    more = "traces:\n  ratio: 1\n  exporters:\n    main: {endpoint: 'http://127.0.0.1:9/v1/traces'}\n"
    async with SimEngine(SIM) as engine, serving(tmp_path, engine.url, more=more) as served:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            reply = await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers=served.headers)
            assert reply.status_code == 200
        await until(lambda: "the OTLP receiver does not take everything" in (tmp_path / "err.log").read_text())
        assert "http://127.0.0.1:9/v1/traces" in (tmp_path / "err.log").read_text()
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, 20) == 0


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A receiver that takes everything and never answers."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass
    writer.close()


async def traces_counted(client: httpx.AsyncClient, admin: str) -> dict[str, dict[str, float]]:
    """What became of traces, by exporter and result."""
    text = (await client.get(f"{admin}/metrics")).text
    found: dict[str, dict[str, float]] = {}
    for name, result, number in re.findall(r'^tidegate_traces_total\{exporter="(\w+)",result="(\w+)"\} (\S+)$', text, re.MULTILINE):
        found.setdefault(name, {})[result] = float(number)
    return found


@pytest.mark.slow
async def test_bad_receivers_cost_no_request_and_each_is_named_once_with_what_to_do(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    asked = 40
    async with contextlib.AsyncExitStack() as stack:
        refusing = {status: stack.enter_context(otlp_receiver()) for status in (401, 404, 500, 503)}
        for status, receiver in refusing.items():
            receiver.statuses = [status] * 1000
        slow, untrusted = [await asyncio.start_server(hangs, "127.0.0.1", 0, ssl=context) for context in (None, tls)]
        for server in (slow, untrusted):
            stack.callback(server.close)
        ports = [server.sockets[0].getsockname()[1] for server in (slow, untrusted)]
        bad = {
            "unnamed": ("http://nowhere.invalid:4318/v1/traces", NO_NAME),
            "refused": ("http://127.0.0.1:9/v1/traces", NOT_THERE),
            "unauthorised": (refusing[401].url, ADVICE[401]),
            "elsewhere": (refusing[404].url, ADVICE[404]),
            "failing": (refusing[500].url, ITS_OWN_LOG),
            "unavailable": (refusing[503].url, ITS_OWN_LOG),
            "slow": (f"http://127.0.0.1:{ports[0]}/v1/traces", TOO_SLOW),
            "untrusted": (f"https://127.0.0.1:{ports[1]}/v1/traces", NOT_TRUSTED),
            "plain": (refusing[404].url.replace("http", "https"), NO_TLS),
        }
        good = stack.enter_context(otlp_receiver())
        exporters = {name: {"endpoint": url, "max_pending": 16, "timeout_s": 0.5} for name, (url, _) in bad.items()}
        exporters["good"] = {"endpoint": good.url}
        # JSON is YAML
        more = f"traces: {json.dumps({'ratio': 1.0, 'exporters': exporters})}\n"
        engine = await stack.enter_async_context(SimEngine(SIM))
        served = await stack.enter_async_context(serving(tmp_path, engine.url, more=more))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=HANG_S))
        for _ in range(asked):
            reply = await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers=served.headers)
            assert reply.status_code == 200
        logged = tmp_path / "err.log"
        await until(lambda: all(f'"{name}"' in logged.read_text() for name in bad), 0.05)
        await until(lambda: len([span for span in good.spans if span.kind == SERVER]) == asked, 0.05)

        refused_for_good = ("unauthorised", "elsewhere", "failing")
        async with asyncio.timeout(HANG_S):
            while True:
                counts = await traces_counted(client, served.admin)
                if all(counts[name]["failed"] + counts[name]["dropped"] == asked for name in refused_for_good):
                    break
                await asyncio.sleep(0.1)
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, 20) == 0
        lines = [json.loads(line) for line in logged.read_text().splitlines() if "does not take everything" in line]
    assert counts["good"] == {"sent": asked, "dropped": 0, "rejected": 0, "failed": 0}
    assert sorted(line["exporter"] for line in lines) == sorted(bad), "each is named once"
    assert {line["exporter"]: (line["endpoint"], line["advice"]) for line in lines} == bad
    assert all(line["reason"] for line in lines)
    later = {name: counts[name] for name in ("unnamed", "refused", "unavailable", "slow", "untrusted", "plain")}
    assert {name: found["sent"] for name, found in later.items()} == dict.fromkeys(later, 0)
    assert all(found["dropped"] >= asked - 2 * 16 for found in later.values()), later
