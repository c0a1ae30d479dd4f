"""Engines that are none: each is told apart in words, and healthy traffic beside all of them notices nothing."""

import asyncio
import ssl
import time

import pytest
import trustme

from backends.clients.endpoint import system_trust
from backends.simengine import SimEngine, SimSettings
from routing.fleet import Availability
from tests.gateway_harness import chat, gateway, no_engine
from tests.scale import scaled
from tests.scripted_server import Peer, Script, scripted

pytestmark = pytest.mark.slow

REQUESTS = scaled(150, 1000)
PAGE = b"<!doctype html><title>Sign in</title>"


def http(body: bytes, content_type: bytes = b"application/json", status: bytes = b"200 OK", extra: bytes = b"") -> Script:
    async def play(peer: Peer) -> None:
        while await peer.request():
            head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n" % (status, content_type, extra, len(body))
            await peer.send(head + body)

    return play


async def ssh(peer: Peer) -> None:
    await peer.send(b"SSH-2.0-OpenSSH_9.2\r\n")
    await peer.wait_closed_by_client()


async def database(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"-ERR unknown command 'GET'\r\n")
    await peer.wait_closed_by_client()


async def drip(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while not peer.writer.is_closing():
        await peer.send(b" ")
        await asyncio.sleep(1.0)


async def strict(peer: Peer) -> None:
    """What an HTTP server says to a TLS greeting."""
    await peer.reader.read(1000)
    await peer.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


async def silent(peer: Peer) -> None:
    await peer.wait_closed_by_client()


def tls(*names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(*names).configure_cert(context)
    return context


async def test_each_is_reported_with_what_to_do_and_costs_no_healthy_request(record_property: pytest.FixtureRequest) -> None:
    json_garbage, page = http(b'{"ok":true}'), http(PAGE, b"text/html")
    elsewhere = http(b"", status=b"302 Found", extra=b"location: http://elsewhere.example/login?x=1\r\n")
    async with (
        SimEngine(SimSettings(models=("sim",), speed=2000)) as healthy,
        no_engine() as nobody,
        scripted(json_garbage, ssl=tls("127.0.0.1")) as untrusted,
        scripted(strict) as plain,
        scripted(ssh) as shell,
        scripted(database) as store,
        scripted(page) as web,
        scripted(json_garbage) as garbage,
        scripted(drip) as slow,
        scripted(silent) as mute,
        scripted(elsewhere) as redirecting,
        scripted(http(b"{}", status=b"401 Unauthorized")) as locked,
    ):
        says = {
            "e1": (nobody, "nothing listens there; start the engine, or mend host and port"),
            "e2": (untrusted.url.replace("http", "https"), "speaks TLS, but its certificate is not trusted"),
            "e3": (plain.url.replace("http", "https"), "write http://"),
            "e4": (untrusted.url, "write https:// if it speaks TLS"),
            "e5": (shell.url, "answers like an SSH server"),
            "e6": (store.url, "does not answer with HTTP; look whether the port"),
            "e7": (web.url, "answers HTML, not an engine's JSON; is the URL the engine's own address"),
            "e8": (garbage.url, "does not answer with a model list; look whether the URL is the engine's"),
            "e9": (slow.url, "sends its answer too slowly"),
            "e10": (mute.url, "takes connections but does not answer"),
            "e11": (redirecting.url, "redirects are never followed; name the engine's own address"),
            "e12": (locked.url, "wants a key; write the pool's api_key"),
            "e13": ("http://no-such-engine.invalid:8000", "has a host name that does not resolve"),
        }
        async with gateway(healthy.url, *(url for url, _ in says.values())) as running, running.client() as client:
            found = {b.id: b for b in running.deps.live.fleet.pools["chat"].backends}
            assert found["e0"].state is Availability.UP
            for backend_id, (_, sentence) in says.items():
                assert found[backend_id].state is Availability.DOWN
                assert sentence in found[backend_id].reason, found[backend_id].reason
            took = []
            for _ in range(REQUESTS):
                begun = time.perf_counter()
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
                took.append(time.perf_counter() - begun)
            records = await running.recorded(REQUESTS)
            assert {(r.backend, r.attempts) for r in records} == {("e0", 1)}
            took.sort()
            record_property("figure", f"{REQUESTS} of {REQUESTS} answered beside {len(says)} broken engines")  # type: ignore[operator]


async def test_a_certificate_for_another_name_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    ca, server = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("engine.example").configure_cert(server)
    with ca.cert_pem.tempfile() as trusted:
        monkeypatch.setenv("SSL_CERT_FILE", trusted)
        system_trust.cache_clear()  # read once per process, and this one has read the system's
        async with scripted(http(b"{}"), ssl=server) as engine, gateway(engine.url.replace("http", "https")) as running:
            (found,) = running.deps.live.fleet.pools["chat"].backends
    system_trust.cache_clear()
    assert "certificate is for another name; use the name in the certificate" in found.reason


@pytest.mark.req("R40")
async def test_a_redirect_is_not_followed_by_requests_either() -> None:
    async with scripted(silent) as canary:
        moved = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: %b/v1/chat/completions\r\ncontent-length: 0\r\n\r\n" % canary.url.encode()

        async def play(peer: Peer) -> None:
            while request := await peer.request():
                models = b'{"data":[{"id":"sim"}]}'
                ok = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(models), models)
                await peer.send(ok if request.startswith(b"GET") else moved)

        async with scripted(play) as engine, gateway(engine.url) as running, running.client() as client:
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 502
        assert canary.peers == []
