"""Limits of one caller's address at a whole gateway: who is refused, what the refusal says, and who does not notice."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.http.edge.per_address import counted_as
from tests.e2e.test_serve import serving
from tests.gateway_harness import Gateway, chat, gateway
from tests.scale import scaled
from tests.timing import HANG_S, until

SIM = SimSettings(models=("sim",), speed=5000)


def caller(running: Gateway, address: str, key: str | None = None, **headers: str) -> httpx.AsyncClient:
    """A client that connects from this address of the loopback network."""
    return httpx.AsyncClient(
        base_url=running.url,
        headers={"authorization": f"Bearer {key or running.keys['acme']}", **headers},
        transport=httpx.AsyncHTTPTransport(local_address=address),
        timeout=HANG_S,
    )


def limited(**bounds: int) -> dict[str, Any]:
    return {"per_address": bounds}


async def test_requests_of_one_address() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, poll=False, data=limited(requests_per_minute=3)) as running:
        async with caller(running, "127.0.0.2") as flood, caller(running, "127.0.0.3") as other:
            answers = [await flood.post("/v1/chat/completions", json=chat(max_tokens=2)) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
            refused = answers[-1]
            error = refused.json()["error"]
            assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
            assert error["message"].startswith("Too many requests came from your address (127.0.0.2). Try again in ")
            assert refused.headers["x-should-retry"] == "true"
            assert 1 <= int(refused.headers["retry-after"]) <= 20
            assert (await flood.get("/v1/models")).status_code == 429, "whatever is asked for"
            assert (await flood.get("/health")).status_code == 200, "a probe is never refused"
            assert (await other.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 200
        records = await running.recorded(6)
        assert [record.outcome for record in records] == ["ok"] * 3 + ["address_limit"] * 2 + ["ok"]
        assert [(record.client, record.detail, record.tenant) for record in records[3:5]] == [
            ("127.0.0.2", "requests of the address 127.0.0.2", "")
        ] * 2
        assert len(engine.received) == 4


async def test_keys_that_are_not_valid() -> None:
    wrong = "tg_test_0000000000_" + "0" * 49
    async with SimEngine(SIM) as engine, gateway(engine.url, poll=False, data=limited(invalid_keys_per_minute=3)) as running:
        async with (
            caller(running, "127.0.0.2", wrong) as guesser,
            caller(running, "127.0.0.2") as same,
            caller(running, "127.0.0.3") as other,
        ):
            assert [(await guesser.get("/v1/models")).status_code for _ in range(5)] == [401, 401, 401, 429, 429]
            refused = await same.get("/v1/models")
            assert refused.status_code == 429
            assert "with keys that are not valid" in refused.json()["error"]["message"]
            assert [(await other.get("/v1/models")).status_code for _ in range(10)] == [200] * 10
        assert {record.detail for record in running.records if record.outcome == "address_limit"} == {
            "invalid keys of the address 127.0.0.2"
        }


async def test_behind_a_trusted_proxy_the_callers_address_counts() -> None:
    data = limited(requests_per_minute=2, connections=1) | {"trusted_proxies": {"networks": ["127.0.0.1/32"]}}
    async with SimEngine(SIM) as engine, gateway(engine.url, poll=False, data=data) as running:
        async with caller(running, "127.0.0.1") as proxy, caller(running, "127.0.0.1") as second:
            for client in (proxy, second):  # of a proxy any number of connections is taken
                assert (await client.get("/v1/models", headers={"x-forwarded-for": "198.51.100.1"})).status_code == 200
            assert (await proxy.get("/v1/models", headers={"x-forwarded-for": "198.51.100.1"})).status_code == 429
            for number in range(5):
                assert (await proxy.get("/v1/models", headers={"x-forwarded-for": f"198.51.100.1, 203.0.113.{number}"})).status_code == 200
            site = [await proxy.get("/v1/models", headers={"x-forwarded-for": f"2001:db8::{number}"}) for number in range(1, 4)]
            assert [answer.status_code for answer in site] == [200, 200, 429]
            assert counted_as("2001:db8::1") in site[-1].json()["error"]["message"]


@pytest.mark.fault("flood of one address")
async def test_a_flood_of_one_address_does_not_reach_the_others() -> None:
    """Connections and requests far beyond the limits of an address, while another address asks."""
    flooding, allowed = scaled(150, 1_000), 20
    data = limited(connections=allowed, requests_per_minute=50)
    async with SimEngine(SIM) as engine, gateway(engine.url, poll=False, data=data, edge={"max_connections": 100}) as running:
        request = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.keys['bolt']}\r\n\r\n".encode()
        answers: list[bytes] = []

        async def flood() -> None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", running.port, local_addr=("127.0.0.2", 0))
                writer.write(request)
                answers.append((await reader.read(12))[9:])
                held.append(writer)
            except ConnectionError:
                answers.append(b"")

        held: list[asyncio.StreamWriter] = []
        async with caller(running, "127.0.0.3") as other:
            assert (await other.get("/v1/models")).status_code == 200
            async with asyncio.TaskGroup() as group:
                for _ in range(flooding):
                    group.create_task(flood())
                good = [(await other.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code for _ in range(10)]
        assert good == [200] * 10
        assert len(answers) == flooding
        assert 0 < answers.count(b"200") <= allowed
        assert set(answers) <= {b"200", b"429", b""}
        assert len(running.connections.open) <= 2 * allowed + 1
        for writer in held:
            writer.close()
        await until(lambda: len(running.connections.open) <= 1)


SETTINGS = """
data:
  bind: "127.0.0.1:0"
  trusted_proxies: {{networks: [127.0.0.1/32], proxy_protocol: true}}
  per_address: {{connections: 4, requests_per_minute: 3, invalid_keys_per_minute: 1}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
pools:
  - name: chat
    model: sim
    backends:
      - {{id: e0, url: "{url}"{backend}}}
"""


async def test_a_worker_behind_a_proxy_of_connections(tmp_path: Path) -> None:
    async with SimEngine(SIM) as engine, serving(tmp_path, engine.url, settings=SETTINGS) as served:

        async def ask(told: str, key: str, peer: str = "127.0.0.1") -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=(peer, 0))
            header = f"PROXY TCP4 {told} 192.0.2.1 4711 443\r\n" if told else ""
            writer.write(f"{header}GET /v1/models HTTP/1.1\r\nhost: x\r\n{key}connection: close\r\n\r\n".encode())
            with contextlib.suppress(ConnectionError):
                answer = await asyncio.wait_for(reader.read(), HANG_S)
                writer.close()
                return answer[9:12]
            return b""

        key = f"authorization: {served.headers['authorization']}\r\n"
        assert [await ask("203.0.113.7", key) for _ in range(4)] == [b"200"] * 3 + [b"429"]
        assert [await ask("203.0.113.8", given) for given in ("api-key: wrong\r\n", key)] == [b"401", b"429"]
        assert await ask("203.0.113.9", key) == b"200"
        assert await ask("", key) == b""
        assert await ask("203.0.113.9", key, peer="127.0.0.2") == b""
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            text = (await client.get(f"{served.admin}/metrics")).text
        assert 'tidegate_refused_connections_total{reason="untrusted_proxy"} 1.0' in text
        assert 'tidegate_refused_connections_total{reason="proxy_header"} 1.0' in text
        assert (
            sum(float(line.split()[-1]) for line in text.splitlines() if 'outcome="address_limit"' in line and "requests_total" in line)
            == 2
        )
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, HANG_S) == 0
    lines = [line for line in served.log_lines() if "outcome" in line]
    assert [(line["client"], line["outcome"]) for line in lines] == [
        *[("203.0.113.7", "ok")] * 3,
        ("203.0.113.7", "address_limit"),
        ("203.0.113.8", "key_invalid"),
        ("203.0.113.8", "address_limit"),
        ("203.0.113.9", "ok"),
    ]
    assert "connection closed without an answer" in (tmp_path / "err.log").read_text()
