"""The data port's manners: which paths exist, who may call them, what reaches an engine and what never does."""

import asyncio

import msgspec
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.timing import HANG_S

SIM = SimSettings(models=("sim",), speed=2000)

DANGEROUS = [
    "/", "/v1", "/v1/", "/metrics", "/healthz", "/health/x", "/livez", "/docs", "/openapi.json", "/load",
    "/version", "/ping", "/invocations", "/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache",
    "/collective_rpc", "/update_weights", "/server_info", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
    "/kv_event_sources", "/inference/v1/generate", "/abort_requests", "/get_server_info", "/flush_cache", "/generate",
    "/start_profile", "/stop_profile", "/v1/loads", "/slots", "/props", "/completion", "/infill", "/apply-template",
    "/v1/chat/completions//", "/v1/chat/completions/render", "/v1/chat/completions%2f", "/v1/chat%2fcompletions",
    "//v1/chat/completions", "/v1//chat/completions", "/v1/./chat/completions", "/v1/../metrics",
    "/v1/chat/completions/../../../metrics", "/V1/chat/completions", "/v1/chat/completions;x=1", "/v1/chat/completions%00",
    "/v1/chat/completions\\..\\..", "/v1\\chat\\completions", "/%761/chat/completions", "/v1/chat/completions%20",
    "/v1/chat/completions.json", "/v1/files", "/v1/batches", "/v1/assistants", "/v1/conversations.json", "/v2/embed",
    "/v1/conversations//", "/v1/conversations/conv_1/outputs", "/v1/conversations/conv_1/items/a/b",
    "/v1/responses//", "/v1/responses/resp_1//", "/v1/responses/resp_1/output", "/v1/responses/resp_1/cancel/x",
    "/v1/responses/../models", "/v1/responses//cancel", "/v1/responses.json",
    "/v1/audio/voices", "/v1/images/generations", "/admin", "/key/generate", "/config/update", "/.env", "/sim/faults",
    "/sim/state",
]  # fmt: skip


@pytest.mark.req("R41")
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_only_the_allowlist_exists_and_nothing_else_reaches_an_engine(method: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, poll=False) as running:
        before = engine.connections_made
        for path in DANGEROUS:
            status, head, body = await raw(running, method, path, b"{}")
            assert status == 404, path  # not even 400: every path here is well formed
            error = msgspec.json.decode(body)["error"]
            assert error["code"] == "unknown_url", path
            assert set(error) == {"message", "type", "param", "code"}
            assert b"x-request-id" in head
        assert len(engine.received) == 0
        assert engine.connections_made == before


