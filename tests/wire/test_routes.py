"""Host, path and encoding tricks: the route that was authorised is the route that was served, or nothing was (R13)."""

import asyncio
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from backends.forms import written_form
from backends.simengine import SimEngine, SimSettings
from domain.ask import Endpoint
from gateway.http.data_port import ALIASES
from gateway.http.edge.client_address import TrustedProxies
from tests.gateway_harness import Gateway, chat, gateway
from tests.timing import HANG_S

ROUTES = [endpoint.value for endpoint in Endpoint if not endpoint.duplex]
HOSTS = ["x", "X:80", "127.0.0.1", "[::1]:8080", "localhost.", "metrics", "admin", "a" * 255]
BAD_HOSTS = ["", "a b", "a/b", "a@b", "a\\b", "a?b", "a#b", "http://a", "a\tb", "\xe9", "a,b", "a" * 256]
OVERRIDES = [
    "x-original-url", "x-rewrite-url", "x-forwarded-host", "x-forwarded-prefix", "x-forwarded-path", "x-http-method-override",
    "x-method-override", "x-original-host", "x-host", "x-forwarded-server", "forwarded", "x-real-url", "x-envoy-original-path",
]  # fmt: skip
ELSEWHERE = ["/metrics", "/v1/models", "/collective_rpc", "http://127.0.0.1:1/", "/v1/../admin", "GET"]


def spelled(route: str) -> Iterator[str]:
    """Other spellings of a route: what some reader along the way could take for it."""
    ends = "// /. /.. /../completions ; ;a=b %20 %00 %2f %2e .json \\ %5c %3f %23 %0a %0d%0a %09 ~ * | ^ ' % %zz %u002f : @a &a=b"
    fronts = "/ // /. /.. /v1 /%2e /x/.. /x/%2e%2e /; \\ /%2f /public/../"
    versions = ["/v1/./", "/v1/x/../", "/v1/;/", "/v1%2f", "/V1/", "/v1 /", "/v2/", "/v1\t/", "/v1/%2e/"]
    yield from (route + end for end in ends.split())
    yield from (front + route for front in fronts.split())
    yield from (route.upper(), route.title(), route.replace("/", "//"), route.replace("/", "\\"), route.replace("/", "%2f"))
    yield from (route.replace("/v1/", version) for version in versions)
    yield from (route.replace("o", odd, 1) if "o" in route else route.replace("e", odd, 1) for odd in ODD)
    yield from (f"http://x{route}", f"https://admin{route}", f"//admin{route}", f"http:{route}", f"*{route}", route[1:])


ODD = ["%6f", "%6F", "%256f", "%u006f", "0", "\u043e", "o%00", "o\u200b", "\xba", "o\u0301"]
SERVED = [(f"{route}?{query}", "x", "") for route in ROUTES for query in ("", "a=b", "/../metrics", "%2e%2e/", "path=/metrics", "\\")]
SERVED += [(route, host, "") for route in ROUTES for host in HOSTS]
SERVED += [(route, "x", f"{name}: {value}\r\n") for route in ROUTES for name in OVERRIDES for value in ELSEWHERE]
KNOWN = {*ROUTES, *ALIASES}
REFUSED = [(path, "x", "") for route in ROUTES for path in spelled(route) if path not in KNOWN]
REFUSED += [(route, host, "") for route in ROUTES for host in BAD_HOSTS]
REFUSED += [(f"/metrics?{route}", "x", f"{name}: {route}\r\n") for route in ROUTES for name in OVERRIDES]


def typed_body_of(target: str) -> tuple[bytes, bytes]:
    """A body that suits whatever route the target begins with, and its type."""
    if any(endpoint.path.rsplit("/", 1)[1] in target.lower() for endpoint in Endpoint if endpoint.sound == "in"):
        return written_form([("model", "sim")], "audio.wav", b"x")
    return body_of(target), b"application/json"


