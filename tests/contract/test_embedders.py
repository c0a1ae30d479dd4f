"""The embedders: the packaged model, batches, an engine over a real socket, and what is remembered."""

import asyncio
import base64
import contextlib
import json
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from cache.embedders.batched import BATCH_CHARACTERS, WAITING_CHARACTERS, BatchedEmbedder
from cache.embedders.engine import FAILURES, MAX_UNDER_WAY, REST_S, DimensionsChanged, EngineEmbedder
from cache.embedders.packaged import MAX_CHARACTERS, TOKENIZER, WEIGHTS, PackagedModel, PackageUnusable, _installed_folder
from cache.embedders.remembered import ENTRY_BYTES, RememberedVectors
from cache.semantic.ports import Embedder, EmbedderAway

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
RESET = ("How do I reset my password?", "Password reset steps")

Floats = NDArray[np.float32]


class At:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def packaged() -> PackagedModel:
    return PackagedModel()


# the laws of every embedder


@contextlib.asynccontextmanager
async def engine_server(answer: Callable[[dict[str, Any]], tuple[int, bytes]]) -> AsyncIterator[tuple[str, int]]:
    """A loopback server that answers `/v1/embeddings`, one request a connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(next(line for line in head.splitlines() if line.lower().startswith("content-length")).partition(":")[2])
        status, body = answer(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[:2]


async def post_to(address: tuple[str, int], body: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        reply = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    head, _, content = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), content


def vectors_of(model: PackagedModel, body: dict[str, Any]) -> bytes:
    """What an engine with the packaged model's vectors would reply, longer than a unit and in another order."""
    vectors = 3 * model.embed(body["input"])
    shown = [base64.b64encode(v.astype("<f4").tobytes()).decode() if body["encoding_format"] == "base64" else v.tolist() for v in vectors]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(shown)]
    return json.dumps({"object": "list", "data": data[::-1], "model": body["model"], "usage": {"prompt_tokens": 3}}).encode()


@pytest.fixture(params=["packaged", "in a thread", "engine, floats", "engine, base64", "remembered"])
async def embedder(request: pytest.FixtureRequest, packaged: PackagedModel) -> AsyncIterator[Embedder]:
    async with engine_server(lambda body: (200, vectors_of(packaged, body))) as address:

        async def post(body: bytes) -> tuple[int, bytes]:
            return await post_to(address, body)

        made: dict[str, Callable[[], Embedder]] = {
            "packaged": lambda: BatchedEmbedder(packaged, PATIENCE_S),
            "in a thread": lambda: BatchedEmbedder(packaged, PATIENCE_S, on_loop_characters=-1),
            "engine, floats": lambda: EngineEmbedder("e@1", post, At(), timeout_s=PATIENCE_S, dimensions=256),
            "engine, base64": lambda: EngineEmbedder("e@1", post, At(), timeout_s=PATIENCE_S, dimensions=256, encoding="base64"),
            "remembered": lambda: RememberedVectors(BatchedEmbedder(packaged, PATIENCE_S)),
        }
        embedder = made[request.param]()
        yield embedder
        await embedder.close()


async def test_vectors_are_of_unit_length_and_in_the_order_of_the_texts(embedder: Embedder, packaged: PackagedModel) -> None:
    texts = [*RESET, "The weather in Rome is fine", "日本語", "x" * 3_000, RESET[0]]
    for _ in range(2):
        vectors = await embedder.vectors("acme", texts)
        assert {vector.dtype.name for vector in vectors} == {"float32"}
        assert [vector.shape for vector in vectors] == [(embedder.dimensions,)] * len(texts)
        assert [float(np.linalg.norm(vector)) for vector in vectors] == pytest.approx([1.0] * len(texts), abs=1e-6)
        assert np.abs(np.array(vectors) - packaged.embed(texts)).max() < 1e-6
    assert embedder.version


