"""Finds a model's tokenizer on this machine where the settings name none: the engines' model folder, or the local cache of the hub.

A tokenizer that is found by the model's name is a guess: the engines may serve other files under that name. So it never replaces the bytes
of a prompt in a hold. It cuts prompts into blocks for pools whose engines publish KV events, which mean nothing without token ids, and the
router finds out by itself where it does not fit (`routing/prefix/trust.py`).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

FILE: Final = "tokenizer.json"
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def found_tokenizer(model: str, revision: str, environ: Mapping[str, str], home: Path) -> Path | None:
    """The folder with the tokenizer of a model; None where this machine has none.

    Args:
        model: the name under which engines serve it: a folder, as vLLM and SGLang name a local model, or a name of the hub.
        revision: the pool's; a commit or tag of the hub, else the main branch is taken.
        environ: for the variables that move the hub's cache.
        home: the user's home folder.
    """
    return next((folder for folder in _folders(model, revision, environ, home) if _readable(folder / FILE)), None)


def _folders(model: str, revision: str, environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    if model.startswith("/"):
        yield Path(model)
    elif _HUB_NAME.fullmatch(model):
        repository = hub_cache(environ, home) / f"models--{model.replace('/', '--')}"
        for commit in (revision, _commit_of(repository, revision), _commit_of(repository, "main")):
            if _COMMIT.fullmatch(commit):
                yield repository / "snapshots" / commit


def hub_cache(environ: Mapping[str, str], home: Path) -> Path:
    """The folder that huggingface_hub downloads to, by its own variables."""
    if cache := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    if root := environ.get("HF_HOME"):
        return Path(root).expanduser() / "hub"
    return Path(environ.get("XDG_CACHE_HOME") or home / ".cache").expanduser() / "huggingface" / "hub"


def _commit_of(repository: Path, name: str) -> str:
    """The commit of a branch or tag; empty where it was not downloaded."""
    if not _HUB_NAME.fullmatch(name):
        return ""
    try:
        return (repository / "refs" / name).read_text("ascii")[:64].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _readable(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False
