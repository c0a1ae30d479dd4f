import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayUpstream
from backends.dialects import DIALECTS
from backends.discovery.probe import MAX_LIST_BYTES, poll
from backends.simengine.server import SimEngine
from backends.simengine.settings import SimSettings
from domain.model_revisions import Pinned
from tests.scripted_server import Peer, scripted


def reply(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def models(*names: str) -> bytes:
    return json.dumps({"data": [{"id": name} for name in names]}).encode()


def engine(*replies: bytes) -> Callable[[Peer], Awaitable[None]]:
    async def play(peer: Peer) -> None:
        for one in replies:
            await peer.request()
            await peer.send(one)

    return play


async def polled(url: str, model: str = "m", dialect: str = "vllm", **options: object) -> str:
    way = RelayUpstream(endpoint(url, **options), time.monotonic, asyncio.get_running_loop())  # type: ignore[arg-type]  # options are endpoint's
    try:
        return (await poll(way, DIALECTS[dialect], model)).reason
    finally:
        await way.close()


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_an_engine_that_serves_the_model_is_up(dialect: str) -> None:
    async with SimEngine(SimSettings(models=("m",), dialect=dialect)) as sim:
        assert await polled(sim.url, dialect=dialect) == ""
        assert (await polled(sim.url, "other", dialect=dialect)).startswith("serves m, not other")


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ([reply(503, b"")], "/health answers 503"),
        ([reply(200, b""), reply(404, b"{}")], "/v1/models answers 404"),
        ([reply(200, b""), reply(200, b"<html>")], "/v1/models answers HTML, not an engine's JSON"),
        ([reply(200, b""), reply(200, b'{"data":' + b"[" * 4000)], "/v1/models does not answer with a model list"),
        ([reply(200, b""), reply(200, b'{"data":[{"id":"\xff"}]}')], "/v1/models does not answer with a model list"),
        ([reply(200, b""), reply(200, models())], "serves no model, not m"),
        ([reply(200, b""), reply(200, models("a", "m"))], ""),
        ([reply(200, b""), reply(200, b" " * (MAX_LIST_BYTES + 1))], f"/v1/models: answers more than {MAX_LIST_BYTES} bytes"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "answers like an SSH server"),
    ],
)
async def test_why_an_engine_is_down(replies: list[bytes], reason: str) -> None:
    async with scripted(engine(*replies)) as server:
        found = await polled(server.url)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


async def test_adapters_are_told_apart_from_models() -> None:
    async with SimEngine(SimSettings(models=("m", "alias"), max_loras=2, loras=("bot", "own"))) as sim:
        way = RelayUpstream(endpoint(sim.url), time.monotonic, asyncio.get_running_loop())
        found = await poll(way, DIALECTS["vllm"], "m")
        own = await poll(way, DIALECTS["vllm"], "own")  # a pool whose model is an adapter its engines were started with
        await way.close()
    assert (found.reason, found.names, found.loras) == ("", {"m", "alias"}, {"bot", "own"})
    assert (own.reason, own.names) == ("", {"m", "alias", "own"})


async def test_nobody_listening_is_said_in_an_operators_words() -> None:
    async with scripted(engine()) as server:
        url = server.url
    assert (await polled(url)).startswith("refuses connections: nothing listens there")


async def test_polls_carry_the_engines_key() -> None:
    async with scripted(engine(reply(200, b""), reply(200, models("m")))) as server:
        assert await polled(server.url, authorization="Bearer engine-key") == ""
        assert b"\r\nauthorization: Bearer engine-key\r\n" in server.peers[0].received


DIGEST = "sha256:0123456789ab" + "0" * 52


@pytest.mark.parametrize(
    ("names", "admit", "reason", "unproven"),
    [
        (("m", "m@sha256-0123456789ab"), False, "", ""),
        (("m",), False, "does not prove revision m@v1: none of its names carries a digest", ""),
        (("m", "m@sha256-ffffffffffff"), False, "does not prove revision m@v1: it serves m@sha256-ffffffffffff", ""),
        (("m",), True, "", "does not prove revision m@v1: none of its names carries a digest"),
        (("other", "other@sha256-0123456789ab"), True, "serves other", ""),
    ],
)
async def test_an_engine_of_a_pinned_pool_proves_its_revision_by_a_name(
    names: tuple[str, ...], admit: bool, reason: str, unproven: str
) -> None:
    async with SimEngine(SimSettings(models=names)) as sim:
        way = RelayUpstream(endpoint(sim.url), time.monotonic, asyncio.get_running_loop())
        result = await poll(way, DIALECTS["vllm"], "m", Pinned("m@v1", DIGEST, admit))
        await way.close()
    assert result.reason.startswith(reason)
    assert result.unproven.startswith(unproven)
    assert (bool(result.reason), bool(result.unproven), result.wrong) == (bool(reason), bool(unproven), bool(reason))
