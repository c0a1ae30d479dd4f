"""Tokenizers: the served model's own from its files (`ModelVocabulary`), or a general one (`GeneralVocabulary`). Nothing is downloaded.

`Pieces` gives the token ids of a text piece by piece, so that a conversation that has grown tokenises only its new end. `TokenReading` is
the token ids of one prompt while a thread makes them beside the event loop; the request takes the ids that are made in time.

A text may be cut behind a special token without changing an id: tokenizers find special tokens first and tokenise the text between two
of them apart from everything else. A special token is a safe cut only where the tokenizer's own list proves it: the token is found in
the text as it stands, takes no blanks beside it, and no other token's text overlaps its beginning or goes on behind its end. Every
piece but the first is tokenised behind that token, so that a tokenizer with a rule of its own for the beginning of a text (a blank put
in front) does not apply it to the piece.
"""

import hashlib
import importlib
import json
import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from backends.dialects.thinking import Efforts
from domain.ask import Ask
from gateway.prompt.chat_template import ChatTemplate, texts_of
from gateway.prompt.openai_encoders import FILES, encoder

MAX_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of remembered pieces, per tokenizer and process: 8 million tokens, some 60 conversations as long as a context of 128k."""

_ENTRY_BYTES: Final = 320
"""Bytes of a remembered piece beside its ids: its key, the map's entry, the array's head."""

Ids: TypeAlias = "array[int]"
"""Token ids in 32 bits each."""


class PieceCache:
    """Remembers the token ids of pieces by their text, and forgets the piece unused for longest first. Safe to use from several threads.

    The key is a digest of the text and of a scope, so that no tenant learns from the time of a request what another tenant has sent.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._pieces: OrderedDict[bytes, Ids] = OrderedDict()
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: bytes) -> "Ids | None":
        """The ids of a piece, or None."""
        with self._lock:
            ids = self._pieces.get(key)
            if ids is None:
                self.misses += 1
            else:
                self.hits += 1
                self._pieces.move_to_end(key)
            return ids

    def put(self, key: bytes, ids: Ids) -> None:
        """Remember a piece, unless it alone is over the bound."""
        size = _size(ids)
        if size > self._max_bytes:
            return
        with self._lock:
            if key in self._pieces:
                return
            self._pieces[key] = ids
            self.bytes += size
            while self.bytes > self._max_bytes:
                self.bytes -= _size(self._pieces.popitem(last=False)[1])


def _forget_words(tokenizer: Any) -> None:
    """Switch off the library's memory of the words that it has met, which is one for all tenants: a tenant's prompt would be the faster for
    words that another one has sent, and to a tokenizer that does not split at blanks, as Llama 2's, a whole prompt is a word.

    Byte-level tokenizers take up to a quarter longer for new text without it. BPE and Unigram have such a memory, other models none.
    """
    model = tokenizer.model
    if hasattr(model, "_resize_cache"):
        model._clear_cache()  # to resize it to nothing keeps what is there
        model._resize_cache(0)


