"""The manifest's digest: what changes it, what does not, and which copies are refused."""

import contextlib
import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.launch.weights_digest import NotAModel, read_model

CONFIG = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 32768, "torch_dtype": "bfloat16"}


def safetensors(tensor: str = "w", shape: tuple[int, ...] = (2, 4), data: bytes | None = None) -> bytes:
    size = 4
    for count in shape:
        size *= count
    header = json.dumps({tensor: {"dtype": "F32", "shape": list(shape), "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + (b"\0" * size if data is None else data)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(**changed: Any) -> bytes:
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += text("general.file_type") + struct.pack("<II", 4, 15)
    pairs += text("llama.context_length") + struct.pack("<II", 4, changed.get("context", 4096))
    pairs += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    pairs += text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + b"\0" * 8
    tensor = text("blk.0") + struct.pack("<I", 2) + struct.pack("<QQIQ", 4, 4, 12, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 5) + pairs + tensor + changed.get("data", b"\1" * 64)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model-00001-of-00002.safetensors").write_bytes(safetensors("a"))
    (folder / "model-00002-of-00002.safetensors").write_bytes(safetensors("b"))
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return folder


def test_the_digest_is_that_of_the_listing_in_the_docstring(model: Path) -> None:
    lines = ["tidegate-model-manifest 1"]
    for name in sorted(os.listdir(model)):
        body = (model / name).read_bytes()
        part = body[: 8 + struct.unpack("<Q", body[:8])[0]] if name.endswith(".safetensors") else body
        kind = "safetensors" if name.endswith(".safetensors") else "file"
        lines.append(f"{kind} {hashlib.sha256(part).hexdigest()} {len(body)} {name}")
    listing = "".join(f"{line}\n" for line in lines).encode()
    files = read_model(model)
    assert files.digest == "sha256:" + hashlib.sha256(listing).hexdigest()
    assert (files.architecture, files.precision, files.context_tokens) == ("LlamaForCausalLM", "bfloat16", 32768)
    assert files.bytes == sum(file.stat().st_size for file in model.iterdir())


def test_every_part_of_the_manifest_changes_the_digest(model: Path) -> None:
    seen = {read_model(model).digest}
    changes = {
        "config.json": json.dumps({**CONFIG, "rope_theta": 1}).encode(),
        "tokenizer.json": b'{"a": 1}',
        "model-00001-of-00002.safetensors": safetensors("a", (4, 2)),
        "chat_template.jinja": b"{{ x }}",
    }
    for name, body in changes.items():
        (model / name).write_bytes(body)
        seen.add(read_model(model).digest)
    (model / "model-00002-of-00002.safetensors").write_bytes(safetensors("b", (8, 8)))
    seen.add(read_model(model).digest)
    assert len(seen) == 6


def test_other_files_times_and_links_do_not_count(model: Path, tmp_path: Path) -> None:
    digest = read_model(model).digest
    (model / "README.md").write_text("read")
    (model / ".cache").mkdir()
    (model / "pytorch_model.bin").write_bytes(b"pickle")
    os.utime(model / "config.json", (1, 1))
    assert read_model(model).digest == digest
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in model.iterdir():
        (linked / file.name).symlink_to(file)
    assert read_model(linked).digest == digest


def test_only_the_full_digest_tells_weights_apart_that_differ_in_numbers_alone(model: Path) -> None:
    before, before_full = read_model(model).digest, read_model(model, full=True).digest
    file = model / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    assert read_model(model).digest == before
    assert read_model(model, full=True).digest not in (before_full, before)


def test_a_gguf_file_says_what_it_is_alone_and_in_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf())
    files = read_model(file)
    assert (files.architecture, files.precision, files.context_tokens) == ("llama", "q4_k_m", 4096)
    assert read_model(tmp_path) == files
    file.write_bytes(gguf(context=8192))
    assert read_model(file).digest != files.digest
    file.write_bytes(gguf(data=b"\2" * 64))
    assert read_model(file).digest == files.digest
    file.write_bytes(gguf(data=b"\1" * 60))
    assert read_model(file).digest != files.digest, "the size counts"


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("model-00001-of-00002.safetensors", safetensors("a")[:-1], "the copy was cut off"),
        ("model-00001-of-00002.safetensors", b"\0" * 4, "no safetensors file"),
        ("model-00001-of-00002.safetensors", struct.pack("<Q", 2**60) + b"{}", "no safetensors file"),
        ("model-00001-of-00002.safetensors", struct.pack("<Q", 2) + b"[]", "no safetensors file"),
        ("config.json", b"[1]", "is no JSON object"),
        ("x.gguf", gguf()[:80], "no GGUF file"),
        ("x.gguf", b"GGML" + b"\0" * 60, "no GGUF file"),
        ("x.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60), "no GGUF file"),
    ],
)
def test_a_broken_file_is_named(model: Path, name: str, body: bytes, words: str) -> None:
    (model / name).write_bytes(body)
    with pytest.raises(NotAModel, match=words) as refused:
        read_model(model)
    assert name in str(refused.value)


def test_a_missing_shard_and_a_folder_without_weights_are_named(model: Path, tmp_path: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(NotAModel, match=r"names 'model-00002-of-00002\.safetensors', which is not there \(1 missing\)"):
        read_model(model)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(NotAModel, match="neither safetensors nor GGUF"):
        read_model(empty)
    with pytest.raises(NotAModel, match="cannot be read: No such file"):
        read_model(tmp_path / "nowhere")


@given(st.binary(max_size=200), st.sampled_from(["w.gguf", "w.safetensors"]), st.integers(0, 60))
@settings(max_examples=60)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, tail: bytes, name: str, kept: int) -> None:
    file = tmp_path_factory.mktemp("any") / name
    whole = gguf() if name.endswith("gguf") else safetensors()
    file.write_bytes(whole[:kept] + tail)
    with contextlib.suppress(NotAModel):
        assert read_model(file.parent).digest.startswith("sha256:")
