"""Endpoints that generate nothing, on real engines behind a real gateway: embeddings, scores, classes and the order of documents.

vLLM serves a tiny random Llama twice: as an embedder, whose scores are the similarity of two vectors, and as a judge of one class, whose
scores are what its head says of a pair. llama.cpp serves SmolLM2 as an embedder. What the engine says of the same request without the
gateway is what has to come; the texts mean nothing to random weights, so no order of documents is expected of them.
"""

import base64
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engines.asking import post, refused
from tests.engines.processes import (
    ROOT,
    Process,
    Tidegate,
    engine_home,
    engine_python,
    free_port,
    serve_tidegate,
    start,
    start_vllm,
    stopping,
    tiny_model,
)
from tests.engines.test_llamacpp import weights

pytestmark = pytest.mark.real_engine

SERVED = "tiny-served"
HIDDEN = 128
QUERY = "When does the gate open?"
DOCUMENTS = ["The gate opens at nine.", "A ship waits in the harbour.", "Nine masters note each word of the day."]


@dataclass
class Scorers:
    """Real engines by the name of their pool."""

    engines: dict[str, Process]
    gateway: Tidegate

    async def both(self, pool: str, path: str, engine_path: str = "", **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What comes through the gateway, and what the engine says of the same."""
        direct = self.engines[pool].post(engine_path or path, {"model": SERVED, **fields})
        assert direct.status_code == 200, direct.text
        async with self.gateway.client() as client:
            reply = await client.post(path, json={"model": f"{pool}-model", **fields})
        assert reply.status_code == 200, (reply.text, self.gateway.tail())
        through = reply.json()
        assert through["model"] == f"{pool}-model"
        assert through["usage"]["prompt_tokens"] == direct.json()["usage"]["prompt_tokens"] > 0
        return through, direct.json()


@pytest.fixture(scope="module")
def scorers() -> Iterator[Scorers]:
    python = engine_python(".venv-vllm", "test-engines")
    with engine_home("scorers") as home:
        model = tiny_model(python, home)
        for name in ("embed", "judge"):
            (home / name).mkdir()
        port = free_port()
        llama = [sys.executable, "-m", "tests.engines.llama_embedder", weights(), "--port", str(port), "--alias", SERVED]
        engines = {
            "embed": start_vllm(python, model, home / "embed", "embed", "--runner", "pooling", "--convert", "embed"),
            "judge": start_vllm(python, model / "judge", home / "judge", "judge", "--runner", "pooling"),
            "llama": start("llama", llama, home, url=f"http://127.0.0.1:{port}", PYTHONPATH=str(ROOT)),
        }
        with stopping(*engines.values()):
            for engine in engines.values():
                engine.wait_ready()
            pools = [
                {"name": name, "model": SERVED, "backends": [{"id": name, "url": engine.url}]}
                | ({"dialect": "llamacpp"} if name == "llama" else {})
                for name, engine in engines.items()
            ]
            gateway = serve_tidegate(home / "gateway", pools)
            with stopping(gateway):
                yield Scorers(engines, gateway)


@pytest.mark.parametrize("pool", ["embed", "llama"])
async def test_embeddings_are_the_engines_own_as_numbers_and_as_base64(scorers: Scorers, pool: str) -> None:
    through, direct = await scorers.both(pool, "/v1/embeddings", input=DOCUMENTS)
    vectors = [item["embedding"] for item in sorted(through["data"], key=lambda item: item["index"])]
    assert len(vectors) == len(DOCUMENTS)
    for vector, item in zip(vectors, direct["data"], strict=True):
        assert vector == pytest.approx(item["embedding"], abs=1e-3)
    written, _ = await scorers.both(pool, "/v1/embeddings", input=DOCUMENTS, encoding_format="base64")
    for vector, item in zip(vectors, written["data"], strict=True):
        read = base64.b64decode(item["embedding"])
        assert struct.unpack(f"<{len(vector)}f", read) == pytest.approx(vector, abs=1e-3)
    if pool == "embed":
        assert {len(vector) for vector in vectors} == {HIDDEN}


async def test_embeddings_of_messages(scorers: Scorers) -> None:
    messages = [{"role": "user", "content": QUERY}]
    through, direct = await scorers.both("embed", "/v1/embeddings", messages=messages)
    assert through["data"][0]["embedding"] == pytest.approx(direct["data"][0]["embedding"], abs=1e-3)


@pytest.mark.parametrize("pool", ["embed", "judge"])
async def test_scores_of_pairs(scorers: Scorers, pool: str) -> None:
    through, direct = await scorers.both(pool, "/v1/score", text_1=QUERY, text_2=DOCUMENTS)
    scores = [item["score"] for item in through["data"]]
    assert scores == pytest.approx([item["score"] for item in direct["data"]], abs=1e-3)
    assert len(set(scores)) == len(DOCUMENTS), "or the test could not tell them apart"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("pool", ["embed", "judge"])
async def test_documents_come_in_the_order_of_their_scores(scorers: Scorers, pool: str, path: str) -> None:
    through, direct = await scorers.both(pool, path, "/v1/rerank", query=QUERY, documents=DOCUMENTS, top_n=2)
    found = [(item["index"], item["relevance_score"]) for item in through["results"]]
    assert [index for index, _ in found] == [item["index"] for item in direct["results"]]
    assert [score for _, score in found] == pytest.approx([item["relevance_score"] for item in direct["results"]], abs=1e-3)
    assert len(found) == 2
    assert found[0][1] > found[1][1]


async def test_classes_and_pooled_numbers(scorers: Scorers) -> None:
    through, direct = await scorers.both("judge", "/classify", input=DOCUMENTS)
    assert [item["probs"] for item in through["data"]] == [pytest.approx(item["probs"], abs=1e-3) for item in direct["data"]]
    pooled, own = await scorers.both("embed", "/pooling", input=QUERY)
    assert pooled["data"][0]["data"] == pytest.approx(own["data"][0]["data"], abs=1e-3)


async def test_an_engine_that_only_scores_does_not_chat(scorers: Scorers) -> None:
    async with scorers.gateway.client() as client:
        reply = await post(client, "judge-model")
        cut = await client.post("/v1/embeddings", json={"model": "embed-model", "input": QUERY, "dimensions": 7})
    assert (reply.status_code, refused(reply, SERVED)["code"]) == (400, "unsupported_parameter")
    assert cut.status_code == 400, "this model's vectors have one length"
    assert refused(cut, SERVED)["type"] == "invalid_request_error"


async def test_llamacpp_counts_and_writes_tokens(scorers: Scorers) -> None:
    async with scorers.gateway.client() as client:
        counted = await client.post("/tokenize", json={"model": "llama-model", "content": QUERY})
        assert counted.status_code == 200, counted.text
        tokens = counted.json()["tokens"]
        assert tokens == scorers.engines["llama"].post("/tokenize", {"content": QUERY}).json()["tokens"]
        text = await client.post("/detokenize", json={"model": "llama-model", "tokens": tokens})
    assert (text.status_code, text.json()["content"].strip()) == (200, QUERY)
