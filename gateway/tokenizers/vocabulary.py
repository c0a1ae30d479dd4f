"""Tokenizers: the served model's own from its files, or a general vocabulary. Nothing is fetched from anywhere."""

import importlib
import json
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from domain.ask import Ask
from gateway.tokenizers.pieces import Pieces
from gateway.tokenizers.prompt_text import ChatTemplate, texts_of
from gateway.tokenizers.reading import Reading

GENERAL: Final = ("o200k_base", "cl100k_base")
"""Vocabularies that come inside a package."""

GENERAL_MARGIN: Final = 1.5
"""A general vocabulary stands for another one: the served model's may need more tokens for the same text (smaller vocabularies,
scripts they were not trained on), rarely half as many again. The bytes stay the bound above."""

SPECIAL: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Tokenizer files of published models have 2 to 20 MB."""


class VocabularyError(Exception):
    """A tokenizer cannot be had; the message says which, why, and what to do."""


class Vocabulary(Protocol):
    """Counts a prompt. May take milliseconds; safe to call from another thread."""

    slow_bytes: int
    """From this size on it takes more than a millisecond."""

    def count(self, ask: Ask, scope: str = "") -> int:
        """Tokens of the prompt, exact or from above. Raises `chat_form.Unreadable`.

        Args:
            scope: whose request it is, as far as cached work may be shared.
        """
        ...


class GeneralVocabulary:
    """An upper bound from a general vocabulary, over the request as JSON: its names and quotes outweigh what a chat template adds."""

    slow_bytes = 32 * 1024

    def __init__(self, name: str) -> None:
        try:
            package = importlib.import_module("bpe_openai")
        except ImportError:
            raise VocabularyError(f"tokenizer {name} needs a package that is not installed: pip install 'tidegate[tokens]'") from None
        self._encode = package.get_encoding(name).encode_ordinary

    def count(self, ask: Ask, scope: str = "") -> int:
        """See Vocabulary."""
        return min(int(len(self._encode(ask.fields.decode())) * GENERAL_MARGIN) + 1, ask.prompt_bytes)


class ModelVocabulary:
    """The served model's tokenizer and chat template: counts what the engine will count, to the token.

    Args:
        path: the model's folder, or its `tokenizer.json`; the template and special tokens are read beside it.
        strftime: see ChatTemplate.
    """

    slow_bytes = 4 * 1024

    def __init__(self, path: Path, strftime: Callable[[str], str]) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            package = importlib.import_module("tokenizers")
        except ImportError:
            raise VocabularyError(f"tokenizer {path} needs a package that is not installed: pip install 'tidegate[tokens]'") from None
        # its threads would not outlive the fork of a worker, and there is one text at a time
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # noqa: TID251 - written for the library, read by nobody here
        try:
            tokenizer = package.Tokenizer.from_str(_text(file))
        except VocabularyError:
            raise
        except Exception as error:  # noqa: BLE001 - the package raises bare Exceptions
            raise VocabularyError(f"tokenizer {file} cannot be read: {str(error)[:200]}") from None
        self._template = _template(file.parent, strftime)
        self._pieces = Pieces(tokenizer, self._template.sample() if self._template is not None else "")

    def count(self, ask: Ask, scope: str = "") -> int:
        """See Vocabulary."""
        reading = Reading()
        self.read(ask, scope, reading)
        return reading.tokens

    def read(self, ask: Ask, scope: str, into: Reading) -> None:
        """The token ids of the prompt as the engine makes them; of several prompts the first's, and how many the others have.

        Raises:
            Unreadable: see `chat_form`; nothing was read then.
        """
        texts, ids = texts_of(ask, self._template)
        # a template writes the special tokens itself; for bare prompts the engine lets the tokenizer add them
        special = not ask.endpoint.has_messages
        for at, text in enumerate(texts):
            for piece in self._pieces.ids(text, scope, special=special):
                into.more(len(piece)) if at else into.add(piece)
        for at, given in enumerate(ids):
            into.more(len(given)) if at else into.add(given)
        into.whole = True


@lru_cache(maxsize=64)
def load_vocabulary(source: str, base_dir: Path, strftime: Callable[[str], str]) -> Vocabulary:
    """The tokenizer a pool names, once per process: pools may share one, and workers are forked from a process that has it.

    Raises:
        VocabularyError: a file or a package is missing or broken.
    """
    return GeneralVocabulary(source) if source in GENERAL else ModelVocabulary(base_dir / source, strftime)


def _template(folder: Path, strftime: Callable[[str], str]) -> ChatTemplate | None:
    """The chat template beside a tokenizer: newer models keep it in a file of its own."""
    config_file, own_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config: Mapping[str, Any] = {}
    if config_file.is_file():
        try:
            config = json.loads(_text(config_file))
        except ValueError as error:
            raise VocabularyError(f"{config_file} is no JSON: {error}") from None
    source = _text(own_file) if own_file.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several by name
        source = next((one.get("template") for one in source if one.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    tokens = {name: _token(config.get(name)) for name in SPECIAL}
    try:
        return ChatTemplate(source, {name: token for name, token in tokens.items() if token}, strftime)
    except ValueError as error:
        raise VocabularyError(f"{folder}: {error}") from None


def _token(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise VocabularyError(f"{file} has more than {MAX_FILE_BYTES} bytes; is it a tokenizer?")
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise VocabularyError(f"{file} cannot be read ({type(error).__name__})") from None