async def test_a_text_without_tokens_has_zeros_and_any_characters_have_a_vector(embedder: Embedder) -> None:
    (empty,) = await embedder.vectors("acme", [""])
    assert empty.tolist() == [0.0] * embedder.dimensions
    for text in ("\ud800", "\0", "</s><s>", "👩‍👩‍👧", "a\u202eb"):
        (vector,) = await embedder.vectors("acme", [text])
        assert np.isfinite(vector).all()
    assert await embedder.vectors("acme", []) == []


# the packaged model


def test_a_vector_is_the_mean_of_the_token_vectors_of_the_package(packaged: PackagedModel) -> None:
    folder = _installed_folder()
    table = np.frombuffer((folder / WEIGHTS).read_bytes(), "<f2", offset=96).reshape(32_000, 256).astype(np.float64)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    for text in (*RESET, "Überweise 1000 € an Jörg", "line\n\tline", "日本語"):
        mean = table[tokenizer.encode(text, add_special_tokens=False).ids].mean(axis=0)
        assert np.abs(packaged.embed([text])[0] - mean / np.linalg.norm(mean)).max() < 1e-6


def test_what_asks_the_same_is_near_and_what_does_not_is_far(packaged: PackagedModel) -> None:
    one, same, other = packaged.embed([*RESET, "The weather in Rome is fine"])
    assert float(one @ same) > 0.8
    assert float(one @ other) < 0.2


def test_a_long_text_counts_with_its_beginning_and_its_end(packaged: PackagedModel) -> None:
    half = MAX_CHARACTERS // 2
    begin, end = ("how do i reset it " * half)[:half], (" thank you very much" * half)[-half:]
    long, other, short = packaged.embed([begin + "z" * 10_000 + end, begin + "y" * 10 + end, begin + end])
    assert long.tolist() == other.tolist() == short.tolist()


def test_the_version_names_the_files_by_their_bytes(packaged: PackagedModel, tmp_path: Path) -> None:
    folder = _installed_folder()
    for name in (WEIGHTS, TOKENIZER):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert PackagedModel(tmp_path).version == packaged.version
    changed = bytearray((tmp_path / WEIGHTS).read_bytes())
    changed[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(changed)
    assert PackagedModel(tmp_path).version != packaged.version


def _header(size: int, **changed: Any) -> bytes:
    tensor = {"dtype": "F16", "shape": [32_000, 256], "data_offsets": [0, 16_384_000]} | changed
    header = json.dumps({"embedding.weight": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"short",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        _header(16_384_000, dtype="F32"),
        _header(16_000_000),
        _header(16_384_000, shape=[64_000, 256]),
        _header(2 * 10 * 256, shape=[10, 256], data_offsets=[0, 2 * 10 * 256]),
    ],
    ids=["empty", "short", "giant header", "no tensor", "list", "dtype", "cut", "shape", "fewer rows than tokens"],
)
def test_damaged_weights_are_named(tmp_path: Path, weights: bytes) -> None:
    for name, content in ((WEIGHTS, weights), (TOKENIZER, (_installed_folder() / TOKENIZER).read_bytes())):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PackageUnusable, match="wordllama"):
        PackagedModel(tmp_path)


@pytest.mark.parametrize("tokenizer", [b"", b"{}", b'{"model": {}}', b"\xff"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, tokenizer: bytes) -> None:
    for name, content in ((WEIGHTS, _header(16_384_000)), (TOKENIZER, tokenizer)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PackageUnusable, match="wordllama"):
        PackagedModel(tmp_path)


def test_another_release_of_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageUnusable, match="other files"):
        PackagedModel(tmp_path)


