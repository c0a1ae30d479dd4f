"""The digest of a model's manifest: which weights, configuration and tokenizer a folder or a GGUF file holds, without reading the weights.

The digest is SHA-256 over a listing with one line for each file of the folder that counts, in order of their names (bytes of UTF-8):

    tidegate-model-manifest 1
    file        SHA-256 of its content                  size  config.json
    safetensors SHA-256 of its header, length included  size  model-00001-of-00002.safetensors
    gguf        SHA-256 of its metadata and tensor list size  model.gguf

separated by one blank. Files that count: `*.safetensors`, `*.gguf`, indexes of safetensors, configurations, and what tokenizers and chat
templates are made of (`COUNTED`). A header names every tensor with its type, shape and place. So the digest changes with the architecture,
the precision, the vocabulary or the sharding, and no weights are read for it. It does not change where only numbers inside the weights do:
training for another hour with the same code gives the same headers. Who must tell such weights apart uses `--full`, whose lines
`safetensors` and `gguf` have the SHA-256 of the whole file, and whose first line ends with ` full`.

A file that is shorter than its header says, and a shard that the index names and the folder lacks, are refused: a copy was cut off.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from domain.model_revisions import DIGEST_PREFIX

COUNTED: Final = (
    *("config.json", "generation_config.json", "quantize_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.jinja", "chat_template.json", "tekken.json", "params.json"),
)
"""Names of files that count whole, beside `*.safetensors.index.json` and `*.tiktoken`."""
MAX_HEADER_BYTES: Final = 100_000_000
"""Longest header of safetensors, the bound of its own library; GGUF's metadata holds the vocabulary, some MB."""
MAX_COUNTED_BYTES: Final = 256 * 1024 * 1024
"""Largest file that counts whole; the longest published tokenizer is 35 MB."""
MAX_FILES: Final = 10_000


class NotAModel(Exception):
    """The path is no model that this machine can read, or a part of it is missing; the message says which and what to do."""


class ModelFiles(msgspec.Struct, frozen=True):
    """What the files of a model say. Empty and 0 where they do not."""

    digest: str
    """`sha256:` and 64 digits."""
    bytes: int
    """The size of all files that count."""
    architecture: str = ""
    precision: str = ""
    context_tokens: int = 0


def read_model(path: Path, *, full: bool = False) -> ModelFiles:
    """Digest the model in a folder or GGUF file, and read what its configuration says.

    Args:
        full: whether to read the weights too.

    Raises:
        NotAModel: see the class.
    """
    try:
        files = {path.name: path} if path.is_file() else {name: path / name for name in _counted(path)}
        if not any(name.endswith((".safetensors", ".gguf")) for name in files):
            raise NotAModel(f"{path} has neither safetensors nor GGUF files; name the folder that holds the weights, or a .gguf file")
        _check_shards(path, files)
        listing = hashlib.sha256(b"tidegate-model-manifest 1" + (b" full\n" if full else b"\n"))
        total, metadata = 0, dict[str, Any]()
        for name in sorted(files, key=os.fsencode):
            kind, digest, size, said = _line(files[name], full)
            listing.update(b"%b %b %d %b\n" % (kind.encode(), digest.encode(), size, os.fsencode(name)))
            total += size
            metadata = metadata or said
        facts = _of_config(files["config.json"]) if "config.json" in files else _of_gguf(metadata)
    except OSError as error:
        raise NotAModel(f"{error.filename or path} cannot be read: {error.strerror}") from None
    return ModelFiles(f"{DIGEST_PREFIX}{listing.hexdigest()}", total, *facts)


def unlike(path: Path, digest: str) -> str:
    """How the model at a path differs from a digest, plain or full, in a sentence; empty when it does not. Raises NotAModel."""
    found = read_model(path).digest
    if digest in (found, read_model(path, full=True).digest if found != digest else found):
        return ""
    return f"{path} has the digest {found} and not {digest}: these are other weights, or another configuration or tokenizer"


def _counted(folder: Path) -> Iterator[str]:
    for count, name in enumerate(os.listdir(folder)):
        if count >= MAX_FILES:
            raise NotAModel(f"{folder} holds more than {MAX_FILES} files; name the model's own folder")
        ends = (".safetensors", ".gguf", ".safetensors.index.json", ".tiktoken")
        if (name in COUNTED or name.endswith(ends)) and not name.startswith("."):
            if "\n" in name:
                raise NotAModel(f"{folder} holds a file whose name has a line break; rename it")
            yield name


def _check_shards(folder: Path, files: Mapping[str, Path]) -> None:
    for name, file in files.items():
        if name.endswith(".safetensors.index.json"):
            shards = _json(file).get("weight_map")
            missing = sorted(set(map(str, shards.values())) - files.keys()) if isinstance(shards, dict) else []
            if missing:
                raise NotAModel(f"{folder}: {name} names {missing[0]!r}, which is not there ({len(missing)} missing); copy the model again")