class Pieces:
    """Tokenises texts with one tokenizer.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; its truncation and padding are switched off, as engines do, and so is its memory of words.
        sample: the model's template rendered for a few turns; the most frequent special token in it is the cut. Empty for no cut.
    """

    def __init__(self, tokenizer: Any, sample: str = "", cache: PieceCache | None = None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        _forget_words(tokenizer)
        self._tokenizer = tokenizer
        self._cache = cache or PieceCache()
        self.cut, self._cut_id = _cut_of(tokenizer, sample)
        self._around = self._specials()

    def ids(self, text: str, scope: str, *, special: bool = False) -> Iterator[Ids]:
        """The ids of `text`, one array after the other. Takes no lock of the interpreter while it tokenises.

        Args:
            scope: only pieces remembered under the same scope are used.
            special: whether the tokenizer adds the special tokens that it puts around a text.
        """
        around = self._around if special else _NOTHING_AROUND
        if around is None or self.cut == "":
            yield self._remembered(text, f"{'w' if special else 'b'}{scope}", lambda: self._encode(text, special))
            return
        before, behind = around
        if before:
            yield before
        pieces = text.split(self.cut)
        last = len(pieces) - 1
        for index, piece in enumerate(pieces):
            piece_with_cut = piece + self.cut if index < last else piece
            if piece_with_cut:
                yield self._first(piece_with_cut, scope) if index == 0 else self._later(piece_with_cut, scope)
        if behind:
            yield behind

    def _first(self, text: str, scope: str) -> Ids:
        return self._remembered(text, f"b{scope}", lambda: self._encode(text))

    def _later(self, text: str, scope: str) -> Ids:
        return self._remembered(text, f"l{scope}", lambda: self._encode(self.cut + text)[1:])

    def _remembered(self, text: str, scope: str, make: Any) -> Ids:
        key = hashlib.blake2b(b"%d:%b" % (len(scope), scope.encode()), digest_size=16)
        key.update(text.encode("utf-8", "surrogatepass"))
        digest = key.digest()
        ids: Ids | None = self._cache.get(digest)
        if ids is None:
            ids = make()
            self._cache.put(digest, ids)
        return ids

    def _encode(self, text: str, special: bool = False) -> Ids:
        # `encode` holds the interpreter's lock, and with it the event loop, until it returns; the call for batches releases the lock
        return array("I", self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def _specials(self) -> "tuple[Ids, Ids] | None":
        """The ids that the tokenizer adds in front of a text and behind it; None where it changes the text's own ids as well."""
        for probe in ("a", "1", "the"):
            bare, with_special = self._encode(probe), self._encode(probe, True)
            for start in range(len(with_special) - len(bare) + 1 if bare else 0):
                if with_special[start : start + len(bare)] == bare:
                    return with_special[:start], with_special[start + len(bare) :]
        return None


_NOTHING_AROUND: Final = (array("I"), array("I"))


def _size(ids: Ids) -> int:
    return _ENTRY_BYTES + ids.itemsize * len(ids)


def _cut_of(tokenizer: Any, sample: str) -> tuple[str, int]:
    """The special token to cut behind and its id; an empty text where no token is a safe cut."""
    added_tokens = tokenizer.get_added_tokens_decoder()
    cut, cut_id, most = "", -1, 0
    for token_id, token in added_tokens.items():
        times = sample.count(token.content) if token.content else 0
        if times > most and _is_safe(token, added_tokens.values()):
            cut, cut_id, most = token.content, token_id, times
    return cut, cut_id


def _is_safe(token: Any, added_tokens: Any) -> bool:
    """Whether a cut behind the token changes no id."""
    if not token.special or token.normalized or token.lstrip or token.rstrip or token.single_word:
        return False
    text = token.content
    for added in added_tokens:
        added_text = added.content
        if added_text != text and text in added_text:
            return False
        if any(added_text.endswith(text[:size]) for size in range(1, min(len(text), len(added_text) + 1))):
            return False
    return True


class TokenReading:
    """The ids made so far: one thread writes them, piece by piece from the front, and another reads them at any time."""

    __slots__ = ("_pieces", "_tokens", "whole")

    def __init__(self) -> None:
        self._pieces: list[Ids] = []
        self._tokens = 0
        self.whole = False
        """Whether all ids are made; set last."""

    def add(self, ids: Ids) -> None:
        """Add the next ids of the prompt."""
        self._pieces.append(ids)
        self._tokens += len(ids)

    def more(self, tokens: int) -> None:
        """Count tokens of the request's further prompts, whose ids share no prefix with the first prompt."""
        self._tokens += tokens

    @property
    def tokens(self) -> int:
        """Tokens so far; all tokens of the request once it is whole."""
        return self._tokens

    def ids(self) -> Ids:
        """The ids of the first prompt, as far as they are made."""
        ids = array("I")
        for piece in tuple(self._pieces):
            ids.extend(piece)
        return ids


GENERAL: Final = tuple(FILES)
"""Vocabularies that packages bring along."""

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
            self._encode, self.package = encoder(name)
        except ImportError:
            raise VocabularyError(f"tokenizer {name} needs a package that is not installed: pip install 'tidegate[tokens]'") from None

    def count(self, ask: Ask, scope: str = "") -> int:
        return min(int(len(self._encode(ask.fields.decode())) * GENERAL_MARGIN) + 1, ask.prompt_bytes)


class ModelVocabulary:
    """The served model's tokenizer and chat template: counts exactly as the engine will count.

    Args:
        path: the model's folder, or its `tokenizer.json`; the template and special tokens are read beside it.
        strftime: formats the current time, for `ChatTemplate`.
        efforts: for `ChatTemplate`.
    """

    slow_bytes = 4 * 1024

    def __init__(self, path: Path, strftime: Callable[[str], str], efforts: Efforts | None = None) -> None:
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
        self._template = _template(file.parent, strftime, efforts)
        self._pieces = Pieces(tokenizer, self._template.sample() if self._template is not None else "")

    def count(self, ask: Ask, scope: str = "") -> int:
        reading = TokenReading()
        self.read(ask, scope, reading)
        return reading.tokens

    def read(self, ask: Ask, scope: str, into: TokenReading) -> None:
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
def load_vocabulary(source: str, base_dir: Path, strftime: Callable[[str], str], efforts: Efforts | None = None) -> Vocabulary:
    """The tokenizer that a pool names, loaded once per process: pools may share it, and workers are forked from a process that has it.

    Raises:
        VocabularyError: a file or a package is missing or broken.
    """
    return GeneralVocabulary(source) if source in GENERAL else ModelVocabulary(base_dir / source, strftime, efforts)


def _template(folder: Path, strftime: Callable[[str], str], efforts: Efforts | None) -> ChatTemplate | None:
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
        return ChatTemplate(source, {name: token for name, token in tokens.items() if token}, strftime, efforts)
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