async def raw(running: Gateway, method: str, path: str, body: bytes) -> tuple[int, bytes, bytes]:
    """One request with exactly this path; clients would tidy it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.keys['acme']}\r\nconnection: close\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    reply = await asyncio.wait_for(reader.read(), HANG_S)
    writer.close()
    answered, _, said = reply.partition(b"\r\n\r\n")
    return int(answered.split()[1]), answered.lower(), said


async def test_a_page_is_named_by_its_public_address_and_never_by_a_folder_of_this_machine() -> None:
    async with SimEngine(SIM) as engine:
        for sections, named in (
            ({}, "docs/reference/api.md"),
            ({"docs_url": "https://d.example/t"}, "https://d.example/t/reference/api.md"),
        ):
            async with gateway(engine.url, **sections) as running, running.client() as client:
                message = (await client.get("/nowhere")).json()["error"]["message"]
                assert message.endswith(f" Routes are listed in {named}.")


async def test_wrong_methods_name_the_right_ones() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        reply = await client.get("/v1/embeddings")
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
        reply = await client.delete("/v1/chat/completions")
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD, POST")
        reply = await client.delete("/v1/models")
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")
        assert (await client.options("/v1/models")).status_code == 405
        head = await client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        assert (await client.post("/v1/chat/completions?api-version=1", json=chat(max_tokens=2))).status_code == 200
        assert engine.received[-1].path == "/v1/chat/completions"


async def test_cross_origin_calls_only_from_allowed_origins() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, data={"cors_origins": ["https://app.example"]}) as running:
        async with running.client() as client:
            asked = {
                "origin": "https://app.example",
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization",
            }
            preflight = await client.options("/v1/chat/completions", headers=asked)
            assert preflight.status_code == 204
            assert preflight.headers["access-control-allow-origin"] == "https://app.example"
            assert "POST" in preflight.headers["access-control-allow-methods"]
            answered = await client.post("/v1/chat/completions", json=chat(max_tokens=2), headers={"origin": "https://app.example"})
            assert answered.headers["access-control-allow-origin"] == "https://app.example"
            stranger = await client.post("/v1/chat/completions", json=chat(max_tokens=2), headers={"origin": "https://evil.example"})
            assert "access-control-allow-origin" not in stranger.headers
            assert (await client.options("/v1/chat/completions", headers={"origin": "https://evil.example"})).status_code == 405
            for refused in (
                await client.post("/v1/chat/completions", json={}, headers={"origin": "https://app.example"}),
                await client.get("/v1/nothing", headers={"origin": "https://app.example"}),
                await client.get("/v1/models", headers={"origin": "https://app.example", "authorization": "Bearer wrong"}),
            ):
                assert refused.status_code in (400, 401, 404)
                assert refused.headers["access-control-allow-origin"] == "https://app.example", "or the page could not read why"
                assert int(refused.headers["openai-processing-ms"]) >= 0


async def test_a_model_name_with_a_slash_can_be_asked_for() -> None:
    policies = [{"tenant": "*", "models": [{"name": "meta-llama/Llama-3", "pool": "chat"}]}]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running, running.client() as client:
        for path in ("meta-llama%2FLlama-3", "meta-llama/Llama-3", "meta-llama%2fLlama-3"):
            assert (await client.get(f"/v1/models/{path}")).json()["id"] == "meta-llama/Llama-3"
        assert (await client.get("/v1/models/meta-llama%252FLlama-3")).status_code == 404


async def test_a_base_url_without_its_version_is_told_so() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        refused = await client.get("/models")
        assert refused.status_code == 404
        assert "base_url to end in /v1" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Basic Z3c6"},
        {"authorization": "Bearer '; DROP TABLE api_key; --"},
        {"authorization": "Bearer " + "a" * 8000},
        {"x-api-key": "gw_test_0000000000_" + "0" * 49},
    ],
    ids=["none", "empty", "no token", "basic", "hostile", "long", "unknown"],
)
@pytest.mark.req("R12")
async def test_without_a_valid_key_nothing_is_served(headers: dict[str, str]) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        del client.headers["authorization"]
        for call in (client.post("/v1/chat/completions", json=chat(), headers=headers), client.get("/v1/models", headers=headers)):
            reply = await call
            assert reply.status_code == 401
            assert reply.headers["x-should-retry"] == "false"
        assert len(engine.received) == 0


@pytest.mark.req("R15")
async def test_an_unknown_and_a_forbidden_model_are_the_same_404() -> None:
    policies = [
        {"tenant": "acme", "models": [{"name": "sim", "pool": "chat"}, {"name": "secret", "pool": "chat"}]},
        {"tenant": "bolt", "models": [{"name": "sim", "pool": "chat"}]},
    ]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running, running.client("bolt") as client:
        forbidden = await client.post("/v1/chat/completions", json=chat() | {"model": "secret"})
        unknown = await client.post("/v1/chat/completions", json=chat() | {"model": "hidden"})
        assert forbidden.status_code == unknown.status_code == 404
        assert forbidden.text.replace("secret", "hidden") == unknown.text
        assert {k for k in forbidden.headers} == {k for k in unknown.headers}
        assert [m["id"] for m in (await client.get("/v1/models")).json()["data"]] == ["sim"]
        assert (await client.get("/v1/models/secret")).status_code == 404
        assert len(engine.received) == 0


async def test_a_tenant_without_a_policy_has_no_models() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[{"tenant": "acme"}]) as running, running.client("bolt") as client:
        assert (await client.get("/v1/models")).json()["data"] == []
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 404


@pytest.mark.fault("header injection")
@pytest.mark.req("R5", "ROUTERS-33")
async def test_control_fields_and_headers_of_callers_never_reach_an_engine() -> None:
    controls = {
        "cache_salt": "mine",
        "priority": -9,
        "kv_transfer_params": {"x": 1},
        "bootstrap_host": "h",
        "bootstrap_anything": 1,
        "rid": "r",
        "return_hidden_states": False,
    }
    forged = {
        "x-vllm-priority": "-9", "x-override-rid": "r", "x-data-parallel-rank": "3", "x-session-id": "s", "x-stainless-lang": "python",
        "x-forwarded-for": "1.2.3.4", "x-prefiller-host-port": "h:1", "cookie": "a=b", "openai-organization": "o", "under_score": "x",
        "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "x-request-id": "caller-chose-this",
    }  # fmt: skip
    async with SimEngine(SIM) as engine, gateway(engine.url) as running:
        salts = []
        for tenant in ("acme", "bolt", "acme"):
            async with running.client(tenant) as client:
                reply = await client.post("/v1/chat/completions", json=chat(max_tokens=2, unknown_field=[1], **controls), headers=forged)
                assert reply.status_code == 200
                assert reply.headers["x-request-id"] == "caller-chose-this"
            received = engine.received[-1]
            assert received.headers[b"x-request-id"].startswith(b"req-"), "engines abort by id: no caller may choose one"
            body = msgspec.json.decode(received.body)
            salts.append(body.pop("cache_salt"))
            assert body == chat(max_tokens=2, unknown_field=[1])
            assert set(received.headers) == {
                b"host", b"user-agent", b"accept", b"content-type", b"content-length", b"x-request-id", b"traceparent",
            }  # fmt: skip
        assert salts[0] == salts[2] != salts[1]
        assert "mine" not in salts


@pytest.mark.req("R5")
async def test_one_tenant_reuses_its_prefix_and_another_does_not() -> None:
    messages = [{"role": "user", "content": "the same long question " * 30}]
    async with SimEngine(SIM) as engine, gateway(engine.url) as running:
        cached = []
        for tenant in ("acme", "acme", "bolt"):
            async with running.client(tenant) as client:
                reply = await client.post("/v1/chat/completions", json={"model": "sim", "messages": messages, "max_tokens": 2})
                cached.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
                assert reply.headers["x-tidegate-prefix-hit-tokens"] == str(cached[-1])
        assert cached[0] == cached[2] == 0
        assert cached[1] >= 16


async def test_our_headers_are_off_for_untrusted_callers() -> None:
    policies = [{"tenant": "*", "models": [{"name": "sim", "pool": "chat"}]}]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=chat(max_tokens=2))
        assert [name for name in reply.headers if name.startswith("x-tidegate-")] == ["x-tidegate-request-id"]


async def test_the_public_name_stands_in_replies_where_engines_use_another() -> None:
    policies = [{"tenant": "*", "models": [{"name": "sea", "pool": "chat"}]}]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=chat(max_tokens=2) | {"model": "sea"})
        assert reply.json()["model"] == "sea"
        assert msgspec.json.decode(engine.received[-1].body)["model"] == "sim"
        seen = await stream(client, model="sea", max_tokens=3)
        assert {event["model"] for event in seen.events} == {"sea"}
        assert seen.done


@pytest.mark.fault("expensive parameters")
@pytest.mark.req("R57", "R29")
async def test_refused_documents_never_reach_an_engine() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        for body in (
            b"",
            b"{",
            b"[]",
            b'{"model":"sim","model":"x","messages":[]}',
            b'{"model":"sim","messages":[],"n":NaN}',
            b"[" * 100_000,
        ):
            reply = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
            assert reply.status_code == 400
            assert reply.json()["error"]["type"] == "invalid_request_error"
        for fields in (
            {"n": 17},
            {"chat_template": "{{ x }}"},
            {"top_logprobs": 21},
            {"stop": ["x"] * 17},
            {"stream_options": []},
            {"lora_path": "/x"},
            {"vllm_xargs": {"a": 1}},
            {"mm_processor_kwargs": {"a": 1}},
            {"chat_template_kwargs": {f"v{i}": 1 for i in range(17)}},
            {"messages": []},
        ):
            reply = await client.post("/v1/chat/completions", json=chat() | fields)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(fields))), fields
        reply = await client.post("/v1/chat/completions", content=b"x", headers={"content-type": "text/plain"})
        assert reply.status_code == 415
        assert len(engine.received) == 0
        assert running.open_holds == 0


async def test_a_field_the_engine_would_misread_never_reaches_it() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=2000)) as engine:
        async with gateway(engine.url, pool={"dialect": "tgi"}) as running, running.client() as client:
            reply = await client.post("/v1/chat/completions", json=chat(presence_penalty=0.5))
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", "presence_penalty")
            assert len(engine.received) == 0
            reply = await client.post("/v1/chat/completions", json=chat(presence_penalty=0, n=1, stop="x", user="u"))
            assert reply.status_code == 200
            assert b'"stop":["x"]' in engine.received[0].body
            assert b"penalty" not in engine.received[0].body
            assert running.open_holds == 0


async def test_another_engines_spelling_reaches_the_engine_in_its_own() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=2000)) as engine:
        async with gateway(engine.url, pool={"dialect": "vllm"}) as running, running.client() as client:
            fields = {"guided_choice": ["yes", "no"], "enable_thinking": False, "chat_template_kwargs": {"style": "brief"}}
            reply = await client.post("/v1/chat/completions", json=chat(max_tokens=2, **fields))
            assert reply.status_code == 200
            body = msgspec.json.decode(engine.received[-1].body)
            assert body.keys().isdisjoint({"guided_choice", "enable_thinking"})
            assert body["structured_outputs"] == {"choice": ["yes", "no"]}
            assert body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False, "style": "brief"}


async def test_a_switch_reaches_a_model_that_knows_efforts_alone() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=2000)) as engine:
        efforts = {"thinking_as_effort": {"enabled": "medium", "disabled": "low"}}
        async with gateway(engine.url, pool={"dialect": "vllm", **efforts}) as running, running.client() as client:
            for fields in ({"enable_thinking": False}, {"chat_template_kwargs": {"thinking": False}}, {"reasoning_effort": "none"}):
                reply = await client.post("/v1/chat/completions", json=chat(max_tokens=2, **fields))
                assert reply.status_code == 200
                body = msgspec.json.decode(engine.received[-1].body)
                assert body["reasoning_effort"] == "low"
                assert body.keys().isdisjoint({"enable_thinking", "chat_template_kwargs"})


@pytest.mark.req("GATEWAYS-26")
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_engine_refusals_are_said_again_in_our_words(dialect: str) -> None:
    small = SimSettings(models=("sim",), dialect=dialect, speed=2000, max_model_len=64)
    async with SimEngine(small) as engine, gateway(engine.url, pool={"dialect": dialect}) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=chat(messages=[{"role": "user", "content": "word " * 200}]))
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
        assert "64" in error["message"]
        for name, status, code in (
            ("status_401", 502, "upstream_error"),
            ("status_429", 503, "overloaded"),
            ("status_500", 502, "upstream_error"),
        ):
            engine.inject([FaultRule(name, retry_after=7)])
            reply = await client.post("/v1/chat/completions", json=chat())
            assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
            assert "EngineCore" not in reply.text
            assert "Unauthorized" not in reply.text