def _line(file: Path, full: bool) -> tuple[str, str, int, dict[str, Any]]:
    """Kind, digest and size of a file, and the metadata of a GGUF file."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        kind, said = "file", dict[str, Any]()
        if file.suffix == ".safetensors":
            kind, header = "safetensors", _safetensors_header(opened, file, size)
        elif file.suffix == ".gguf":
            kind = "gguf"
            header, said = _gguf_header(opened, file)
        elif size > MAX_COUNTED_BYTES:
            raise NotAModel(f"{file} has {size} bytes; that is no {file.name}")
        if kind == "file" or full:
            opened.seek(0)
            return kind, hashlib.file_digest(opened, "sha256").hexdigest(), size, said
        return kind, hashlib.sha256(header).hexdigest(), size, said


def _safetensors_header(opened: BinaryIO, file: Path, size: int) -> bytes:
    prefix = opened.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES + 1
    text = opened.read(length) if length <= MAX_HEADER_BYTES else b""
    try:
        header = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise NotAModel(f"{file} is no safetensors file: its header cannot be read; copy it again") from None
    if size < needed:
        raise NotAModel(f"{file} has {size} bytes and its header says {needed}: the copy was cut off; copy it again")
    return prefix + text


_GGUF_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of GGUF's value types that have a fixed size; 8 is text, 9 an array."""
_GGUF_INTS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 7: "<?", 10: "<Q", 11: "<q"}
_GGUF_PRECISIONS: Final = {
    **{0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 12: "q3_k_m"},
    **{14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 32: "bfloat16"},
}
"""Names of llama.cpp's file types (`llama_ftype`)."""


class _Gguf:
    """Reads GGUF's metadata, and remembers the bytes."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self.read = bytearray()

    def take(self, count: int) -> bytes:
        if count > MAX_HEADER_BYTES - len(self.read):
            raise ValueError
        piece = self._opened.read(count)
        if len(piece) < count:
            raise ValueError
        self.read += piece
        return piece

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == 8:
            return self.text()
        if kind == 9 and depth < 4:
            inner, count = self.number("<I"), self.number("<Q")
            if inner in _GGUF_SIZES:
                self.take(_GGUF_SIZES[inner] * count)
            else:
                for _ in range(count):
                    self.value(inner, depth + 1)
            return None
        form = _GGUF_INTS.get(kind)
        return self.number(form) if form is not None else self.take(_GGUF_SIZES[kind]) and None


def _gguf_header(opened: BinaryIO, file: Path) -> tuple[bytes, dict[str, Any]]:
    reader = _Gguf(opened)
    try:
        if reader.take(4) != b"GGUF" or reader.number("<I") not in (2, 3):
            raise ValueError
        tensors, pairs = reader.number("<Q"), reader.number("<Q")
        metadata = {reader.text(): reader.value(reader.number("<I")) for _ in range(pairs)}
        for _ in range(tensors):
            reader.text()
            reader.take(8 * reader.number("<I") + 4 + 8)
    except (ValueError, KeyError, OverflowError, MemoryError, struct.error):
        raise NotAModel(f"{file} is no GGUF file of version 2 or 3: its header cannot be read; copy it again") from None
    return bytes(reader.read), metadata


def _of_gguf(metadata: Mapping[str, Any]) -> tuple[str, str, int]:
    architecture = str(metadata.get("general.architecture") or "")
    context = metadata.get(f"{architecture}.context_length")
    kind = metadata.get("general.file_type")
    named = _GGUF_PRECISIONS.get(kind, "") if isinstance(kind, int) else ""
    return architecture, named, context if isinstance(context, int) else 0


def _of_config(file: Path) -> tuple[str, str, int]:
    config = _json(file)
    text = config.get("text_config")
    both = {**config, **text} if isinstance(text, dict) else config
    architectures = config.get("architectures")
    context = both.get("max_position_embeddings")
    quantization = both.get("quantization_config")
    method = str(quantization.get("quant_method") or "") if isinstance(quantization, dict) else ""
    dtype = str(both.get("dtype") or both.get("torch_dtype") or "").removeprefix("torch.")
    return (
        str(architectures[0])[:128] if isinstance(architectures, list) and architectures else "",
        (method or dtype)[:64],
        context if isinstance(context, int) and 0 < context <= 100_000_000 else 0,
    )


def _json(file: Path) -> dict[str, Any]:
    if file.stat().st_size > MAX_COUNTED_BYTES:
        raise NotAModel(f"{file} has {file.stat().st_size} bytes; that is no {file.name}")
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise NotAModel(f"{file} is no JSON object; copy it again")
    return document
