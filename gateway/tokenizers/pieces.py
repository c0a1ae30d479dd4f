"""Token ids of a text, piece by piece, so that a conversation that has grown tokenises only what is new.

A text may be cut behind a special token without changing an id: tokenizers find special tokens first and tokenise what is between two of
them apart from everything else. A special token is taken for cutting only where that can be told from the tokenizer's own list: it is
found in the text as it stands, takes no blanks beside it, and no other token's text overlaps its beginning or goes on behind its end.
Every piece but the first is tokenised behind that token, so that a tokenizer that treats the beginning of a text in a way of its own
(a blank put in front) does not take the piece for one.
"""

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

MAX_BYTES: Final = 32 * 1024 * 1024
"""Of remembered pieces, per tokenizer and process: 8 million tokens, some 60 conversations as long as a context of 128k."""

_ENTRY_BYTES: Final = 320
"""What a remembered piece takes beside its ids: its key, the map's entry, the array's head."""

Ids: TypeAlias = "array[int]"
"""Token ids in 32 bits each."""


class PieceCache:
    """Token ids of pieces by their text, the one unused for longest forgotten first. Safe to use from several threads.

    Pieces are remembered under a digest of their text and of a scope, so that nobody learns from the time his request takes what another
    tenant has sent.
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
        """Remember a piece. One that is larger than all there may be is not."""
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
    """Tokenises texts for one tokenizer.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; what it was told to cut off or to fill up is undone, as engines do.
        sample: what the model's template makes of a few turns; the cut is the token that is there most often. Empty for none.
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
            scope: texts are compared with others of the same scope only.
            special: let the tokenizer add the special tokens that it puts around a text.
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
        for at, piece in enumerate(pieces):
            whole = piece + self.cut if at < last else piece
            if whole:
                yield self._first(whole, scope) if at == 0 else self._later(whole, scope)
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
        # `encode` holds the interpreter's lock for as long as it takes, and with it the event loop; the call for batches lets go of it
        return array("I", self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def _specials(self) -> "tuple[Ids, Ids] | None":
        """What the tokenizer adds in front of a text and behind it; None when it does something else."""
        for probe in ("a", "1", "the"):
            bare, whole = self._encode(probe), self._encode(probe, True)
            for at in range(len(whole) - len(bare) + 1 if bare else 0):
                if whole[at : at + len(bare)] == bare:
                    return whole[:at], whole[at + len(bare) :]
        return None


_NOTHING_AROUND: Final = (array("I"), array("I"))


def _size(ids: Ids) -> int:
    return _ENTRY_BYTES + ids.itemsize * len(ids)


def _cut_of(tokenizer: Any, sample: str) -> tuple[str, int]:
    """The special token to cut behind and its id, or an empty text."""
    added = tokenizer.get_added_tokens_decoder()
    best, best_id, most = "", -1, 0
    for number, token in added.items():
        often = sample.count(token.content) if token.content else 0
        if often > most and _is_safe(token, added.values()):
            best, best_id, most = token.content, number, often
    return best, best_id


def _is_safe(token: Any, added: Any) -> bool:
    if not token.special or token.normalized or token.lstrip or token.rstrip or token.single_word:
        return False
    text = token.content
    for other in added:
        name = other.content
        if name != text and text in name:
            return False
        if any(name.endswith(text[:size]) for size in range(1, min(len(text), len(name) + 1))):
            return False
    return True
