"""Keys with networks behind a trusted proxy, at a whole gateway: the caller's address decides, and only a proxy that the settings trust
tells it, be it by `X-Forwarded-For`, `Forwarded` or the PROXY protocol."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from backends.simengine import SimEngine, SimSettings
from domain.identity import TenantId
from gateway.cli import app
from gateway.http.edge.proxy_protocol import SIGNATURE
from tenancy.accounts import DEFAULT_PROJECT
from tenancy.keys import ENTROPY_BYTES, KeyRecord, digest_of, mint
from tests.command_line import Commands
from tests.e2e.test_serve import serving
from tests.gateway_harness import PEPPER, chat, directory, gateway
from tests.timing import HANG_S, hang_s

SIM = SimSettings(models=("sim",), speed=5000)
PROXY, STRANGER = "127.0.0.1", "127.0.0.2"
SETTINGS = """
data:
  bind: "127.0.0.1:0"
  trusted_proxies: {{networks: [127.0.0.1/32], proxy_protocol: true}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
pools:
  - name: chat
    model: sim
    backends:
      - {{id: e0, url: "{url}"{backend}}}
"""
NETWORKS = "203.0.113.0/24,2001:db8::/32"

LISTED: list[tuple[str, str, tuple[str, ...], str]] = [
    # who connects, what it is told by, the header's lines, the address that is refused (empty: the key works)
    (PROXY, "{h}", ("203.0.113.9",), ""),
    (PROXY, "{h}", ("198.51.100.1, 203.0.113.9",), ""),
    (PROXY, "{h}", ("2001:db8::5",), ""),
    (PROXY, "{h}", ("203.0.113.9, 127.0.0.1",), ""),
    (PROXY, "{h}", ("198.51.100.1",), "198.51.100.1"),
    (PROXY, "{h}", ("2001:db9::5",), "2001:db9::5"),
    # the caller wrote an allowed address itself, the proxy added where it really comes from, as a list or as a second line
    (PROXY, "{h}", ("203.0.113.9, 198.51.100.1",), "198.51.100.1"),
    (PROXY, "{h}", ("203.0.113.9", "198.51.100.1"), "198.51.100.1"),
    (PROXY, "{h}", ("203.0.113.9, unknown",), PROXY),
    (PROXY, "{h}", (), PROXY),
    # headers that this gateway was not told to read
    (PROXY, "{other}", ("203.0.113.9",), PROXY),
    (PROXY, "x-real-ip", ("203.0.113.9",), PROXY),
    # a peer that is no proxy of ours tells what it likes
    (STRANGER, "{h}", ("203.0.113.9",), STRANGER),
    (STRANGER, "{h}", ("203.0.113.9, 127.0.0.1",), STRANGER),
    (STRANGER, "{h}", (), STRANGER),
]

TOLD_V1 = b"PROXY TCP4 %b 192.0.2.1 4711 443\r\n"
V2_ALLOWED = SIGNATURE + b"\x21\x11\x00\x0c" + bytes([203, 0, 113, 9, 192, 0, 2, 1, 0, 80, 1, 187])
V2_ELSEWHERE = SIGNATURE + b"\x21\x11\x00\x0c" + bytes([198, 51, 100, 1, 192, 0, 2, 1, 0, 80, 1, 187])
XFF_ALLOWED = b"x-forwarded-for: 203.0.113.9\r\n"


def bound_key(home: Path) -> str:
    """A key that works from `NETWORKS` only."""
    made = Commands().invoke(
        app, ["key", "create", "-c", str(home / "tidegate.yaml"), "--tenant", "acme", "--networks", NETWORKS, "--json"]
    )
    assert made.exit_code == 0, made.output
    return str(json.loads(made.stdout)["key"])


async def asked(port: int, peer: str, key: str, lines: bytes = b"", first: bytes = b"") -> tuple[int, str]:
    """A chat from this address: the status and the error's message; 0 where the connection was closed without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(peer, 0))
    body = json.dumps(chat(max_tokens=2)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    head += b"authorization: Bearer %b\r\n" % key.encode()
    answer = b""
    with contextlib.suppress(ConnectionError):
        writer.write(first + head + lines + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        answer = await asyncio.wait_for(reader.read(), HANG_S)
    writer.close()
    if not answer:
        return 0, ""
    status, error = int(answer[9:12]), json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1]).get("error", {})
    assert error.get("code") == {200: None, 401: "invalid_api_key", 403: "insufficient_permissions"}[status], error
    return status, error.get("message", "")


def element(header: str, entry: str) -> str:
    """An entry of the list as this header writes it."""
    if header != "forwarded":
        return entry
    return ", ".join(f'for="[{each}]";proto=https' if ":" in each else f"for={each};proto=https" for each in entry.split(", "))


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded"])
async def test_the_address_that_a_trusted_proxy_tells_decides(header: str) -> None:
    other = {"x-forwarded-for": "forwarded", "forwarded": "x-forwarded-for"}[header]
    minted = mint("test", b"n" * ENTROPY_BYTES)
    bound = KeyRecord(
        minted.id,
        TenantId("acme"),
        DEFAULT_PROJECT,
        PEPPER.kid,
        (digest_of(PEPPER.secret, minted.secret),),
        networks=tuple(sorted(NETWORKS.split(","))),
    )
    data = {"trusted_proxies": {"networks": ["127.0.0.1/32"], "header": header}}
    async with SimEngine(SIM) as engine, gateway(engine.url, poll=False, data=data) as running:
        running.deps.live.directory = directory([bound])
        for peer, name, entries, refused in LISTED:
            written = name.format(h=header, other=other)
            lines = "".join(f"{written}: {element(written, entry)}\r\n" for entry in entries).encode()
            status, message = await asked(running.port, peer, minted.text, lines)
            assert status == (403 if refused else 200), (peer, lines, message)
            if refused:
                assert message.startswith(f"This key may not be used from {refused}. "), (peer, lines, message)
                assert "203.0.113.0" not in message, "the networks are not told"
        records = await running.recorded(len(LISTED))
        assert engine.count == sum(not refused for _, _, _, refused in LISTED), "no refused request reaches an engine"
    seen = [record.client for record in records if record.outcome == "not_permitted"]
    assert seen == [refused for _, _, _, refused in LISTED if refused]


async def test_the_address_that_the_proxy_protocol_tells_decides(tmp_path: Path) -> None:
    async with SimEngine(SIM) as engine, serving(tmp_path, engine.url, settings=SETTINGS) as served:
        key = await asyncio.to_thread(bound_key, tmp_path)
        allowed, elsewhere = TOLD_V1 % b"203.0.113.9", TOLD_V1 % b"198.51.100.1"
        async with asyncio.timeout(hang_s()):
            while (await asked(served.port, PROXY, key, first=allowed))[0] != 200:
                await asyncio.sleep(0.1)  # the gateway reads new keys every other second
        before = engine.count
        for first in (allowed, V2_ALLOWED):
            assert (await asked(served.port, PROXY, key, first=first))[0] == 200
        for first, lines in ((elsewhere, b""), (V2_ELSEWHERE, b""), (elsewhere, XFF_ALLOWED), (V2_ELSEWHERE, XFF_ALLOWED)):
            status, message = await asked(served.port, PROXY, key, lines, first)
            assert (status, message.split(". ")[0]) == (403, "This key may not be used from 198.51.100.1")
        status, message = await asked(served.port, PROXY, key, first=b"PROXY UNKNOWN\r\n")
        assert (status, message.split(". ")[0]) == (403, f"This key may not be used from {PROXY}"), "the proxy asks for itself"
        for first in (allowed, V2_ALLOWED, b""):
            assert await asked(served.port, STRANGER, key, XFF_ALLOWED, first) == (0, ""), "a stranger's header is not even read"
        assert await asked(served.port, PROXY, key, XFF_ALLOWED) == (0, ""), "a proxy's connection without the header is none"
        assert engine.count - before == 2, "no refused request reaches an engine"