def body_of(target: str) -> bytes:
    """A body in JSON that suits whatever route the target begins with."""
    fitting = [endpoint for endpoint in Endpoint if endpoint.path.rsplit("/", 1)[1] in target.lower()]
    fitting = sorted((endpoint for endpoint in fitting if not endpoint.generates), key=lambda endpoint: -len(endpoint.path))
    endpoint = next(iter(fitting), Endpoint.COMPLETIONS)
    if "chat" in target.lower():
        return msgspec.json.encode(chat(max_tokens=1))
    return msgspec.json.encode({"model": "sim", **msgspec.json.decode(endpoint.probe)})


async def asked(running: Gateway, target: str, host: str, more: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    body, kind = typed_body_of(target)
    head = f"POST {target} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {running.keys['acme']}\r\nconnection: close\r\n{more}"
    writer.write(f"{head}content-type: {kind.decode()}\r\ncontent-length: {len(body)}\r\n\r\n".encode("utf-8", "surrogateescape") + body)
    reply = await asyncio.wait_for(reader.read(), HANG_S)
    writer.close()
    return int(reply.split()[1])


@pytest.mark.req("R13")
async def test_the_route_that_was_authorised_is_the_route_that_was_served(record_property: pytest.FixtureRequest) -> None:
    assert len(SERVED) + len(REFUSED) >= 500
    async with SimEngine(SimSettings(models=("sim",), speed=5000)) as engine, gateway(engine.url, poll=False) as running:
        for target, host, more in SERVED:
            engine.received.clear()
            status = await asked(running, target, host, more)
            route = target.partition("?")[0]
            record = running.records[-1]
            assert (status, record.endpoint, [call.path for call in engine.received]) == (200, route, [route]), (target, host, more)
        for target, host, more in REFUSED:
            engine.received.clear()
            count = len(running.records)
            status = await asked(running, target, host, more)
            assert status in (400, 404), (status, target, host, more)
            assert not engine.received, (target, host, more)
            assert len(running.records) == count + 1
            assert running.records[-1].tenant == "", "nobody was authorised for anything"
    record_property("figure", f"{len(SERVED) + len(REFUSED)} vectors")  # type: ignore[operator]  # pytest's fixture is a function


NO_ROUTES = [
    "/openai/deployments//chat/completions", "/openai/deployments/sim/x/chat/completions", "/openai/deployments/sim/v1/chat/completions",
    "/openai/deployments/sim", "/openai/deployments/sim/chat", "/openai/deployments/sim/chat/completions//", "/openai/chat/completions",
    "/openai/openai/v1/chat/completions", "/openai/v1", "/openai//v1/chat/completions", "/v1/chat/completions//", "/health/x", "//health",
]  # fmt: skip


@pytest.mark.req("R13")
async def test_azures_paths_and_a_slash_at_the_end_are_the_same_routes() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=5000)) as engine, gateway(engine.url, poll=False) as running:
        async with running.client() as client:
            # those of forms are in tests/e2e/test_scoring_routes.py
            for route in [
                endpoint.path
                for endpoint in Endpoint
                if endpoint.path in ROUTES and endpoint.path.startswith("/v1/") and endpoint.sound != "in"
            ]:
                operation = route.removeprefix("/v1/")
                azure = f"/openai/deployments/sim/{operation}?api-version=2024-10-21"
                body = msgspec.json.decode(body_of(route))
                nameless = {name: value for name, value in body.items() if name != "model"}
                forms = [
                    (f"{route}/", body),
                    (f"/openai{route}", body),
                    (azure, body),
                    (azure, nameless),
                    (azure, {**body, "model": "gpt-9"}),
                ]
                for form, sent in forms:
                    engine.received.clear()
                    reply = await client.post(form, json=sent)
                    assert reply.status_code == 200, (form, reply.text)
                    record = running.records[-1]
                    assert (record.endpoint, record.model, [call.path for call in engine.received]) == (route, "sim", [route]), form
            unknown = await client.post("/openai/deployments/gpt-9/chat/completions", json=chat())
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
            for path in ("/v1/models/", "/openai/v1/models", "/openai/v1/models/sim", "/v1/models/sim/"):
                assert (await client.get(path)).status_code == 200, path
            for path in NO_ROUTES:
                assert (await client.post(path, json=chat())).json()["error"]["code"] == "unknown_url", path


