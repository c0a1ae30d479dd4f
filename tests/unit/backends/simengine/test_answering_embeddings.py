import base64
import json
import struct

from backends.simengine import shapes
from backends.simengine.answering import EMBEDDING_DIMENSIONS, embeddings

HEAD = shapes.ids("vllm", "r", "embd", 1, "m")


def test_one_vector_per_text_and_the_same_text_has_the_same() -> None:
    body, tokens = embeddings({"input": ["sea", "sky", "sea"]}, HEAD)
    data = json.loads(body)["data"]
    assert [len(row["embedding"]) for row in data] == [EMBEDDING_DIMENSIONS] * 3
    assert data[0]["embedding"] == data[2]["embedding"] != data[1]["embedding"]
    assert json.loads(body)["usage"]["total_tokens"] == tokens


def test_base64_holds_the_same_numbers() -> None:
    plain = json.loads(embeddings({"input": [1, 2, 3], "dimensions": 8}, HEAD)[0])["data"][0]["embedding"]
    packed = json.loads(embeddings({"input": [1, 2, 3], "dimensions": 8, "encoding_format": "base64"}, HEAD)[0])["data"][0]["embedding"]
    assert list(struct.unpack("<8f", base64.b64decode(packed))) == [struct.unpack("<f", struct.pack("<f", x))[0] for x in plain]
