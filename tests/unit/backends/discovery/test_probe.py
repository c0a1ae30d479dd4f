import asyncio
import time

import pytest

from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayUpstream
from backends.dialects import DIALECTS
from backends.discovery.probe import Prober
from backends.health import ProbeOutcome, ProbeResult
from backends.simengine.faults import FaultRule
from backends.simengine.server import SimEngine
from backends.simengine.settings import SimSettings
from domain.ask import Endpoint
from tests.scripted_server import Peer, scripted


async def probed(
    url: str, *, dialect: str = "vllm", model: str = "m", within_s: float = 5.0, times: int = 1, single_role: bool = False
) -> ProbeResult:
    way = RelayUpstream(endpoint(url), time.monotonic, asyncio.get_running_loop())
    try:
        prober = Prober(way, DIALECTS[dialect], model, within_s, single_role=single_role)
        for _ in range(times):
            found = await prober()
        return found
    finally:
        await way.close()


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_an_engine_that_works_brings_one_token(dialect: str) -> None:
    async with SimEngine(SimSettings(models=("m",), dialect=dialect, speed=1000)) as sim:
        assert await probed(sim.url, dialect=dialect) == ProbeResult(ProbeOutcome.TOKEN)
        assert sim.counters.generated_tokens == 1


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("frozen", ProbeOutcome.FAILED, "/v1/chat/completions: no answer within 0.2 s"),
        ("status_500", ProbeOutcome.FAILED, "/v1/chat/completions answers 500"),
        ("status_503", ProbeOutcome.BUSY, "/v1/chat/completions answers 503"),
        ("close_before_headers", ProbeOutcome.FAILED, "/v1/chat/completions: no_reply"),
        ("wrong_model", ProbeOutcome.FAILED, "/v1/chat/completions answers as"),
        ("plain_not_json", ProbeOutcome.FAILED, "/v1/chat/completions does not answer with an answer"),
        ("plain_error_200", ProbeOutcome.FAILED, "/v1/chat/completions answers with nothing in it"),
    ],
)
async def test_an_engine_that_does_not_is_found_out(fault: str, outcome: ProbeOutcome, reason: str) -> None:
    async with SimEngine(SimSettings(models=("m",), speed=1000)) as sim:
        sim.misbehave([FaultRule(fault)])
        found = await probed(sim.url, within_s=0.2)
        assert found.outcome is outcome
        assert found.reason.startswith(reason)


async def test_the_kind_of_request_is_found_and_remembered() -> None:
    asked: list[bytes] = []

    async def embedder(peer: Peer) -> None:
        while request := await peer.request():
            path = request.split(b" ")[1]
            asked.append(path)
            body = b'{"model":"m","data":[{"embedding":[0.1]}]}' if path == b"/v1/embeddings" else b'{"detail":"Not Found"}'
            status = 200 if path == b"/v1/embeddings" else 404
            await peer.send(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    async with scripted(embedder) as server:
        assert await probed(server.url, times=2) == ProbeResult(ProbeOutcome.TOKEN)
    assert asked == [b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/v1/embeddings"]


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("sglang", b"/v1/rerank", b'[{"score":0.1,"index":0}]'),
        ("llamacpp", b"/v1/rerank", b'{"model":"m","results":[{"index":0,"relevance_score":0.1}]}'),
        ("sglang", b"/v1/classify", b'{"model":"m","data":[{"index":0,"probs":[1.0]}]}'),
        ("vllm", b"/v1/score", b'{"model":"m","data":[{"index":0,"score":0.1}]}'),
        ("vllm", b"/classify", b'{"model":"m","data":[{"index":0,"probs":[1.0]}]}'),
        ("vllm", b"/pooling", b'{"model":"m","data":[{"index":0,"data":[0.1]}]}'),
    ],
)
async def test_engines_that_score_classify_or_pool_are_probed_with_what_they_do(dialect: str, path: bytes, body: bytes) -> None:
    asked: list[bytes] = []

    async def scorer(peer: Peer) -> None:
        while request := await peer.request():
            asked.append(request.split(b" ")[1])
            status, answer = (200, body) if asked[-1] == path else (404, b'{"detail":"Not Found"}')
            await peer.send(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(answer), answer))

    async with scripted(scorer) as server:
        assert await probed(server.url, dialect=dialect, times=2) == ProbeResult(ProbeOutcome.TOKEN)
    assert asked[-2:] == [path, path]


async def test_an_engine_with_several_names_answers_in_its_first_and_is_believed() -> None:
    async with SimEngine(SimSettings(models=("first", "m"), speed=1000)) as sim:
        sim.misbehave([FaultRule("wrong_model")])
        way = RelayUpstream(endpoint(sim.url), time.monotonic, asyncio.get_running_loop())
        try:
            strange = (await Prober(way, DIALECTS["vllm"], "m", 5.0)()).reason
            name = strange.split("'")[1]
            assert (await Prober(way, DIALECTS["vllm"], "m", 5.0, lambda: {name, "m"})()).outcome is ProbeOutcome.TOKEN
        finally:
            await way.close()


async def test_an_engine_that_takes_no_request_at_all_cannot_be_asked() -> None:
    async def refuses(peer: Peer) -> None:
        while await peer.request():
            await peer.send(b"HTTP/1.1 401 X\r\ncontent-length: 2\r\n\r\n{}")

    async with scripted(refuses) as server:
        assert await probed(server.url) == ProbeResult(ProbeOutcome.NO_WAY, f"{Endpoint.POOLING.path} answers 401")


async def test_a_tokenizer_is_no_sign_of_life() -> None:
    asked = []

    async def tokenizes(peer: Peer) -> None:
        while request := await peer.request():
            asked.append(path := request.split()[1].decode())
            status = b"200" if path in (Endpoint.TOKENIZE.path, Endpoint.DETOKENIZE.path) else b"404"
            await peer.send(b'HTTP/1.1 %b X\r\ncontent-length: 14\r\n\r\n{"tokens":[1]}' % status)

    async with scripted(tokenizes) as server:
        assert (await probed(server.url)).outcome is ProbeOutcome.NO_WAY
    assert set(asked) == {endpoint.path for endpoint in Endpoint if endpoint.computes and not (endpoint.sound or endpoint.duplex)}


@pytest.mark.parametrize(("status", "outcome"), [(529, ProbeOutcome.BUSY), (424, ProbeOutcome.FAILED), (422, ProbeOutcome.NO_WAY)])
async def test_each_engines_own_statuses_are_understood(status: int, outcome: ProbeOutcome) -> None:
    async def engine(peer: Peer) -> None:
        while await peer.request():
            await peer.send(b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\n{}" % status)

    async with scripted(engine) as server:
        assert (await probed(server.url)).outcome is outcome


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_prefill_or_decode_engine_is_told_to_answer_by_itself(role: str) -> None:
    async with SimEngine(SimSettings(models=("m",), dialect="sglang", role=role, speed=1000)) as sim:
        assert (await probed(sim.url, dialect="sglang", single_role=True)).outcome is ProbeOutcome.TOKEN
        assert len(sim.received) == 1
    async with SimEngine(SimSettings(models=("m",), speed=1000)) as sim:
        assert (await probed(sim.url, single_role=True)).outcome is ProbeOutcome.TOKEN