@pytest.mark.parametrize("missing", ["numpy", "tokenizers", "wordllama"])
def test_without_the_extra_the_error_names_it_and_nothing_is_downloaded(missing: str) -> None:
    script = f"""
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            if {missing == "wordllama"}:
                return None
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Missing())
if {missing == "wordllama"}:
    import importlib.util
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "wordllama" else real(name, *rest)
import socket
def refuse(*args, **kwargs): raise AssertionError("a connection was tried")
socket.socket.connect = refuse
from cache.embedders.packaged import PackagedModel, PackageUnusable
try:
    PackagedModel()
except PackageUnusable as error:
    print(error)
assert "wordllama" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert missing in done.stdout
    assert "pip install 'tidegate[semantic]'" in done.stdout


def test_the_start_of_the_gateway_imports_nothing_of_the_extra() -> None:
    script = (
        "import sys, gateway.process.launch, gateway.process.worker, gateway.wiring.requests, gateway.cli\n"
        "import cache.semantic.ports, cache.answers\n"
        "print(sorted({'numpy', 'usearch', 'wordllama', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# batches


class Scripted:
    """A model whose vectors tell the text's length, and which waits for a permission in a thread."""

    version = "scripted"
    dimensions = 2

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.calls: list[list[int]] = []
        self.begun = threading.Semaphore(0)

    def embed(self, texts: Sequence[str]) -> Floats:
        self.calls.append([len(text) for text in texts])
        if threading.current_thread() is not threading.main_thread():
            self.begun.release()
            assert self.permits.acquire(timeout=PATIENCE_S)
        if any("bad" in text for text in texts):
            raise RuntimeError("a text is bad")
        return np.array([[len(text), 1] for text in texts], np.float32)


async def begun(model: Scripted) -> None:
    assert await asyncio.to_thread(model.begun.acquire, timeout=PATIENCE_S)


async def test_what_arrives_while_the_thread_works_goes_to_it_together() -> None:
    model = Scripted()
    embedder = BatchedEmbedder(model, PATIENCE_S)
    first = asyncio.ensure_future(embedder.vectors("a", ["x" * 500]))
    await begun(model)
    rest = [asyncio.ensure_future(embedder.vectors("a", ["x" * length, "y" * 600])) for length in (501, 502, 503)]
    await asyncio.sleep(0)
    for _ in range(2):
        model.permits.release()
    assert [int(vector[0]) for vector in await first] == [500]
    assert [[int(vector[0]) for vector in one] for one in await asyncio.gather(*rest)] == [[501, 600], [502, 600], [503, 600]]
    assert model.calls == [[500], [501, 600, 502, 600, 503, 600]]
    await embedder.close()


async def test_short_texts_do_not_go_to_the_thread() -> None:
    model = Scripted()
    embedder = BatchedEmbedder(model)
    assert [int(vector[0]) for vector in await embedder.vectors("a", ["x" * 200, "x" * 200])] == [200, 200]
    assert embedder.batches == 0
    await embedder.close()


