"""Tokenizers: the served model's own from its files, or a general vocabulary. Nothing is downloaded."""

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
"""Vocabularies that a package brings along."""

GENERAL_MARGIN: Final = 1.5
"""Factor on the count of a general vocabulary: the served model's own may need more tokens for the same text (a smaller vocabulary,
a script that it was not trained on), rarely half as many again. The bytes stay the upper bound."""

SPECIAL: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Largest tokenizer file; those of published models have 2 to 20 MB."""


class VocabularyError(Exception):
    """A tokenizer cannot be loaded; the message says which one, why, and what to do."""


class Vocabulary(Protocol):
    """Counts the tokens of a prompt. May take milliseconds; safe to call from another thread."""

    slow_bytes: int
    """Bytes of a prompt from which on a count takes more than a millisecond."""

    def count(self, ask: Ask, scope: str = "") -> int:
        """Tokens of the prompt, exact or from above. Raises `chat_form.Unreadable`.

        Args:
            scope: the tenant, or its group that shares cached work.
        """
        ...


class GeneralVocabulary:
    """Counts from above with a general vocabulary, over the request as JSON: its names and quotes outweigh the text of a chat template."""

    slow_bytes = 32 * 1024

    def __init__(self, name: str) -> None:
        try:
            package = importlib.import_module("bpe_openai")
        except ImportError:
            raise VocabularyError(f"tokenizer {name} needs a package that is not installed: pip install 'tidegate[tokens]'") from None
        self._encode = package.get_encoding(name).encode_ordinary

    def count(self, ask: Ask, scope: str = "") -> int:
        return min(int(len(self._encode(ask.fields.decode())) * GENERAL_MARGIN) + 1, ask.prompt_bytes)


class ModelVocabulary:
    """The served model's tokenizer and chat template: counts exactly as the engine will count.

    Args:
        path: the model's folder, or its `tokenizer.json`; the template and special tokens are read beside it.
        strftime: formats the current time, for `ChatTemplate`.
    """

    slow_bytes = 4 * 1024

    def __init__(self, path: Path, strftime: Callable[[str], str]) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            package = importlib.import_module("tokenizers")
        except ImportError:
            raise VocabularyError(f"tokenizer {path} needs a package that is not installed: pip install 'tidegate[tokens]'") from None
        # the package's threads would not survive the fork of a worker, and texts come one at a time
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
        reading = Reading()
        self.read(ask, scope, reading)
        return reading.tokens

    def read(self, ask: Ask, scope: str, into: Reading) -> None:
        """Write the token ids of the prompt into `into`, as the engine makes them; of several prompts the ids of the first one and the
        number of tokens of the others.

        Raises:
            Unreadable: the prompt holds media, or its template refuses it; nothing is written then.
        """
        texts, ids = texts_of(ask, self._template)
        # a template writes the special tokens itself; for bare prompts the engine lets the tokenizer add them
        special = not ask.endpoint.has_messages
        for index, text in enumerate(texts):
            for piece in self._pieces.ids(text, scope, special=special):
                into.more(len(piece)) if index else into.add(piece)
        for index, prompt_ids in enumerate(ids):
            into.more(len(prompt_ids)) if index else into.add(prompt_ids)
        into.whole = True


@lru_cache(maxsize=64)
def load_vocabulary(source: str, base_dir: Path, strftime: Callable[[str], str]) -> Vocabulary:
    """The tokenizer that a pool names, loaded once per process: pools may share it, and workers are forked from a process that has it.

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
    if isinstance(source, list):  # several templates by name
        source = next((template.get("template") for template in source if template.get("name") == "default"), None)
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
