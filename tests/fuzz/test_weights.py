"""Files of weights from elsewhere: a digest, or one sentence that names the file; never more memory than the file is long."""

import struct
from pathlib import Path
from typing import Any

import pytest

from backends.launch.weights_digest import NotAModel, read_model
from tests.fuzz.mutation import Target
from tests.unit.backends.launch.test_weights_digest import gguf, safetensors

PIECES = [
    *(b"GGUF", b'"data_offsets"', b'"__metadata__"', b"{}", b"[", b"[" * 1200, b"null", b"\0" * 8, b"\xff" * 8, b"\x09\0\0\0"),
    *(struct.pack("<Q", 2**power) for power in (1, 16, 32, 60, 63)),
    *(struct.pack("<I", kind) for kind in range(14)),
]
FILES = Target("weights", PIECES, [gguf(), safetensors()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def read(folder: Path, data: bytes) -> str:
    outcomes = []
    for name in ("w.gguf", "w.safetensors"):
        file = folder / name
        file.write_bytes(data)
        try:
            files = read_model(file)
        except NotAModel as error:
            assert name in str(error)
            assert "\n" not in str(error)
            continue
        assert files.bytes == len(data)
        assert read_model(file) == files
        outcomes.append(f"{name} {bool(files.architecture)} {bool(files.precision)} {bool(files.context_tokens)}")
    return f"ok {' '.join(outcomes)}" if outcomes else "refused"


@pytest.mark.parametrize("path", FILES.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path, folder: Path) -> None:
    read(folder, path.read_bytes())


def test_any_file_is_digested_or_refused(folder: Path, record_property: Any) -> None:
    record_property("figure", FILES.run(lambda data: read(folder, data), 2_000))