async def test_a_batch_is_bounded_and_so_is_what_waits() -> None:
    model = Scripted()
    embedder = BatchedEmbedder(model, PATIENCE_S)
    asked = [asyncio.ensure_future(embedder.vectors("a", ["x" * 1_000]))]
    await begun(model)
    each = BATCH_CHARACTERS // 2
    asked += [asyncio.ensure_future(embedder.vectors("a", ["x" * each])) for _ in range(WAITING_CHARACTERS // each)]
    await asyncio.sleep(0)
    with pytest.raises(EmbedderAway, match="wait for the embedder"):
        await embedder.vectors("a", ["x" * 500])
    model.permits.release(100)
    await asyncio.gather(*asked)
    assert model.calls == [[1_000], *[[each, each]] * (WAITING_CHARACTERS // each // 2)]
    await embedder.close()


async def test_who_has_waited_too_long_is_not_computed_for() -> None:
    model = Scripted()
    embedder = BatchedEmbedder(model, 0.01)
    late = [asyncio.ensure_future(embedder.vectors("a", ["x" * length])) for length in (500, 501, 502)]
    for one in await asyncio.gather(*late, return_exceptions=True):
        assert isinstance(one, EmbedderAway)
        assert "10 ms" in str(one)
    await begun(model)
    model.permits.release()
    await embedder.close()
    assert model.calls == [[500]]


async def test_an_error_of_the_model_is_an_absence_and_the_next_batch_goes_on() -> None:
    model = Scripted()
    model.permits.release(2)
    embedder = BatchedEmbedder(model, PATIENCE_S)
    with pytest.raises(EmbedderAway, match="a text is bad"):
        await embedder.vectors("a", ["bad" * 500])
    assert len(await embedder.vectors("a", ["x" * 500])) == 1
    await embedder.close()


async def test_closing_tells_those_who_wait() -> None:
    model = Scripted()
    embedder = BatchedEmbedder(model, PATIENCE_S)
    first = asyncio.ensure_future(embedder.vectors("a", ["x" * 500]))
    await begun(model)
    second = asyncio.ensure_future(embedder.vectors("a", ["x" * 501]))
    await asyncio.sleep(0)
    model.permits.release()
    await embedder.close()
    assert len(await first) == 1
    for waiting in (second, embedder.vectors("a", ["x" * 502])):
        with pytest.raises(EmbedderAway, match="closed"):
            await waiting


# an engine


def reply(*embeddings: list[float] | str, indexes: Sequence[int] | None = None) -> bytes:
    numbers = range(len(embeddings)) if indexes is None else indexes
    return json.dumps({"data": [{"index": index, "embedding": one} for index, one in zip(numbers, embeddings, strict=True)]}).encode()


class Engine:
    """`post` with a reply that a test sets."""

    def __init__(self, *replies: tuple[int, bytes] | Exception) -> None:
        self.replies = list(replies)
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, body: bytes) -> tuple[int, bytes]:
        self.bodies.append(json.loads(body))
        answer = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_an_engine_is_asked_by_the_models_name_without_its_revision() -> None:
    post = Engine((200, reply([3.0, 4.0])))
    embedder = EngineEmbedder("bge-m3@r2", post, At())
    assert (embedder.version, embedder.dimensions) == ("engine:bge-m3@r2", 0)
    (vector,) = await embedder.vectors("a", ["hallo"])
    assert vector.tolist() == pytest.approx([0.6, 0.8])
    assert post.bodies == [{"model": "bge-m3", "input": ["hallo"], "encoding_format": "float"}]
    assert embedder.dimensions == 2


NAN = base64.b64encode(struct.pack("<2f", float("nan"), 1.0)).decode()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, b"", "status 500"),
        (404, b"", "status 404"),
        (200, b"", "no embeddings"),
        (200, b"[]", "no embeddings"),
        (200, b'{"data": [{"index": 0}]}', "no embeddings"),
        (200, reply([]), "no embeddings"),
        (200, reply("??"), "no embeddings"),
        (200, reply("AAA="), "no embeddings"),
        (200, reply(NAN), "no embeddings"),
        (200, reply(), "came"),
        (200, reply([1.0], [1.0]), "came"),
        (200, reply([1.0], indexes=[1]), "came"),
        (200, b'{"data": [{"index": 0, "embedding": [1e999]}]}', "no embeddings"),
    ],
)
async def test_what_is_no_embedding_is_an_absence(status: int, body: bytes, why: str) -> None:
    with pytest.raises(EmbedderAway, match=why):
        await EngineEmbedder("e", Engine((status, body)), At()).vectors("a", ["x"])


async def test_indexes_that_stand_twice_are_no_embeddings() -> None:
    with pytest.raises(EmbedderAway, match="came"):
        await EngineEmbedder("e", Engine((200, reply([1.0], [1.0], indexes=[0, 0]))), At()).vectors("a", ["x", "y"])


async def test_vectors_of_another_length_are_named() -> None:
    post = Engine((200, reply([1.0, 0.0])), (200, reply([1.0, 0.0, 0.0])), (200, reply([1.0, 0.0], [1.0])))
    embedder = EngineEmbedder("e", post, At())
    await embedder.vectors("a", ["x"])
    with pytest.raises(DimensionsChanged, match=r"2 numbers and now has \[3\]"):
        await embedder.vectors("a", ["x"])
    with pytest.raises(DimensionsChanged):
        await embedder.vectors("a", ["x", "y"])
    with pytest.raises(DimensionsChanged):
        await EngineEmbedder("e", Engine((200, reply([1.0]))), At(), dimensions=256).vectors("a", ["x"])