async def test_health_needs_no_key_and_tells_nothing() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=5000)) as engine, gateway(engine.url, poll=False) as running:
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=HANG_S) as prober:
            reply = await prober.get("/health")
            assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
            assert (await prober.head("/health/")).status_code == 200
            assert running.records == [], "a probe is no request"
            assert (await prober.post("/health")).status_code == 404
            running.connections.draining = True
            reply = await prober.get("/health")
            assert (reply.status_code, reply.json()) == (503, {"status": "draining"})


async def test_one_of_several_keys_has_to_be_valid_and_none_of_another_tenant() -> None:
    wrong = "gw_live_0000000000_" + "0" * 49
    async with SimEngine(SimSettings(models=("sim",), speed=5000)) as engine, gateway(engine.url, poll=False) as running:
        acme, bolt = running.keys["acme"], running.keys["bolt"]
        cases: list[tuple[dict[str, str], int]] = [
            ({"api-key": acme}, 200),
            ({"x-api-key": acme}, 200),
            ({"authorization": f"Bearer {wrong}", "x-api-key": acme}, 200),
            ({"authorization": "Bearer placeholder", "api-key": acme}, 200),
            ({"authorization": f"Bearer {acme}", "x-api-key": wrong}, 200),
            ({"authorization": f"Bearer {acme}", "x-api-key": acme, "api-key": acme}, 200),
            ({"authorization": f"Bearer {acme}", "x-api-key": bolt}, 401),
            ({"x-api-key": acme, "api-key": bolt}, 401),
            ({"authorization": f"Bearer {wrong}", "api-key": wrong}, 401),
            ({"api-key": ""}, 401),
        ]
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=HANG_S) as client:
            for headers, status in cases:
                assert (await client.get("/v1/models", headers=headers)).status_code == status, headers
                assert running.records[-1].tenant == ("acme" if status == 200 else "")


async def test_the_record_says_who_asked_and_for_what_when_there_is_no_route() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"user-agent": "curl/8", "traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-forwarded-for": "198.51.100.1, 203.0.113.7"}
    async with SimEngine(SimSettings(models=("sim",), speed=5000)) as engine, gateway(engine.url, poll=False) as running:
        async with running.client() as client:
            await client.post("/v1/chat/completions", json=chat(), headers=headers)
            record = running.records[-1]
            assert (record.status, record.method, record.path) == (200, "", "")
            assert (record.client, record.user_agent, record.trace_id) == ("127.0.0.1", "curl/8", trace)
            running.connections.proxies = TrustedProxies.of(["127.0.0.0/8"], "x-forwarded-for")
            await client.put("/v1/nowhere/" + "a" * 300 + "?api-key=secret", headers={**headers, "traceparent": "00-zz-1-01"})
            record = running.records[-1]
            assert (record.status, record.method, record.path) == (404, "PUT", ("/v1/nowhere/" + "a" * 300)[:256])
            assert (record.client, record.trace_id) == ("203.0.113.7", "")
            await client.get("/v1/gw_live_abcdefghij_" + "s" * 49)
            assert "sss" not in running.records[-1].path
            await client.get("/v1/embeddings")
            assert (running.records[-1].status, running.records[-1].method, running.records[-1].path) == (405, "GET", "/v1/embeddings")


async def test_of_two_request_ids_the_callers_comes_back() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=5000)) as engine, gateway(engine.url, poll=False) as running:
        async with running.client() as client:
            reply = await client.get("/v1/models", headers=[("x-request-id", "mine-1"), ("x-request-id", "the.ingress-2")])
            assert (reply.status_code, reply.headers["x-request-id"]) == (200, "mine-1")
