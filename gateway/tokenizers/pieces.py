"""Token ids of a text, piece by piece, so that a conversation that has grown tokenises only its new end.

A text may be cut behind a special token without changing an id: tokenizers find special tokens first and tokenise the text between two
of them apart from everything else. A special token is a safe cut only where the tokenizer's own list proves it: the token is found in
the text as it stands, takes no blanks beside it, and no other token's text overlaps its beginning or goes on behind its end. Every
piece but the first is tokenised behind that token, so that a tokenizer with a rule of its own for the beginning of a text (a blank put
in front) does not apply it to the piece.
"""

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

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


class Pieces:
    """Tokenises texts with one tokenizer.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; its truncation and padding are switched off, as engines do.
        sample: the model's template rendered for a few turns; the most frequent special token in it is the cut. Empty for no cut.
    """

    def __init__(self, tokenizer: Any, sample: str = "", cache: PieceCache | None = None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
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