async def test_an_engine_that_is_late_or_away_is_left_alone_after_some_failures() -> None:
    clock = At()

    async def never(body: bytes) -> tuple[int, bytes]:
        await asyncio.Event().wait()
        raise AssertionError

    embedder = EngineEmbedder("e", never, clock, timeout_s=0.001)
    for _ in range(FAILURES):
        with pytest.raises(EmbedderAway, match="1 ms"):
            await embedder.vectors("a", ["x"])
    embedder._post = post = Engine(OSError("refused"))
    with pytest.raises(EmbedderAway, match="5 times in a row and rest"):
        await embedder.vectors("a", ["x"])
    assert post.bodies == []
    clock.now = REST_S
    with pytest.raises(EmbedderAway, match="refused"):
        await embedder.vectors("a", ["x"])
    with pytest.raises(EmbedderAway, match="rest"):  # one has tried, and it rests again
        await embedder.vectors("a", ["x"])
    post.replies = [(200, reply([1.0]))]
    clock.now += REST_S
    for _ in range(3):
        assert len(await embedder.vectors("a", ["x"])) == 1


async def test_refused_texts_say_nothing_about_the_engine() -> None:
    """One tenant's too long questions must not take the embedder from the others."""
    post = Engine((400, b""))
    embedder = EngineEmbedder("e", post, At())
    for _ in range(2 * FAILURES):
        with pytest.raises(EmbedderAway, match="refused"):
            await embedder.vectors("a", ["x"])
    assert len(post.bodies) == 2 * FAILURES


async def test_few_requests_are_under_way_at_once() -> None:
    go = asyncio.Event()

    async def slow(body: bytes) -> tuple[int, bytes]:
        await go.wait()
        return 200, reply([1.0])

    embedder = EngineEmbedder("e", slow, At(), timeout_s=PATIENCE_S)
    asked = [asyncio.ensure_future(embedder.vectors("a", ["x"])) for _ in range(MAX_UNDER_WAY)]
    await asyncio.sleep(0)
    with pytest.raises(EmbedderAway, match="under way"):
        await embedder.vectors("a", ["x"])
    go.set()
    await asyncio.gather(*asked)
    assert len(await embedder.vectors("a", ["x"])) == 1


# what is remembered


class Counting:
    """Counts what it is asked."""

    version = "counting"
    dimensions = 4

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    async def vectors(self, owner: str, texts: Sequence[str]) -> list[Floats]:
        self.asked.append((owner, list(texts)))
        return [np.array([1, 0, 0, 0], np.float32) for _ in texts]

    async def close(self) -> None: ...


async def test_a_text_is_made_once_for_each_owner_and_version() -> None:
    inner = Counting()
    embedder = RememberedVectors(inner)
    await embedder.vectors("acme", ["a", "b", "a"])
    await embedder.vectors("acme", ["b", "c"])
    await embedder.vectors("bolt", ["a"])
    inner.version = "newer"
    await embedder.vectors("acme", ["a"])
    assert inner.asked == [("acme", ["a", "b"]), ("acme", ["c"]), ("bolt", ["a"]), ("acme", ["a"])]
    assert (embedder.hits, embedder.misses) == (2, 5)


async def test_remembered_vectors_cannot_be_written_to() -> None:
    embedder = RememberedVectors(Counting())
    for _ in range(2):
        (vector,) = await embedder.vectors("acme", ["a"])
        with pytest.raises(ValueError, match="read-only"):
            vector[0] = 7


async def test_memory_is_bounded_and_one_owner_fills_half_of_it_while_others_have_some() -> None:
    each = ENTRY_BYTES + 16
    inner = Counting()
    embedder = RememberedVectors(inner, max_bytes=20 * each)
    await embedder.vectors("quiet", [f"{n}" for n in range(8)])
    for n in range(100):
        await embedder.vectors("loud", [f"{n}"])
        assert embedder.bytes <= 20 * each
    inner.asked.clear()
    await embedder.vectors("quiet", [f"{n}" for n in range(8)])
    await embedder.vectors("loud", ["99", "98"])
    assert inner.asked == []
    for n in range(30):
        await embedder.vectors(f"owner{n}", ["x"])
    assert embedder.bytes <= 20 * each
